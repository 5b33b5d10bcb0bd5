// Command kvlab runs a program on hosts that it makes for it, on a machine that
// has no such NICs: hosts with RDMA NICs, or hosts joined by several links.
package main

import (
	"errors"

	"github.com/spf13/cobra"

	"kvferry/internal/cli"
	"kvferry/internal/config"
	"kvferry/lab"
)

// Exit statuses that are not the command's own, besides those of package cli.
const (
	exitTimeout = 124 // as timeout(1) has it
	exitFailed  = 125 // of the lab itself, as container runtimes have it
)

func main() { program().Main() }

func program() cli.Program {
	root := &cobra.Command{
		Use:   "kvlab",
		Short: "Run a program on hosts with several NICs, RDMA or not",
		Long: `kvlab makes hosts on a machine that lacks the hardware and runs a program on them.

  kvlab nics     two hosts in network namespaces, TCP over links of chosen rates
                 at the speed of this machine, which fail as told
  kvlab roce     hosts with software RoCE NICs in QEMU, without KVM or disk: real
                 libibverbs, real kernel RDMA, lossy links, hosts that die
  kvlab setup    install what kvlab roce needs and download a kernel, once
  kvlab vllm     unmodified vLLM for CPU, in an environment of its own`,
	}
	root.AddCommand(nicsCommand(), roceCommand(), setupCommand(), vllmCommand())
	return cli.Program{Root: root, Failed: exitFailed}
}

// A result is how a lab's commands ended, of either lab.
type result interface{ ExitCode() int }

// status is a lab's end as an exit status: that of the commands if they ran. A command's own
// 2, 124, 125 or 130 cannot be told from kvlab's, as with timeout(1); only kvlab's come with a
// line on standard error.
func status(r result, err error, names map[string]string) error {
	switch {
	case errors.Is(err, lab.ErrTimeout):
		return &cli.Status{Code: exitTimeout, Err: err}
	case err != nil:
		return config.Named(err, names)
	case r.ExitCode() != 0:
		return &cli.Status{Code: r.ExitCode()}
	}
	return nil
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
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Setup(cmd.Context(), cache, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&cache, "cache", "", "folder of the kernel (default kvferry/lab in the user's cache folder)")
	return cmd
}
