package handoff

import (
	"strings"
	"testing"
)

// TestAll: each hand-off can be carried out, and has a name of its own that Parse knows.
func TestAll(t *testing.T) {
	seen := map[string]bool{"": true}
	for _, h := range All() {
		if err := h.Validate(); err != nil {
			t.Error(err)
		}
		if seen[h.Name] {
			t.Errorf("%q is named twice", h.Name)
		}
		seen[h.Name] = true
		if got, err := Parse(h.Name); err != nil || got != h {
			t.Errorf("%q: %+v, %v", h.Name, got, err)
		}
		for _, l := range []Leg{PrefillLeg, DecodeLeg} {
			if h.Offers(l) == h.Moves(l) {
				t.Errorf("%v: the %v leg offers: %v, moves: %v", h, l, h.Offers(l), h.Moves(l))
			}
		}
		if h.Offers(FullLeg) || h.Moves(FullLeg) {
			t.Errorf("%v has part of a request that one node carries alone", h)
		}
	}
	if last := len(all) - 1; !strings.HasSuffix(List(), ", "+all[last-1].Name+" or "+all[last].Name) {
		t.Errorf("%q", List())
	}
}

func TestNone(t *testing.T) {
	if h, err := Parse(""); err != nil || h != None || None.Offers(PrefillLeg) || None.Moves(DecodeLeg) || None.String() != "" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := Parse("teleport"); err == nil || !strings.Contains(err.Error(), List()) {
		t.Errorf("%v", err)
	}
}

// TestValidate: what the nodes could not carry out is said by its property.
func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Handoff){
		"no name":                 func(h *Handoff) { h.Name = "" },
		"First is full":           func(h *Handoff) { h.First = FullLeg },
		"FirstToken is leg(7)":    func(h *Handoff) { h.FirstToken = 7 },
		"Parts is 9":              func(h *Handoff) { h.Parts = 9 },
		"First must be DecodeLeg": func(h *Handoff) { h.Parts = Layers },
		"InStep must be true":     func(h *Handoff) { h.Parts = Tensors },
		"Parts must be Tensors":   func(h *Handoff) { h.InStep = true },
	} {
		h := Pull
		change(&h)
		if err := h.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", h, err, want)
		}
	}
}

func TestStrings(t *testing.T) {
	for want, got := range map[string]string{"full": FullLeg.String(), "decode": DecodeLeg.String(), "leg(9)": Leg(9).String(), "tensors": Tensors.String(), "parts(9)": Parts(9).String()} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
