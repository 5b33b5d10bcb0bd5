package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"kvferry/bench/document"
	"kvferry/bench/matrix"
	"kvferry/bench/rail"
	"kvferry/cluster"
)

// Main runs kvferry and exits.
func Main() {
	// Children are this program again: they are told apart before a command line is looked at.
	cluster.Child() // does not return in a daemon of an embedded cluster
	rail.Child()    // nor in the target of a transfer or a check
	kvferry(term.IsTerminal(int(os.Stderr.Fd()))).Main()
}

// The groups in which kvferry --help lists its commands.
const (
	startHere = "start"
	daemons   = "daemons"
	network   = "network"
	models    = "models"
	labs      = "labs"
)

// kvferry returns the program, made anew for each command line because flags keep what they
// were given. terminal says that its standard error is a terminal, where progress may
// overwrite its own line.
func kvferry(terminal bool) Program {
	root := &cobra.Command{
		Use:   "kvferry",
		Short: "What does moving the KV cache cost?",
		Long: `kvferry is a testbed for disaggregated LLM serving. Prefill nodes compute a prompt's
KV cache and move it to decode nodes, over TCP, RDMA or several NICs; a proxy serves
the whole. KV-cache bytes and network are real, the GPU is modelled. The same cluster
runs in virtual time, too.

  kvferry reproduce mooncake        Mooncake's published A10 table, measured beside published
  kvferry bench http://HOST:PORT    measure a server that runs: vLLM, SGLang, kvferry ...
  kvferry help COMMAND              what a command does, with examples`,
	}
	for _, g := range []cobra.Group{{ID: startHere, Title: "Start here:"}, {ID: daemons, Title: "Daemons:"}, {ID: network, Title: "Network:"}, {ID: models, Title: "Models:"}, {ID: labs, Title: "Labs and tools:"}} {
		root.AddGroup(&g)
	}
	in := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	in(startHere, serveCommand(), benchCommand(terminal), simCommand(terminal), reproduceCommand(terminal), compareCommand())
	in(daemons, proxyCommand(), nodeCommand(""))
	in(network, railCommand(terminal))
	in(models, profileCommand(terminal), tokenizerCommand())
	in(labs, labCommand(terminal), nullServerCommand())
	root.SetHelpCommandGroupID(labs)
	root.SetCompletionCommandGroupID(labs)
	setValues(root)
	return Program{Root: root, Args: spread, Kept: kept}
}

// setValues tells a shell's completion what the flags of all commands below cmd take.
func setValues(cmd *cobra.Command) {
	if cmd.Runnable() {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		Values(cmd, values(path))
	}
	for _, c := range cmd.Commands() {
		setValues(c)
	}
}

// kept says what is left of an interrupted run, or nothing for a command that measures nothing.
func kept(cmd *cobra.Command, err error) string {
	if lost := (*document.OutputError)(nil); errors.As(err, &lost) {
		return lost.Error()
	}
	if stopped := (*matrix.Interrupted)(nil); errors.As(err, &stopped) {
		return stopped.Error()
	}
	if errors.Is(err, rail.ErrInterrupted) {
		return rail.ErrInterrupted.Error()
	}
	for c := cmd; c != nil; c = c.Parent() {
		if slices.Contains([]string{"serve", "proxy", "node", "net", "rdma", "setup", "vllm"}, c.Name()) {
			return ""
		}
	}
	return "what was measured is kept"
}

func reproduceCommand(terminal bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reproduce",
		Short: "Published figures beside ours: Mooncake's table, SGLang's runs",
		Args:  NoArgs,
	}
	cmd.AddCommand(mooncakeCommand(terminal), sglangCommand(terminal))
	return cmd
}

func railCommand(terminal bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rail",
		Short: "Measure and check the rails between machines, or on this one",
		Args:  NoArgs,
	}
	cmd.AddCommand(railBenchCommand(terminal), failoverCommand(terminal), checkCommand(), topoCommand())
	return cmd
}

// outHelp is what --out is.
const outHelp = "folder for the results; one that has some already is refused (default kvferry-out/<time>)"

// resultsFolder is where results go that no --out says: a folder of its own for each run, by
// the second it began in.
func resultsFolder(out string) string {
	if out != "" {
		return out
	}
	first := filepath.Join("kvferry-out", time.Now().Format("20060102-150405"))
	out = first
	for n := 2; ; n++ { // runs in virtual time take less
		if _, err := os.Lstat(out); err != nil {
			return out
		}
		out = fmt.Sprintf("%s-%d", first, n)
	}
}
