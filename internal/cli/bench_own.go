package cli

import (
	"context"
	"io"

	"kvferry/bench/serve"
	"kvferry/cluster"
	"kvferry/internal/config"
)

// starter starts the cluster as processes. What its daemons log goes to log.
func (f *clusterFlags) starter(log io.Writer) func(context.Context) (serve.Cluster, error) {
	return func(ctx context.Context) (serve.Cluster, error) {
		spec := f.Spec
		spec.Log = log
		out, err := startChildren(ctx, spec, "")
		if err != nil {
			return nil, config.Named(err, cluster.Names)
		}
		return out, nil
	}
}
