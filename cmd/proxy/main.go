// Command proxy is kvferry proxy under a name of its own.
package main

import "kvferry/internal/cli"

func main() { cli.Proxy().Main() }
