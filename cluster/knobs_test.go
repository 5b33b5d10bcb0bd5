package cluster

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/node"
	"kvferry/proxy"
)

// samples are values that are no defaults, of the types of knobs and of some by name.
var samples = map[string]string{
	"int": "3", "int64": "3", "float64": "1.5", "bool": "true", "duration": "4s", "string": "x", "stringSlice": "a,b", "strings": "a,b", "name=path": "a=8,b=16", "rails": "cma",
	"lengths": "none", "role": "decode",
}

// flagsOf returns a flag set with the knobs of a role.
func flagsOf(s *Spec, role knob.Roles) *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, g := range Knobs.For(role).Flags(s, role) {
		fs.AddFlagSet(g.Flags)
	}
	return fs
}

// TestKnobs: each knob is in the flags of its roles, in a daemon's command line, in JSON and in
// differences, and each of these brings back the value.
func TestKnobs(t *testing.T) {
	for _, role := range []knob.Roles{Proxy, Node, Serve, Bench, Sim} {
		table := Knobs.For(role)
		for i, k := range table {
			if table.Lookup(k.Name).Help != k.Help {
				t.Errorf("two knobs of one role are called %s", k.Name)
			}
			var s, back Spec
			sample := samples[k.Value(&s).Type()]
			if k.Values != nil && k.Value(&s).Type() == "string" {
				for _, v := range k.Values() {
					if v != k.Text(&s) && !strings.HasSuffix(v, "=") {
						sample = v
					}
				}
			}
			if err := table.Set(&s, k.Name, sample); err != nil {
				t.Errorf("%s: %v", k.Name, err)
				continue
			}
			if k.Name == "both" || k.Needs != "" || k.Unused != nil && k.Unused(&s) != "" {
				continue // it has no effect by itself
			}
			args := table.Args(&s)
			if err := flagsOf(&back, role).Parse(args); err != nil || !reflect.DeepEqual(s, back) {
				t.Errorf("%s: %q gives %v", k.Name, args, err)
			}
			text, err := json.Marshal(table.JSON(&s))
			var settings knob.Settings
			if err == nil {
				err = json.Unmarshal(text, &settings)
			}
			if err == nil {
				back, err = table.Parse(settings)
			}
			if err != nil || table[i].Text(&back) != table[i].Text(&s) {
				t.Errorf("%s: %s gives %v", k.Name, text, err)
			}
			if diff := table.Diff(&s, &Spec{}); !slices.Contains(diff, k.Name) {
				t.Errorf("%s: differs in %q", k.Name, diff)
			}
			if k.Help == "" || k.Group == "" || len(k.Fields) == 0 {
				t.Errorf("%s has no help, group or fields", k.Name)
			}
		}
	}
}

// TestFieldsHaveKnobs: every field of the daemons' configurations is set by a knob that their
// programs take, unless it is for programs.
func TestFieldsHaveKnobs(t *testing.T) {
	for _, c := range []struct {
		of     any
		role   knob.Roles
		inside []string // fields that no knob sets, or several
	}{
		{node.Config{}, Node, []string{"Tiers", "Allocate", "NewScheduler", "NewExecutor", "Logger", "Clock", "Settings"}},
		{proxy.Config{}, Proxy, []string{"Membership", "Logger", "Settings"}},
	} {
		names := Knobs.For(c.role).Names()
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.of)) {
			if f.IsExported() && names[f.Name] == "" && !slices.Contains(c.inside, f.Name) {
				t.Errorf("%T.%s has no knob", c.of, f.Name)
			}
		}
	}
}

// TestZeroFlags: 0 on a command line is none, what is left out has its default.
func TestZeroFlags(t *testing.T) {
	for _, c := range []struct {
		args  []string
		drain time.Duration
		warm  int
	}{
		{nil, 0, 0},
		{[]string{"--drain-timeout", "0s", "--kv-warm-mib", "0"}, -1, -1},
		{[]string{"--drain-timeout", "2s", "--kv-warm-mib", "3"}, 2 * time.Second, 3 << 20},
	} {
		var s Spec
		if err := flagsOf(&s, Node).Parse(c.args); err != nil {
			t.Fatal(err)
		}
		cfg, err := s.NodeConfig()
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
	err = config.Named(node.Config{Profile: p}.Validate(), Names)
	if err == nil || !strings.Contains(err.Error(), "--id: none given") || !strings.Contains(err.Error(), "--proxy: none given") {
		t.Errorf("%v", err)
	}
}

func TestLogger(t *testing.T) {
	var b strings.Builder
	log, err := (&Spec{LogLevel: "warn", LogFormat: "json"}).logger(&b)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	if got := b.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud"`) {
		t.Error(got)
	}
	for _, s := range []Spec{{LogLevel: "all"}, {LogFormat: "xml"}} {
		if _, err := s.logger(&b); err == nil || !strings.HasPrefix(config.Named(err, Names).Error(), "--log-") {
			t.Errorf("%+v: %v", s, err)
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
		var s Spec
		if err := flagsOf(&s, Proxy).Parse(c.args); err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		cfg := s.ProxyConfig().WithDefaults()
		if !slices.Equal(cfg.CORS.Origins, c.origins) || !slices.Equal(cfg.ServedNames, c.names) || !slices.Equal(cfg.LoRAs, c.loras) {
			t.Errorf("%q: origins %q, names %q, adapters %v", c.args, cfg.CORS.Origins, cfg.ServedNames, cfg.LoRAs)
		}
	}
	for _, args := range [][]string{{"--allowed-origins", `["a"`}, {"--lora-modules", "sql"}, {"--lora-modules", "=x"}, {"--eos", "mean=4"}} {
		if err := flagsOf(new(Spec), Proxy).Parse(args); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestServerInfoHasSettings: a proxy and its nodes say the values of their knobs, as their command
// lines gave them.
func TestServerInfoHasSettings(t *testing.T) {
	t.Parallel()
	spec := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{}), Proxy: proxy.Config{ConditionalDisaggregation: 7, MaxQueue: 99}, Node: node.Config{KVBlocks: 64, PrefixCaching: true}}
	c := start(t, spec)
	resp, err := c.http.Get(c.URL() + "/server_info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var said struct {
		Kvferry struct {
			Settings knob.Settings
			Nodes    []struct{ Settings knob.Settings }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		t.Fatal(err)
	}
	p, err := Knobs.For(Proxy).Parse(said.Kvferry.Settings)
	if err != nil || p.Proxy.ConditionalDisaggregation != 7 || p.Proxy.MaxQueue != 99 {
		t.Errorf("%v: %v", said.Kvferry.Settings, err)
	}
	if len(said.Kvferry.Nodes) != 2 {
		t.Fatalf("%+v", said)
	}
	for _, of := range said.Kvferry.Nodes {
		n, err := Knobs.For(Node).Parse(of.Settings)
		if err != nil || n.Node.KVBlocks != 64 || !n.Node.PrefixCaching || n.Node.ID == "" {
			t.Errorf("%v: %v", of.Settings, err)
		}
	}
}
