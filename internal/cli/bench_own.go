package cli

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"

	"kvferry/bench/document"
	"kvferry/bench/serve"
	"kvferry/cluster"
	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// ownFlags are what a cluster of processes has besides clusterFlags.
type ownFlags struct {
	rails     rails.Specs
	warm      int
	less      string // why warm is less than its default; empty if it is not
	collector string // of the proxy's spans; none if empty
}

// ownNames are the flags that set what cluster.Config has and a simulated cluster has not.
var ownNames = map[string]string{"Link": "--link", "Rails": "--rail", "WarmMiB": "--kv-warm-mib", "WarmBytes": "--kv-warm-mib"}

// daemons is the cluster that the flags say, as child processes of kvferry.
func (f *clusterFlags) daemons(own *ownFlags, log io.Writer) cluster.Config {
	c, link := &f.nodes, f.link
	if c.Nondisagg > 0 && !c.Migration.Migrates() {
		link = "native" // they move no KV, whatever links the profile has
	}
	return cluster.Config{
		Prefill: c.Prefill, Decode: c.Decode, Nondisagg: c.Nondisagg, Chunked: c.Chunked, Handoff: c.Handoff, Placement: c.Placement, Migration: c.Migration,
		ConditionalDisaggregation: c.ConditionalDisaggregation, DecodeLinks: f.decodeLinks,
		Profile: f.profile, Link: link, Rails: own.rails, KVBlocks: c.KVBlocks, WarmMiB: own.warm, PrefixCaching: c.PrefixCaching,
		Tiers: c.Tiers, OTLPTracesEndpoint: own.collector, LoRAs: cluster.LoRAs(c.Ranks), Log: log,
	}
}

// starter starts that cluster. A profile whose context was made longer is written into dir for
// its daemons.
func (f *clusterFlags) starter(own *ownFlags, dir string, log io.Writer) func(context.Context) (serve.Cluster, error) {
	return func(ctx context.Context) (serve.Cluster, error) {
		cfg := f.daemons(own, log)
		if p := f.nodes.Fitted(); p != f.nodes.Profile {
			cfg.Profile = filepath.Join(dir, "profile.json")
			if err := document.WriteFiles(dir, document.File{Name: "profile.json", Write: func(w io.Writer) error { return json.NewEncoder(w).Encode(p) }}); err != nil {
				return nil, err
			}
		}
		var link *pacing.Link
		var err error
		if cfg.Nondisagg == 0 || cfg.Migration.Migrates() {
			if link, err = node.ResolveLink(f.nodes.Profile, cfg.Link); err != nil {
				return nil, err
			}
		}
		out, err := startChildren(ctx, cfg, f.nodes.Profile.GPU, link, "")
		if err != nil {
			return nil, config.Named(err, joined(clusterNames, ownNames))
		}
		return out, nil
	}
}
