package load

import (
	"slices"
	"strings"
	"testing"
)

// TestKnobs: each knob has what a command line, its help and its faults need, a name that no other has, and a default
// that it takes itself.
func TestKnobs(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range AllKnobs() {
		if k.Help == "" || len(k.Fields) == 0 || !slices.Contains([]string{AskedGroup, ArrivalsGroup, AdaptersGroup}, k.Group) {
			t.Errorf("%s: help %q, fields %v, group %q", k.Name, k.Help, k.Fields, k.Group)
		}
		for _, name := range append([]string{k.Name}, k.Aliases...) {
			if seen[name] && name != inputLen && name != outputLen {
				t.Errorf("%s is the name of two knobs", name)
			}
			seen[name] = true
		}
		var s Spec
		if k.Default != "" && k.Value(&s).Set(k.Default) == nil && k.Value(&s).String() != k.Default {
			t.Errorf("%s: its default %q is %q", k.Name, k.Default, k.Value(&s).String())
		}
	}
	s := New()
	for _, k := range Kinds() {
		for _, one := range k.Knobs {
			if s.Kind = k.Name; !s.Offers(one.Name) || AllKnobs().Lookup(one.Name).Unused(&s) != "" && !strings.HasPrefix(one.Name, "gsp-zipf") && k.Times != Recorded {
				t.Errorf("%s does not read its own knob %s", k.Name, one.Name)
			}
		}
	}
}

// TestUnread: a knob that a load does not read says why, and what to do instead.
func TestUnread(t *testing.T) {
	for _, c := range []struct {
		s         Spec
		knob, why string
	}{
		{Spec{Kind: ShareGPTName}, "sonnet-input-len", "it is of another dataset than sharegpt: leave one of the two out"},
		{Spec{Kind: ShareGPTName}, "sharegpt-output-len", ""},
		{Spec{Kind: ShareGPTName}, "untimed", "sharegpt has no times of its own: leave it out, requests come at --request-rate"},
		{Spec{Kind: Traced}, "request-rate", "a trace has times of its own: leave it out, or have requests come so instead with --untimed"},
		{Spec{Kind: Traced}, "trace-path", "a trace has times of its own: leave it out, or have requests come so instead with --untimed"},
		{Spec{Kind: Traced, Untimed: true}, "request-rate", ""},
		{Spec{Kind: Traced, Untimed: true}, "speed", "with --untimed requests come at --request-rate, and the trace's times do not count: leave one of the two out"},
		{Spec{Kind: Traced}, "seed", "a trace has its own: leave it or --trace out"},
		{Spec{Kind: "256/q8"}, "request-rate", "256/q8 has its own: leave it or --dataset-name out"},
		{Spec{Kind: "256/q8"}, "random-input-len", "256/q8 has its own: leave it or --dataset-name out"},
		{Spec{}, "speed", "only a trace has a speed: use --request-rate, or name a --trace"},
		{Spec{Kind: "multi-turn"}, "trace-path", "it is of another dataset than multi-turn: leave one of the two out"},
		{Spec{Kind: "multi-turn"}, "dataset-path", ""}, // the tools pass over it
		{Spec{Kind: "no-such-load"}, "speed", ""},      // Validate says which there are
		{Spec{Kind: CustomName, Compat: CompatSGLang}, "custom-output-len", "only vllm bench serve's custom has it: use --sharegpt-output-len and --apply-chat-template, or --compat vllm"},
		{Spec{Kind: SharedPrefixName, SharedPrefix: SharedPrefix{Distribution: "uniform"}}, "gsp-zipf-alpha", "it is for --gsp-group-distribution zipf"},
	} {
		if why := AllKnobs().Lookup(c.knob).Unused(&c.s); why != c.why {
			t.Errorf("%s of %s: %q, want %q", c.knob, c.s.Kind, why, c.why)
		}
	}
}

// TestSetLen: a length that is given for any dataset is that of the kind's own knobs.
func TestSetLen(t *testing.T) {
	s := Spec{Kind: CustomName}
	if err := s.SetLen(outputLen, 7); err != nil || s.Custom.OutputLen != 7 || s.ShareGPT.OutputLen != 7 || s.OutputLen != 0 {
		t.Errorf("%v, %+v", err, s)
	}
	if err := s.SetLen(inputLen, 7); err == nil || err.Error() != "custom has lengths of its own: leave it out" {
		t.Error(err)
	}
}

// TestOptionsOf: options that have no field are those of one Spec and one type.
func TestOptionsOf(t *testing.T) {
	type one struct{ Size int }
	type two struct{ Size int }
	var a, b Spec
	OptionsOf[one](&a).Size = 3
	if OptionsOf[one](&a).Size != 3 || OptionsOf[two](&a).Size != 0 || OptionsOf[one](&b).Size != 0 {
		t.Errorf("%+v, %+v", a.Own, b.Own)
	}
}
