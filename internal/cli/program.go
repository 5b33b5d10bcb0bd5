package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/cluster"
	"kvferry/internal/config"
	"kvferry/internal/version"
)

// Exit statuses.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130 // by Ctrl-C, as a shell reports it, or another signal that ends it
)

// A Program is a root command and what is its own about running it.
type Program struct {
	Root *cobra.Command
	// Kept says what is left of a run of cmd that was interrupted, in a few words without a
	// full stop. It gets the error that the run ended with. Nothing is said if it returns "".
	// Default nothing is said.
	Kept func(cmd *cobra.Command, err error) string
	// Args rewrites the arguments before they are read. Default they are as they were given.
	Args func([]string) []string
}

// Status is an error with an exit status of its own. Nothing is printed of it if Err is
// nil.
type Status struct {
	Code int
	Err  error
}

func (s *Status) Error() string {
	if s.Err == nil {
		return fmt.Sprintf("exit status %d", s.Code)
	}
	return s.Err.Error()
}

func (s *Status) Unwrap() error { return s.Err }

// Main runs the program in its process and exits. The first signal that asks it to end
// ends its context, a second one the process: once ctx is over, signals have their usual
// effect again. The program has the name of its file.
func (p Program) Main() {
	p.Root.Use = strings.Replace(p.Root.Use, p.Root.Name(), filepath.Base(os.Args[0]), 1)
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	context.AfterFunc(ctx, stop)
	os.Exit(p.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// interrupts are the signals that end a program in good order: Ctrl-C, kill, and the loss
// of the terminal unless nohup has told it to outlive that.
func interrupts() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// Run is the program without its process: it returns the exit status. It sets what cobra
// is to do, and flags keep what they were given, so p is for one Run. Faults of the command
// line are lines that begin with the program's name; the last says where to read on.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := p.Root
	args = helpArgs(root, args)
	if p.Args != nil {
		args = p.Args(args)
	}
	// cobra would print its own words and all flags, which hides what was wrong.
	root.SilenceUsage, root.SilenceErrors = true, true
	prepare(root, version.Line(root.Name()))
	root.SetGlobalNormalizationFunc(canonical)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return checkValues(cmd.Flags()) }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	// Before cobra looks, whose error for it would be no config.Invalid.
	cmd, err := root, unknownCommand(root, args)
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
	var invalid *config.Invalid
	var status *Status
	switch {
	case err == nil:
		return 0
	// An error that came with the signal but is not of it is told as an error.
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		line := root.Name() + ": interrupted"
		if p.Kept != nil {
			if left := p.Kept(cmd, err); left != "" {
				line += "; " + left
			}
		}
		fmt.Fprintln(stderr, line)
		return ExitInterrupted
	case errors.As(err, &invalid):
		for _, line := range strings.Split(err.Error(), "\n") {
			fmt.Fprintf(stderr, "%s: %s\n", root.Name(), line)
		}
		fmt.Fprintf(stderr, "Run '%s --help' for the flags and examples.\n", cmd.CommandPath())
		return ExitUsage
	case errors.As(err, &status):
		if status.Err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
		}
		return status.Code
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	return ExitFailed
}

// canonical returns the name of a flag that has others, as in vLLM's server and clients, where
// "_" may stand for "-".
func canonical(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(cluster.Knobs.Canonical(strings.ReplaceAll(name, "_", "-")))
}

// Help lists commands in the order in which they were added.
func init() { cobra.EnableCommandSorting = false }

// prepare gives a command and those below it --version, of the program: cobra gives it to
// the root alone, and "kvferry rail topo --version" would be an unknown flag. Help lists flags in the
// order in which they were added.
func prepare(cmd *cobra.Command, line string) {
	cmd.Version, cmd.Flags().SortFlags = line, false
	for _, c := range cmd.Commands() {
		prepare(c, line)
	}
}

// unknownCommand is what is wrong with the name of a subcommand.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil && (cmd == root || cmd.Runnable()) || !root.HasSubCommands() {
		return nil
	}
	name := ""
	for _, arg := range rest {
		if name == "" && !strings.HasPrefix(arg, "-") {
			name = arg
		}
	}
	switch name {
	case "help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		return nil // cobra's own, which it adds as it executes
	}
	if err == nil && name == "" { // a group of commands, such as kvferry rail: cobra prints its help
		return nil
	}
	return invalid("COMMAND", noSuchCommand(cmd, name))
}

// noSuchCommand says which subcommands there are.
func noSuchCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, c.Name())
		}
	}
	fix := "use " + strings.Join(known, ", ")
	if name == "" {
		return fmt.Errorf("write the command before its flags: %s", fix)
	}
	if like := suggestions(cmd, name); len(like) > 0 {
		fix = "is it " + strings.Join(like, " or ") + "?"
	}
	return fmt.Errorf("%q: %s has no such command: %s", name, cmd.CommandPath(), fix)
}

// suggestions returns the commands of cmd whose names are like name, or if there are none
// the commands further below, with their whole paths: kvferry mooncake is kvferry reproduce
// mooncake.
func suggestions(cmd *cobra.Command, name string) (like []string) {
	cmd.SuggestionsMinimumDistance = 2 // cobra's default, which it sets only where it makes suggestions itself
	if like = cmd.SuggestionsFor(name); len(like) > 0 {
		return like
	}
	for _, c := range cmd.Commands() {
		for _, below := range suggestions(c, name) {
			if !strings.HasPrefix(below, c.CommandPath()) {
				below = c.CommandPath() + " " + below
			}
			like = append(like, below)
		}
	}
	return like
}

// invalid is one fault of a command line.
func invalid(name string, err error) error {
	return config.Faults{{Field: name, Err: err}}.Err("")
}

// NoArgs is for commands that take none.
func NoArgs(cmd *cobra.Command, args []string) error { return AtMostOne("")(cmd, args) }

// AtMostOne is for commands that may be given one argument, by its name in their help.
func AtMostOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case name == "" && len(args) > 0 && cmd.HasSubCommands():
			return invalid("COMMAND", noSuchCommand(cmd, args[0]))
		case name == "" && len(args) > 0:
			fix := "flags begin with --; give a flag again for another value of it, and quote a value that has spaces"
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if f.NoOptDefVal != "" && f.Value.Type() != "bool" { // it may stand without a value, and has taken none
					fix = fmt.Sprintf("write --%s=%s if it is that flag's", f.Name, args[0])
				}
			})
			return invalid("ARGUMENT", fmt.Errorf("%q: %s takes none: %s", args[0], cmd.CommandPath(), fix))
		case len(args) > 1:
			return invalid(name, fmt.Errorf("%q: given %d times: leave all but one out", strings.Join(args, " "), len(args)))
		case len(args) == 1 && args[0] == "":
			return invalid(name, errors.New("none given: give it a value, or leave it out"))
		}
		return nil
	}
}
