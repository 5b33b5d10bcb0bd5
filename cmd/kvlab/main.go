// Command kvlab runs a program on hosts that it makes for it, on a machine that
// has no such NICs: hosts with RDMA NICs, or hosts joined by several links.
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

	"kvferry/lab"
)

// Exit statuses that are not the command's own.
const (
	exitUsage       = 2   // the command line is wrong
	exitTimeout     = 124 // as timeout(1) has it
	exitFailed      = 125 // of the lab itself, as container runtimes have it
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second Ctrl-C ends the process at once, and the kernel its hosts.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// usageError is a command line that cannot be run.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// statusError is a command's exit status other than 0.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// run is the command without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	began := false
	root := &cobra.Command{
		Use:   "kvlab",
		Short: "Run a program on hosts with several NICs, RDMA or not",
		Long: `kvlab makes hosts on a machine that lacks the hardware and runs a program on them.

  kvlab nics     two hosts in network namespaces, TCP over links of chosen rates
                 at the speed of this machine, which fail as told
  kvlab roce     hosts with software RoCE NICs in QEMU, without KVM or disk: real
                 libibverbs, real kernel RDMA, lossy links, hosts that die
  kvlab setup    install what kvlab roce needs and download a kernel, once`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRun:  func(*cobra.Command, []string) { began = true },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(nicsCommand(), roceCommand(), setupCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	status, usage := statusError(0), usageError{}
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "kvlab: interrupted")
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "kvlab: %v\n", err)
	switch {
	// What fails before a command begins is cobra's view of the flags.
	case !began || errors.As(err, &usage):
		fmt.Fprintf(stderr, "Run '%s --help' for the flags and examples.\n", cmd.CommandPath())
		return exitUsage
	case errors.Is(err, lab.ErrTimeout):
		return exitTimeout
	}
	return exitFailed
}

func setupCommand() *cobra.Command {
	var cache string
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install what kvlab roce needs",
		Long: `Install the Debian packages that kvlab roce needs, which takes root, and download the
newest stock kernel into the cache, which does not. Nothing is installed or
downloaded twice.`,
		Example: `  sudo kvlab setup --cache ~/.cache/kvferry/lab   # packages and kernel
  kvlab setup                                     # the kernel, if the packages are there`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Setup(cmd.Context(), cache, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&cache, "cache", "", "folder of the kernel (default kvferry/lab in the user's cache folder)")
	return cmd
}
