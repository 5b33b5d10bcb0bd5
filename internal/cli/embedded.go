package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"kvferry/bench"
	"kvferry/cluster"
	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// warmBytes is what the burst of 1024/q2 holds at once on the prefill node, 20
// prompts of 66 MB (1.3 GB), and some: --kv-warm-mib's default. Memory that is touched
// for the first time under load costs the kernel time that a GPU's memory does not.
const warmBytes = 2048 << 20

// fitWarm lowers the --kv-warm-mib of a cluster that nobody gave one to what this machine has
// memory for. Why it is less is a line for the user, empty if it is not.
func fitWarm(c *cluster.Spec) (why string) {
	asked := c.Node.WarmBytes
	if c.Node.WarmBytes = c.FitWarm(); c.Node.WarmBytes < asked {
		why = fmt.Sprintf("--kv-warm-mib: %d by default, %d here: %d nodes have that much of their pools in memory, and this machine has not more left", asked>>20, c.Node.WarmBytes>>20, c.Prefill+c.Decode)
	}
	return why
}

// hardware is what the nodes of an embedded cluster are given. Its link and rails are instead of
// each setting's, if it has any.
type hardware struct{ cluster.Spec }

// carrier returns the rails of a setting that moves KV. Where its rail is not to be had, it is
// loopback, and why says so. Rails are opened and closed again here: the error of a child would
// come late, and could not choose another.
func (h hardware) carrier(s bench.Setting) (specs []string, why string, err error) {
	if specs = h.Node.Rails; len(specs) == 0 {
		specs = []string{s.Rail}
	}
	opened, err := rails.OpenAll(specs, rails.Options{Logger: slog.New(slog.DiscardHandler)})
	var fault *config.Fault
	switch {
	case err == nil:
		for _, r := range opened {
			err = errors.Join(err, r.Close())
		}
		return specs, "", err
	case len(h.Node.Rails) == 0 && errors.As(err, &fault):
		return []string{node.DefaultRail}, fault.Err.Error(), nil
	}
	return nil, "", err
}

// linkOf is the name of the link that a setting goes over here.
func (h hardware) linkOf(s bench.Setting) string {
	if h.Link != "" {
		return h.Link
	}
	return s.Link
}

// embedded is the Starter of clusters that are child processes of kvferry: a new one for each
// cell, so that no cell finds what another has left.
func embedded(h hardware, log io.Writer) bench.Starter {
	return func(ctx context.Context, s bench.Setting) (bench.Cluster, error) {
		out, err := h.start(ctx, s, log)
		if err != nil {
			return nil, config.Named(err, mooncakeNames)
		}
		return out, nil
	}
}

func (h hardware) start(ctx context.Context, s bench.Setting, log io.Writer) (*children, error) {
	spec := h.Spec
	spec.Log, spec.Proxy.Handoff, spec.Node.Chunked = log, s.Handoff, s.Chunked
	if s.Mode == bench.ModeNonDisagg {
		spec.Prefill, spec.Decode, spec.Nondisagg, spec.Proxy.Handoff, spec.Link, spec.Node.Rails = 0, 0, 1, "", "", nil
		return startChildren(ctx, spec, "")
	}
	specs, why, err := h.carrier(s)
	if err != nil {
		return nil, err
	}
	spec.Link, spec.Node.Rails = h.linkOf(s), specs
	return startChildren(ctx, spec, why)
}

// children are a cluster of child processes with what its rows are labelled by. Close ends them.
type children struct {
	*cluster.Cluster
	link bench.Link // says what is measured, paced or modelled
}

// startChildren starts a cluster of processes, and labels it by what is modelled there, on which
// GPU, and what carries the KV if it moves any; see describe.
func startChildren(ctx context.Context, spec cluster.Spec, why string) (*children, error) {
	out := &children{link: bench.Link{Clock: "real", Compute: "modelled"}}
	link, err := spec.PacedLink()
	if err != nil {
		return nil, err
	}
	if spec.MovesKV() {
		out.describe(link, spec.Node.Rails, why)
	} else {
		record := spec.Record()
		out.link.Transfer, out.link.Label = "none", "compute modelled ("+record.GPU+"), no KV transfer"
	}
	if out.Cluster, err = cluster.Start(ctx, spec); err != nil {
		return nil, err
	}
	return out, nil
}

// describe says what carries the KV: rails, the daemons' default if none is named, for the
// reason why if they are not the setting's own, paced to a link or as they are.
func (c *children) describe(link *pacing.Link, specs []string, why string) {
	rail := strings.Join(specs, ",")
	if rail == "" || rail == node.DefaultRail {
		rail = "tcp/loopback"
	}
	c.link.Rail, c.link.Transfer = rail, "measured"
	if why != "" {
		rail += " (" + why + ")"
	}
	c.link.Label = "compute modelled, transfer measured on " + rail
	if link != nil {
		c.link.Transfer, c.link.PacedTo = "paced", link.BytesPerSecond
		c.link.Label = fmt.Sprintf("compute modelled, transfer on %s paced to %.2f GB/s", rail, link.BytesPerSecond/1e9)
		if link.Name != "" {
			c.link.Label += " (" + link.Name + ")"
		}
	}
}

// Pids are the process ids of the daemons, for the CPU time that they took from others or
// others from them.
func (c *children) Pids() (pids []int) {
	for _, p := range c.Processes() {
		pids = append(pids, p.Pid())
	}
	return pids
}

func (c *children) Link() *bench.Link { return &c.link }

// Label is the same in words.
func (c *children) Label() string { return c.link.Label }
