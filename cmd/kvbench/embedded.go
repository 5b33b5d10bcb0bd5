package main

import (
	"context"
	"fmt"
	"io"

	"kvferry/bench"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/node"
)

// warmMiB is what the burst of 1024/q2 holds at once on the prefill node, 20
// prompts of 66 MB, and some.
const warmMiB = 2048

// embedded is the Starter of clusters that are child processes of kvbench, with
// profile p of that name. An error says what is wrong with the link.
func embedded(profile string, p *engine.Profile, link string, log io.Writer) (bench.Starter, error) {
	resolve := func(s bench.Setting) string {
		if link != "" {
			return link
		}
		return s.Link
	}
	for _, s := range bench.Settings() {
		if _, err := node.ResolveLink(p, resolve(s)); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, s bench.Setting) (bench.Cluster, error) {
		cfg := cluster.Config{Profile: profile, Handoff: s.Handoff, Link: resolve(s), Chunked: s.Chunked, WarmMiB: warmMiB, Log: log}
		if s.Mode == bench.ModeNonDisagg {
			cfg.Nondisagg, cfg.Link = 1, ""
		} else {
			cfg.Prefill, cfg.Decode = 1, 1
		}
		l, err := node.ResolveLink(p, cfg.Link)
		if err != nil {
			return nil, err
		}
		c, err := cluster.Start(ctx, cfg)
		if err != nil {
			return nil, err
		}
		out := &children{Cluster: c, link: bench.Link{
			Clock: "real", Compute: "modelled", Transfer: "none", Label: "compute modelled (" + p.GPU + "), no KV transfer",
		}}
		switch {
		case s.Mode == bench.ModeNonDisagg:
		case l == nil:
			out.link.Transfer, out.link.Label = "measured", "compute modelled, transfer measured on tcp/loopback"
		default:
			out.link.Transfer, out.link.PacedTo = "paced", l.BytesPerSecond
			out.link.Label = fmt.Sprintf("compute modelled, transfer on tcp/loopback paced to %.2f GB/s (%s)", l.BytesPerSecond/1e9, l.Name)
		}
		return out, nil
	}, nil
}

type children struct {
	*cluster.Cluster
	link bench.Link
}

func (c *children) Link() bench.Link { return c.link }
