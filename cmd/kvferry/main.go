// Command kvferry runs, measures and models disaggregated LLM serving.
package main

import "kvferry/internal/cli"

func main() { cli.Main() }
