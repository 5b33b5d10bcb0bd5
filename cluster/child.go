package cluster

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/internal/proc"
)

// childEnv has a process run a daemon of a cluster: its command line is that of kvferry proxy or
// kvferry node.
const childEnv = "KVFERRY_CLUSTER_CHILD"

// commands are the words with which the command lines of daemons begin.
var commands = map[string]knob.Roles{"proxy": Proxy, "node": Node}

// hello is the line with which a child announces that it listens, or cannot. Ports are the
// kernel's to choose, so that clusters side by side never ask for the same: only the child
// knows them.
type hello struct {
	HTTP, GRPC string // host:port; a node has no HTTP
	Error      *config.Report
}

// Child runs this process's daemon and exits if it was started as a child of a cluster;
// otherwise it returns at once.
func Child() {
	if _, ok := os.LookupEnv(childEnv); !ok {
		return
	}
	os.Unsetenv(childEnv) // what the daemon starts is no part of a cluster
	proc.Tie()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := child(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is the daemon of a command line. It reports once that it listens, or why it cannot.
func child(ctx context.Context, args []string) error {
	var s Spec
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	for _, g := range Knobs.For(commands[args[0]]).Flags(&s, 0) {
		flags.AddFlagSet(g.Flags)
	}
	said := false
	listens := func(http, grpc string) error {
		said = true
		return proc.Announce(proc.HelloFD, hello{HTTP: http, GRPC: grpc})
	}
	err := flags.Parse(args[1:])
	if err == nil {
		err = s.Run(ctx, args[0] == "proxy", listens)
	}
	if err != nil && !said {
		r := config.NewReport(err)
		_ = proc.Announce(proc.HelloFD, hello{Error: &r}) // the caller says it too
	}
	return err
}
