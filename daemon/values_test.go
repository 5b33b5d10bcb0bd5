package daemon

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kvferry/proto"
)

// TestValues: what completion offers is what the daemons take, and all of it: their errors
// list the same names.
func TestValues(t *testing.T) {
	values := Values()
	for name, all := range values {
		if len(all) < 2 {
			t.Errorf("--%s: %q", name, all)
		}
		for _, v := range all {
			// What goes on is completed here.
			v = strings.Replace(v, "rate=", "rate=1GB/s", 1)
			if strings.HasSuffix(v, "/") {
				v += "eth0"
			}
			if err := taken(name, v); err != nil {
				t.Errorf("--%s %s: %v", name, v, err)
			}
		}
		err := taken(name, "bananas")
		if err == nil {
			t.Errorf("--%s bananas is taken", name)
			continue
		}
		for _, v := range all {
			if !strings.Contains(err.Error(), v) {
				t.Errorf("--%s: %q does not name %s", name, err, v)
			}
		}
	}
	for _, c := range []struct {
		field string
		names []string
	}{{"Handoff", values["handoff"]}, {"Placement", values["placement"]}, {"Mode", values["mode"]}} {
		_, listed, _ := strings.Cut(taken(strings.ToLower(c.field), "bananas").Error(), "use one of ")
		if got := strings.Split(listed, ", "); !slices.Equal(got, c.names) {
			t.Errorf("%s: completion offers %q, the proxy takes %q", c.field, c.names, got)
		}
	}
}

// taken is what a daemon that has the flag says of a value.
func taken(flag, value string) error {
	var p ProxyFlags
	var n NodeFlags
	var l LogFlags
	proxySet, nodeSet := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	p.AddFlags(proxySet)
	l.AddFlags(proxySet)
	n.AddFlags(nodeSet)
	set, check := proxySet, func() error {
		if _, err := l.Logger(io.Discard); err != nil {
			return err
		}
		return p.Config().Validate()
	}
	if nodeSet.Lookup(flag) != nil {
		set, check = nodeSet, func() error {
			cfg, err := n.Config()
			if err != nil {
				return err
			}
			cfg.ID, cfg.Role = "n", proto.Role_ROLE_DECODE
			return cfg.Validate()
		}
	}
	if err := set.Set(flag, value); err != nil {
		return err
	}
	return check()
}
