package knob

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
)

// settings is a configuration with a value of each kind.
type settings struct {
	Nodes  int
	Seed   uint64
	Rate   float64
	Cached bool
	Mode   string
	Period time.Duration
	Rails  []string
	Retry  int // of config.OrNone
}

const (
	server Roles = 1 << iota
	client
)

var table = Table[settings]{
	{Name: "nodes", Aliases: []string{"num-nodes"}, Group: "cluster", Default: "1", Roles: server, Positive: true, Fields: []string{"Nodes"}, Value: Int(func(s *settings) *int { return &s.Nodes })},
	{Name: "seed", Group: "load", Default: "0", Roles: client, Value: Uint64(func(s *settings) *uint64 { return &s.Seed })},
	{Name: "rate", Group: "load", Roles: client, First: client, Value: Float(func(s *settings) *float64 { return &s.Rate })},
	{Name: "cached", Group: "cluster", Default: "false", Roles: server | client, Value: Bool(func(s *settings) *bool { return &s.Cached })},
	{Name: "mode", Group: "cluster", Default: "pull", Roles: server, Value: Text(func(s *settings) *string { return &s.Mode })},
	{
		Name: "cache-period", Group: "cluster", Default: "1s", Roles: server, Needs: "cached",
		Value: Duration(func(s *settings) *time.Duration { return &s.Period }),
	},
	{Name: "rail", Group: "cluster", Roles: server, Value: List(func(s *settings) *[]string { return &s.Rails })},
	{
		Name: "retry", Group: "cluster", Default: "3", Roles: server, Fields: []string{"Retry"}, Value: IntOrNone(func(s *settings) *int { return &s.Retry }),
		Unused: func(s *settings) string {
			if s.Mode == "push" {
				return "push does not retry: leave it out"
			}
			return ""
		},
	},
}

var full = settings{
	Nodes: 4, Seed: 7, Rate: 0.1, Cached: true, Mode: "layerwise", Period: 90 * time.Second,
	Rails: []string{"tcp/eth0", `tcp/eth1,rate="2gbit"`}, Retry: config.OrNone(0),
}

// TestArgs sends a configuration to another process's flags.
func TestArgs(t *testing.T) {
	for name, s := range map[string]settings{"zero": {}, "full": full} {
		t.Run(name, func(t *testing.T) {
			args := table.Args(&s)
			if name == "zero" && len(args) != 0 {
				t.Errorf("the defaults are the flags %q", args)
			}
			var got settings
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			for _, g := range table.Flags(&got, server) {
				fs.AddFlagSet(g.Flags)
			}
			if err := fs.Parse(args); err != nil {
				t.Fatalf("%q: %v", args, err)
			}
			if !reflect.DeepEqual(got, s) {
				t.Errorf("%q gives %+v, not %+v", args, got, s)
			}
		})
	}
}

// TestJSON sends a configuration through a record.
func TestJSON(t *testing.T) {
	raw, err := json.Marshal(table.JSON(&full))
	if err != nil {
		t.Fatal(err)
	}
	var from Settings
	if err := json.Unmarshal(raw, &from); err != nil {
		t.Fatal(err)
	}
	got, err := table.Parse(from)
	if err != nil || !reflect.DeepEqual(got, full) {
		t.Errorf("%s is %+v, not %+v: %v", raw, got, full, err)
	}

	raw, err = json.Marshal(table.JSON(&settings{Mode: "push"}))
	if want := `{"cached":false,"mode":"push","nodes":1,"seed":0}`; err != nil || string(raw) != want {
		t.Errorf("%s, not %s: settings without an effect are left out, and those whose default depends", raw, want)
	}
}

// TestParseFaults wants every setting that is wrong named, always in the same order.
func TestParseFaults(t *testing.T) {
	from := Settings{"nodes": "0", "ports": "3", "rate": "fast", "cache_period": 5.0, "retry": "-1"}
	for range 20 {
		_, err := table.Parse(from)
		want := []string{"cache_period", "nodes", "ports", "rate", "retry"}
		at := -1
		for _, name := range want {
			i := strings.Index(err.Error(), name+":")
			if i <= at {
				t.Fatalf("%q stands at %d of %v", name, i, err)
			}
			at = i
		}
	}
}

func TestCheck(t *testing.T) {
	s := settings{Mode: "push"}
	given := func(name string) bool { return name == "retry" || name == "mode" }
	if err := table.Check(&s, given).Err(""); err == nil || !strings.Contains(err.Error(), "--retry: push does not retry: leave it out") {
		t.Errorf("--retry without an effect: %v", err)
	}
	s.Mode = "pull"
	if err := table.Check(&s, given).Err(""); err != nil {
		t.Errorf("--retry with an effect: %v", err)
	}
}

func TestDiff(t *testing.T) {
	for _, tt := range []struct {
		a, b settings
		want []string
	}{
		{settings{}, settings{}, nil},
		{settings{}, settings{Nodes: 1, Mode: "pull"}, nil}, // the defaults, written out
		{settings{Period: time.Minute}, settings{}, nil},    // it needs another
		{settings{Cached: true, Period: time.Minute}, settings{Cached: true}, []string{"cache-period"}},
		{settings{Retry: config.OrNone(0)}, settings{}, []string{"retry"}},
	} {
		if got := table.Diff(&tt.a, &tt.b); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v and %+v differ in %q, not %q", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestLookup(t *testing.T) {
	if k := table.Lookup("num-nodes"); k == nil || k.Name != "nodes" || table.Canonical("num-nodes") != "nodes" {
		t.Errorf("an alias finds %v", k)
	}
	if got := table.Canonical("x"); got != "x" || table.Lookup("x") != nil {
		t.Errorf("what no knob is named is %q", got)
	}
	if n := len(table.For(client)); n != 3 {
		t.Errorf("a client takes %d knobs, not seed, rate and cached", n)
	}
	if got := table.Names(); got["Nodes"] != "--nodes" || got["Retry"] != "--retry" || len(got) != 2 {
		t.Errorf("fields are named %v", got)
	}
}
