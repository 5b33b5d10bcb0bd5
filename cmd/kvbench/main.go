// Command kvbench measures disaggregated LLM serving: real KV-cache bytes on a
// real network path, under the clock of a modelled GPU.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"kvferry/bench/check"
	"kvferry/bench/document"
	"kvferry/bench/matrix"
	"kvferry/bench/rail"
	"kvferry/cluster"
	"kvferry/internal/cli"
)

func main() {
	// Children are this program again: they are told apart before a command line is looked at.
	cluster.Child() // does not return in a daemon of an embedded cluster
	rail.Child()    // nor in the target of a transfer or a check
	matrix.Child()  // nor where it keeps a command of a matrix
	program(term.IsTerminal(int(os.Stderr.Fd()))).Main()
}

// program is kvbench; terminal says that its standard error is one, and progress may overwrite
// its own line.
func program(terminal bool) cli.Program {
	root := &cobra.Command{
		Use:   "kvbench",
		Short: "Measure disaggregated LLM serving",
		Long: `kvbench measures disaggregated LLM serving on this machine or on daemons that
run elsewhere. KV-cache bytes and network are real, the GPU is modelled.

  kvbench mooncake    Mooncake's published A10 table: measured beside published
  kvbench serve       any load against any server, and what came of it
  kvbench simulate    any cluster in virtual time: how many nodes, how fast a NIC?
  kvbench matrix      servers x clients: each client against each server, one table
  kvbench transfer    how fast a rail moves bytes, between machines or on this one
  kvbench failover    a link is cut and restored under load: what do the others do?
  kvbench engines     connectors of real vLLM side by side: is it the right KV, how soon?
  kvbench sglang      SGLang's published runs beside modelled servers
  kvbench validate    how far modelled figures are from published ones, profile by profile
  kvbench contention  n transfers into one decode node: both clocks, and other simulators
  kvbench nics        several NICs in the NIC lab, held to limits
  kvbench check       is each rail to another machine fit to serve? what to do?
  kvbench topo        which NIC is near which memory, and why
  kvbench compare     results side by side, also of vLLM's and SGLang's clients
  kvbench serving     what the proxy and a node cost themselves, per token
  kvbench null-server tokens at given times, to measure a client by
  kvbench tokenizer   kvferry's tokenizer in a folder, for any client
  kvbench profile     a profile of any model on any GPU, from its datasheet`,
	}
	root.AddCommand(
		mooncakeCommand(terminal), serveCommand(terminal), simulateCommand(terminal), matrixCommand(terminal), transferCommand(terminal), failoverCommand(terminal), nicsCommand(), checkCommand(), enginesCommand(terminal),
		sglangCommand(terminal), validateCommand(terminal), contentionCommand(), topoCommand(), servingCommand(), compareCommand(), nullServerCommand(), tokenizerCommand(), profileCommand(terminal),
	)
	for _, cmd := range root.Commands() {
		cli.Values(cmd, values(cmd.Name()))
	}
	return cli.Program{Root: root, Args: spread, Kept: func(err error) string {
		if lost := (*document.OutputError)(nil); errors.As(err, &lost) {
			return lost.Error()
		}
		if stopped := (*matrix.Interrupted)(nil); errors.As(err, &stopped) {
			return stopped.Error()
		}
		if errors.Is(err, check.ErrInterrupted) {
			return check.ErrInterrupted.Error()
		}
		return "what was measured is kept"
	}}
}

// outHelp is what --out is.
const outHelp = "folder for the results; one that has some already is refused (default kvbench-out/<time>)"

// resultsFolder is where results go that no --out says: a folder of its own for each run, by
// the second it began in.
func resultsFolder(out string) string {
	if out != "" {
		return out
	}
	first := filepath.Join("kvbench-out", time.Now().Format("20060102-150405"))
	out = first
	for n := 2; ; n++ { // runs in virtual time take less
		if _, err := os.Lstat(out); err != nil {
			return out
		}
		out = fmt.Sprintf("%s-%d", first, n)
	}
}
