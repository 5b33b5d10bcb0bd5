package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"kvferry/internal/config"
	"kvferry/lab"
)

// Exit statuses that are not the command's own, besides those of package cli.
const (
	exitTimeout = 124 // as timeout(1) has it
	exitFailed  = 125 // of the lab itself, as container runtimes have it
)

func labCommand(terminal bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Networks, RDMA NICs and vLLM on a machine that has none, and experiments on them",
		Args:  NoArgs,
	}
	cmd.AddCommand(
		ownStatus(netCommand()), ownStatus(rdmaCommand()), ownStatus(setupCommand()), ownStatus(vllmCommand()),
		labNICsCommand(), connectorsCommand(terminal), matrixCommand(terminal),
	)
	return cmd
}

// ownStatus has a lab's command and those below it exit with exitFailed where they fail at run
// time: ExitFailed may be the status of what the lab ran.
func ownStatus(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		var invalid *config.Invalid
		var status *Status
		if err == nil || errors.As(err, &invalid) || errors.As(err, &status) {
			return err
		}
		return &Status{Code: exitFailed, Err: err}
	}
	for _, c := range cmd.Commands() {
		ownStatus(c)
	}
	return cmd
}

// ended is the result of either lab: how its commands ended.
type ended interface{ ExitCode() int }

// status is a lab's end as an exit status: that of the commands if they ran. A command's own
// 2, 124, 125 or 130 cannot be told from the lab's, as with timeout(1); only the lab's come with a
// line on standard error.
func status(r ended, err error, names map[string]string) error {
	switch {
	case errors.Is(err, lab.ErrTimeout):
		return &Status{Code: exitTimeout, Err: err}
	case err != nil:
		return config.Named(err, names)
	case r.ExitCode() != 0:
		return &Status{Code: r.ExitCode()}
	}
	return nil
}

func setupCommand() *cobra.Command {
	var cache string
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install what kvferry lab rdma needs",
		Long: `Install the Debian packages that kvferry lab rdma needs, which takes root, and download the
newest stock kernel into the cache, which does not. Nothing is installed or
downloaded twice.`,
		Example: `  sudo kvferry lab setup --cache ~/.cache/kvferry/lab   # packages and kernel
  kvferry lab setup                                     # the kernel, if the packages are there`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Setup(cmd.Context(), cache, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&cache, "cache", "", "folder of the kernel (default kvferry/lab in the user's cache folder)")
	return cmd
}
