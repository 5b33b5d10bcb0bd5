// Command prefill is kvferry node --role prefill under a name of its own.
package main

import "kvferry/internal/cli"

func main() { cli.Node("prefill").Main() }
