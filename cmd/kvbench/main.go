// Command kvbench measures disaggregated LLM serving: real KV-cache bytes on a
// real network path, under the clock of a modelled GPU.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"kvferry/bench/page"
	"kvferry/bench/transfer"
	"kvferry/cluster"
)

// Exit statuses.
const (
	exitFailed      = 1   // a cell has faults, or the run could not go on
	exitUsage       = 2   // the command line is wrong
	exitInterrupted = 130 // by Ctrl-C, as a shell reports it, or another signal that ends it
)

func main() {
	cluster.Child()  // does not return in a daemon of an embedded cluster
	transfer.Child() // nor in the target of a transfer
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	// A second Ctrl-C ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, term.IsTerminal(int(os.Stderr.Fd()))))
}

// interrupts are the signals that end a run and keep what it has: Ctrl-C, kill, and
// the loss of the terminal unless nohup has told us to outlive it.
func interrupts() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// usageError is a command line that cannot be run.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// run is the command without its process; terminal says that stderr is one.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, terminal bool) int {
	began := false
	root := &cobra.Command{
		Use:   "kvbench",
		Short: "Measure disaggregated LLM serving",
		Long: `kvbench measures disaggregated LLM serving on this machine or on daemons that
run elsewhere. KV-cache bytes and network are real, the GPU is modelled.

  kvbench mooncake    Mooncake's published A10 table: measured beside published
  kvbench simulate    any cluster in virtual time: how many nodes, how fast a NIC?
  kvbench transfer    how fast a rail moves bytes, between machines or on this one
  kvbench failover    a link is cut and restored under load: what do the others do?
  kvbench nics        several NICs in the NIC lab, held to limits
  kvbench topo        which NIC is near which memory, and why
  kvbench serving     what the proxy and a node cost themselves, per token`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRun:  func(*cobra.Command, []string) { began = true },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(
		mooncakeCommand(terminal), simulateCommand(terminal), transferCommand(terminal), failoverCommand(terminal), nicsCommand(),
		topoCommand(), servingCommand(),
	)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		kept := "what was measured is kept"
		if lost := (*page.OutputError)(nil); errors.As(err, &lost) {
			kept = lost.Error()
		}
		fmt.Fprintln(stderr, "kvbench: interrupted;", kept)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "kvbench: %v\n", err)
	// What fails before a command begins is cobra's view of the flags.
	if usage := (usageError{}); !began || errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for the flags and examples.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}
