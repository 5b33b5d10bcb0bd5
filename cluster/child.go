package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"kvferry/daemon"
	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/proxy"
)

// partEnv carries a child's part, as JSON.
const partEnv = "KVFERRY_CLUSTER_PART"

// A part is what a child is in its cluster. All children get the whole Config, and take of
// it what is theirs.
type part struct {
	Name, Role string // Role is proxy, prefill, decode or nondisagg
	Registry   string // host:port of the proxy's gRPC; empty for the proxy itself
	Config     Config
	Ledger     bool // of modelled NICs: the first file that was handed on
}

// hello is the line a child prints once it listens, or cannot. What comes on its standard
// output after that is dropped. Ports are the kernel's to choose, so that clusters side by
// side never ask for the same: only the child knows them.
type hello struct {
	HTTP, GRPC string // host:port; a node has no HTTP
	Error      *config.Report
}

// Child runs this process's part and exits if it was started as a child of a
// cluster; otherwise it returns at once.
func Child() {
	spec, ok := os.LookupEnv(partEnv)
	if !ok {
		return
	}
	os.Unsetenv(partEnv) // what the daemon starts is no part of a cluster
	daemon.Tune()
	var pt part
	if err := json.Unmarshal([]byte(spec), &pt); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %s: %v\n", partEnv, err)
		os.Exit(2)
	}
	// A pipe and not PR_SET_PDEATHSIG: that is tied to the parent's thread, which Go may end
	// while the parent lives, and is Linux's only.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := pt.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", pt.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the daemon. It reports once that it listens, or why it cannot, and returns when ctx
// has ended and it has drained.
func (pt part) run(ctx context.Context) error {
	logs := daemon.LogFlags{Level: pt.Config.LogLevel, Format: "text"}
	config.Default(&logs.Level, "info")
	logger, err := logs.Logger(os.Stderr)
	if err != nil {
		return report(hello{}, err)
	}
	c := pt.Config
	config.Default(&c.HTTP, "127.0.0.1:0")
	if pt.Role == "proxy" {
		mode := proxy.ModeDisagg
		if c.Nondisagg > 0 {
			mode = proxy.ModeNondisagg
			if c.Prefill > 0 {
				mode = proxy.ModeAuto
			}
		}
		p, err := proxy.New(proxy.Config{
			HTTPAddr: c.HTTP, GRPCAddr: "127.0.0.1:0", Mode: mode, Handoff: c.Handoff, Placement: c.Placement, Migration: c.Migration, ConditionalDisaggregation: c.ConditionalDisaggregation,
			RequestTimeout: c.RequestTimeout, LeaseTTL: c.LeaseTTL, MaxQueue: c.MaxQueue, EOS: c.EOS, LoRAs: c.LoRAs, OTLPTracesEndpoint: c.OTLPTracesEndpoint, Logger: logger,
		})
		if err != nil {
			return report(hello{}, err)
		}
		if err := report(hello{HTTP: p.HTTPAddr(), GRPC: p.GRPCAddr()}, nil); err != nil {
			return err
		}
		return p.Run(ctx)
	}
	cfg, err := c.node(pt.Role, pt.Name, pt.Registry)
	if err != nil {
		return report(hello{}, err)
	}
	cfg.Logger = logger
	if pt.Ledger {
		cfg.Ledger = "/dev/fd/3" // the first of exec.Cmd's ExtraFiles
	}
	n, err := node.New(cfg)
	if err != nil {
		return report(hello{}, err)
	}
	if err := report(hello{GRPC: n.GRPCAddr()}, nil); err != nil {
		return err
	}
	return n.Run(ctx)
}

// report prints the hello line; a fault goes into it and is returned.
func report(h hello, fault error) error {
	if fault != nil {
		r := config.NewReport(fault)
		h.Error = &r
	}
	if err := json.NewEncoder(os.Stdout).Encode(h); err != nil {
		return err
	}
	return fault
}
