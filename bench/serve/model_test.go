package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/node"
	"kvferry/proxy"
)

// TestModelIsNamed: the table says of a modelled cluster what it is.
func TestModelIsNamed(t *testing.T) {
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Spec{Scheduler: engine.SGLang, Nondisagg: 4, Node: node.Config{PrefixCaching: true, KVBlocks: 1000}}
	if got, want := InWords(c), engine.DefaultProfile+" ("+p.GPU+"), 4 nondisagg, placement least-loaded, scheduler sglang, prefix caching on, 1000 KV blocks of "; !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
	c = cluster.Spec{Prefill: 1, Decode: 2, Proxy: proxy.Config{Handoff: "pull"}}
	if got := InWords(c); !strings.Contains(got, "2 decode, hand-off pull, this machine's network, placement least-loaded, scheduler ") {
		t.Error(got)
	}
	c.Link = "1GB/s"
	cfg := configOf(t, Model(c))
	cfg.Load.Requests = 3
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(cfg.Out, document.TableFile)); err != nil || !strings.Contains(string(text), InWords(c)) {
		t.Errorf("%v\n%s", err, text)
	}
}
