package cli

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"

	"kvferry/cluster"
	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// clusterFlags describe the cluster of kvferry bench and kvferry sim, in virtual time or as
// processes of this machine.
type clusterFlags struct{ cluster.Spec }

// newClusterFlags returns the cluster of a command line that says nothing of it.
func newClusterFlags() clusterFlags {
	return clusterFlags{cluster.Spec{Prefill: 1, Decode: 1, Link: "tcp"}}
}

// clusterKnobs are the flags of the cluster that is measured, of its model, or of either.
var clusterKnobs = cluster.Knobs.For(cluster.Bench | cluster.Sim)

// unmeasuredLink is --link for a profile that no link was measured for, such as a datasheet's.
const unmeasuredLink = "100gbit"

// settle decides which of the two kinds of cluster the flags mean, and refuses those that have no
// effect in it.
func (f *clusterFlags) settle(changed func(flag string) bool, bad *config.Faults) {
	p, err := f.Engine()
	bad.Check("", config.Named(err, cluster.Names))
	if err == nil && len(p.Links) == 0 && !changed("link") {
		f.Link = unmeasuredLink
	}
	switch {
	case changed("both") && (changed("prefill") || changed("decode")):
		bad.Check("--both", errKinds)
	case changed("both"):
		f.Prefill, f.Decode = 0, 0
	}
	*bad = append(*bad, clusterKnobs.Check(&f.Spec, changed)...)
}

// errKinds is why --both does not go with --prefill and --decode.
var errKinds = errors.New("a cluster has prefill and decode nodes, or nodes that do both: leave one kind out")

// without returns the knobs that programs of some roles do not take.
func without(roles knob.Roles) (left knob.Table[cluster.Spec]) {
	return slices.DeleteFunc(slices.Clone(clusterKnobs), func(k knob.Knob[cluster.Spec]) bool { return k.Roles&roles != 0 })
}

// refuse says of each of these flags that was given why it cannot be, and what would do.
func refuse(bad *config.Faults, changed func(flag string) bool, why string, flags ...string) {
	for _, flag := range flags {
		if changed(flag) {
			bad.Check("--"+flag, errors.New(why))
		}
	}
}

// addKnobs adds the flags of knobs, which set s.
func addKnobs(fs *pflag.FlagSet, knobs knob.Table[cluster.Spec], s *cluster.Spec, roles knob.Roles) {
	for _, g := range knobs.Flags(s, roles) {
		fs.AddFlagSet(g.Flags)
	}
}
