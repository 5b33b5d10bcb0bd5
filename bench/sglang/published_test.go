package sglang

import (
	"math"
	"slices"
	"strings"
	"testing"

	"kvferry/engine"
)

// The loads are those of the records, to the token.
func TestLoads(t *testing.T) {
	t.Parallel()
	for _, p := range Runs() {
		l, err := p.asked(&Config{}, &engine.Profile{Vocab: 32000})
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		got, want := Counts{Retokenized: p.Counts.Retokenized, Peak: p.Counts.Peak}, p.Counts
		want.Generated = p.generated()
		for {
			r, ok, err := l.Source.Next()
			if err != nil {
				t.Fatalf("%s: %v", p.Name(), err)
			}
			if !ok {
				break
			}
			got.Successful++
			got.Input += len(r.Prompt)
			got.Generated += r.MaxTokens
		}
		if got != want {
			t.Errorf("%s: a load of %+v, and the record has %+v", p.Name(), got, want)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[{"workload":"w","setting":"s","source":{"known":"k"},"figures":{"mean_rtt_ms":1}}]`: "w s: mean_rtt_ms is no figure",
		`[{"workload":"w","setting":"s"}]`: "w s: source.known is missing",
		`[{"work":"w"}]`:                   `there is no field "work"`,
		`[`:                                "it ends in the middle",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestArrivals: the rebuilt arrivals give each adapter the requests of the record, and end when its
// log says that they did.
func TestArrivals(t *testing.T) {
	t.Parallel()
	runs := 0
	for _, p := range Runs() {
		if p.Trace == nil {
			continue
		}
		runs++
		calls, err := p.Trace.arrivals("").Calls(len(p.Trace.Shares), p.NumPrompts)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]int, len(p.Trace.Shares))
		var last float64
		for range p.NumPrompts {
			at, adapter, err := calls.Next()
			if err != nil {
				t.Fatal(err)
			}
			got[adapter]++
			last = at
		}
		if want := p.Trace.LastS; !slices.Equal(got, p.Trace.Requests) || math.Abs(last-want) > 0.01*want {
			t.Errorf("%s: adapters get %v, want %v; the last request comes at %.2f s, want %.2f", p.Name(), got, p.Trace.Requests, last, want)
		}
	}
	if runs != 4 {
		t.Errorf("%d runs with adapters", runs)
	}
}
