// Command decode is kvferry node --role decode under a name of its own.
package main

import "kvferry/internal/cli"

func main() { cli.Node("decode").Main() }
