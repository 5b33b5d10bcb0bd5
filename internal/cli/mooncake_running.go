package cli

import (
	"context"

	"kvferry/bench"
	"kvferry/engine"
	"kvferry/node"
	"kvferry/proxy/serverinfo"
)

// running is a Starter for daemons that somebody else started: every cell goes
// to the same proxy.
func running(url string) bench.Starter {
	return func(context.Context, bench.Setting) (bench.Cluster, error) { return runningCluster(url), nil }
}

// A runningCluster is the URL of one that is not ours: it is neither started nor ended here.
type runningCluster string

func (c runningCluster) URL() string { return string(c) }

// Link is nil: nothing can be seen from here that the server does not say.
func (c runningCluster) Link() *bench.Link { return nil }

func (c runningCluster) Close() error { return nil }

// nodeLink reads what a node says of its link: as --link takes it. A name that the
// profile does not have is a name all the same.
func nodeLink(p *engine.Profile) func(string) serverinfo.Link {
	return func(text string) serverinfo.Link {
		l, err := node.ResolveLink(p, text)
		switch {
		case err != nil:
			return serverinfo.Link{Name: text}
		case l == nil:
			return serverinfo.Link{Native: text == "native"}
		}
		return serverinfo.Link{Name: l.Name, BytesPerSecond: l.BytesPerSecond}
	}
}
