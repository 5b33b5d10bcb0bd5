package daemon

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/proxy"
)

// TestFlagNames: every field of the daemons' configurations is set by a flag that is there,
// unless it is for programs; and every flag sets a field.
func TestFlagNames(t *testing.T) {
	var nodeFlags NodeFlags
	nodeSet := pflag.NewFlagSet("", pflag.ContinueOnError)
	nodeFlags.AddFlags(nodeSet)
	var proxyFlags ProxyFlags
	proxySet := pflag.NewFlagSet("", pflag.ContinueOnError)
	proxyFlags.AddFlags(proxySet)
	for _, c := range []struct {
		of     any
		set    *pflag.FlagSet
		names  map[string]string
		inside []string // fields that no flag sets, or several
	}{
		{node.Config{}, nodeSet, NodeFlagNames, []string{"Role", "Tiers", "Allocate", "NewScheduler", "NewExecutor", "Logger", "Clock"}},
		{proxy.Config{}, proxySet, ProxyFlagNames, []string{"Membership", "Logger"}},
	} {
		named := map[string]bool{}
		for field, flag := range c.names {
			if c.set.Lookup(strings.TrimPrefix(flag, "--")) == nil {
				t.Errorf("%T.%s: there is no flag %s", c.of, field, flag)
			}
			named[flag] = true
		}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.of)) {
			if f.IsExported() && c.names[f.Name] == "" && !slices.Contains(c.inside, f.Name) {
				t.Errorf("%T.%s has no flag", c.of, f.Name)
			}
		}
		c.set.VisitAll(func(f *pflag.Flag) {
			if !named["--"+f.Name] {
				t.Errorf("--%s sets no field of %T", f.Name, c.of)
			}
		})
	}
}

// TestZeroFlags: 0 on a command line is none, what is left out has its default.
func TestZeroFlags(t *testing.T) {
	for _, c := range []struct {
		args  []string
		drain time.Duration
		warm  int
	}{
		{nil, 30 * time.Second, 512 << 20},
		{[]string{"--drain-timeout", "0s", "--kv-warm-mib", "0"}, -1, -1},
		{[]string{"--drain-timeout", "2s", "--kv-warm-mib", "3"}, 2 * time.Second, 3 << 20},
	} {
		var f NodeFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddFlags(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		cfg, err := f.Config()
		if err != nil || cfg.DrainTimeout != c.drain || cfg.WarmBytes != c.warm {
			t.Errorf("%q: %v, %d, %v", c.args, cfg.DrainTimeout, cfg.WarmBytes, err)
		}
	}
}

// TestNamedFaults: what a node's configuration gets wrong has the name of a flag.
func TestNamedFaults(t *testing.T) {
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	err = config.Named(node.Config{Profile: p}.Validate(), NodeFlagNames)
	if err == nil || !strings.Contains(err.Error(), "--id: none given") || !strings.Contains(err.Error(), "--proxy: none given") {
		t.Errorf("%v", err)
	}
}

func TestLogFlags(t *testing.T) {
	var b strings.Builder
	log, err := (&LogFlags{Level: "warn", Format: "json"}).Logger(&b)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	if got := b.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud"`) {
		t.Error(got)
	}
	for _, f := range []LogFlags{{Level: "all", Format: "text"}, {Level: "info", Format: "xml"}} {
		if _, err := f.Logger(&b); err == nil || !strings.HasPrefix(err.Error(), "--log-") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestListFlags: lists as vLLM takes them, and as everybody writes them.
func TestListFlags(t *testing.T) {
	for _, c := range []struct {
		args    []string
		origins []string
		names   []string
		loras   []proxy.LoRA
	}{
		{nil, []string{"*"}, nil, nil},
		{[]string{"--allowed-origins", `["https://a.example", "https://b.example"]`, "--served-model-name", "a,b"}, []string{"https://a.example", "https://b.example"}, []string{"a", "b"}, nil},
		{
			[]string{"--allowed-origins", "x,y", "--allowed-origins", "z", "--lora-modules", "sql=/a,chat=b/c=d", "--lora-modules", "x=y"},
			[]string{"x", "y", "z"},
			nil,
			[]proxy.LoRA{{Name: "sql", Path: "/a"}, {Name: "chat", Path: "b/c=d"}, {Name: "x", Path: "y"}},
		},
		{[]string{"--allowed-origins", ""}, []string{}, nil, nil},
	} {
		var f ProxyFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddFlags(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		cfg := f.Config().WithDefaults()
		if !slices.Equal(cfg.CORS.Origins, c.origins) || !slices.Equal(cfg.ServedNames, c.names) || !slices.Equal(cfg.LoRAs, c.loras) {
			t.Errorf("%q: origins %q, names %q, adapters %v", c.args, cfg.CORS.Origins, cfg.ServedNames, cfg.LoRAs)
		}
	}
	for _, args := range [][]string{{"--allowed-origins", `["a"`}, {"--lora-modules", "sql"}, {"--lora-modules", "=x"}, {"--eos", "mean=4"}} {
		var f ProxyFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddFlags(fs)
		if err := fs.Parse(args); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
