// Package daemon is what the commands prefill, decode and proxy have in common, and
// nothing else has: flags that become a configuration of package node or proxy, a logger,
// and the memory of a daemon's process. Their help says the same words for the same
// things, and what is wrong with a configuration is said by the names of its flags.
//
// A command adds its flags to a cobra command and calls RunNode or RunProxy, which return
// when their context ends and the daemon has drained. Signals and exit statuses are package
// command's.
//
// On a command line 0 is 0, in a configuration it is the default; Config translates. What a
// text cannot be made into is found there, what a value may not be by Validate, what this
// machine has not by New. RunNode and RunProxy say all of the first two at once.
package daemon

import (
	"context"
	"os"
	"runtime/debug"

	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/proto"
	"kvferry/proxy"
	"kvferry/transport/process"
)

// Tune is for a daemon's process, whose main calls it first. Its threads have short turns
// of the CPUs: what is small does not wait there for bulk (package tcp has the figures).
// Its garbage collector runs after 20 % growth instead of 100 %. A daemon's live heap is a few
// KiB a stream, so that costs 0.3 us of CPU a token and takes a sixth off the
// memory of 1,000 streams, engine and proxy together; 30 % instead of 20 is 4 % more
// memory for 0.07 us. GOGC in the environment goes before.
func Tune() {
	process.ShortTurns()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}

// RunNode runs the node that flags describe until ctx ends, logging to standard error.
// What is wrong with it is said by the names of the flags.
func RunNode(ctx context.Context, role proto.Role, flags *NodeFlags, logs LogFlags) error {
	var bad config.Faults
	logger, err := logs.Logger(os.Stderr)
	bad.Check("", err)
	cfg, err := flags.Config()
	bad.Check("", err)
	cfg.Role, cfg.Logger = role, logger
	if cfg.Profile != nil { // that there is none is said already, and most else depends on it
		bad.Check("", cfg.Validate())
	}
	if err := config.Named(bad.Err(""), NodeFlagNames); err != nil {
		return err
	}
	n, err := node.New(cfg)
	if err != nil {
		return config.Named(err, NodeFlagNames)
	}
	return n.Run(ctx)
}

// RunProxy runs the proxy that flags describe, in the same way.
func RunProxy(ctx context.Context, flags *ProxyFlags, logs LogFlags) error {
	var bad config.Faults
	logger, err := logs.Logger(os.Stderr)
	bad.Check("", err)
	cfg := flags.Config()
	cfg.Logger = logger
	bad.Check("", cfg.Validate())
	if err := config.Named(bad.Err(""), ProxyFlagNames); err != nil {
		return err
	}
	p, err := proxy.New(cfg)
	if err != nil {
		return config.Named(err, ProxyFlagNames)
	}
	return p.Run(ctx)
}
