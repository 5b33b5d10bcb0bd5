package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"kvferry/bench"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/node"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// warmMiB is what the burst of 1024/q2 holds at once on the prefill node, 20
// prompts of 66 MB, and some.
const warmMiB = 2048

// A hardware is what the nodes of an embedded cluster are given.
type hardware struct {
	profile string // its name
	costs   *engine.Profile
	link    string // instead of each setting's, if it is not empty
	rail    string // instead of each setting's, if it is not empty
}

// carrier is the link and the rail of a setting that moves KV. Where its rail is not to be had, it is
// loopback, and why says so.
func (h hardware) carrier(s bench.Setting) (link *transport.Link, rail, why string, err error) {
	if link, err = node.ResolveLink(h.costs, h.linkOf(s)); err != nil {
		return nil, "", "", err
	}
	rail = s.Rail
	if h.rail != "" {
		rail = h.rail
	}
	r, err := rails.Open(rail, rails.Options{Logger: slog.New(slog.DiscardHandler)})
	switch {
	case err == nil:
		return link, rail, "", r.Close()
	case h.rail != "":
		return nil, "", "", err
	}
	return link, node.DefaultRail, err.Error(), nil
}

func (h hardware) linkOf(s bench.Setting) string {
	if h.link != "" {
		return h.link
	}
	return s.Link
}

// embedded is the Starter of clusters that are child processes of kvbench. An error
// says what is wrong with the link.
func embedded(h hardware, log io.Writer) (bench.Starter, error) {
	for _, s := range bench.Settings() {
		if _, err := node.ResolveLink(h.costs, h.linkOf(s)); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, s bench.Setting) (bench.Cluster, error) {
		cfg := cluster.Config{Profile: h.profile, Handoff: s.Handoff, Chunked: s.Chunked, WarmMiB: warmMiB, Log: log}
		out := &children{link: bench.Link{Clock: "real", Compute: "modelled"}}
		if s.Mode == bench.ModeNonDisagg {
			cfg.Nondisagg = 1
			out.link.Transfer, out.link.Label = "none", "compute modelled ("+h.costs.GPU+"), no KV transfer"
		} else {
			link, rail, why, err := h.carrier(s)
			if err != nil {
				return nil, err
			}
			cfg.Prefill, cfg.Decode, cfg.Link, cfg.Rail = 1, 1, h.linkOf(s), rail
			out.describe(link, rail, why)
		}
		c, err := cluster.Start(ctx, cfg)
		if err != nil {
			return nil, err
		}
		out.Cluster = c
		return out, nil
	}, nil
}

type children struct {
	*cluster.Cluster
	link bench.Link
}

// describe says what carries the KV: a rail, for the reason why if it is not the
// setting's own, paced to a link or as it is.
func (c *children) describe(link *transport.Link, rail, why string) {
	if rail == node.DefaultRail {
		rail = "tcp/loopback"
	}
	c.link.Rail, c.link.Transfer = rail, "measured"
	if why != "" {
		rail += " (" + why + ")"
	}
	c.link.Label = "compute modelled, transfer measured on " + rail
	if link != nil {
		c.link.Transfer, c.link.PacedTo = "paced", link.BytesPerSecond
		c.link.Label = fmt.Sprintf("compute modelled, transfer on %s paced to %.2f GB/s (%s)", rail, link.BytesPerSecond/1e9, link.Name)
	}
}

// Pids are the daemons'.
func (c *children) Pids() (pids []int) {
	for _, p := range c.Processes() {
		pids = append(pids, p.Pid())
	}
	return pids
}

func (c *children) Link() *bench.Link { return &c.link }
