package sglang

import (
	"strings"
	"testing"
)

// The loads are those of the records, to the token.
func TestLoads(t *testing.T) {
	t.Parallel()
	for _, p := range Runs() {
		l, err := p.Load(32000).Open()
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		got := Counts{Retokenized: p.Counts.Retokenized, Peak: p.Counts.Peak}
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
		if got != p.Counts {
			t.Errorf("%s: a load of %+v, and the record has %+v", p.Name(), got, p.Counts)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[{"workload":"w","setting":"s","figures":{"mean_rtt_ms":1}}]`: "w s: mean_rtt_ms is no figure",
		`[{"work":"w"}]`: `there is no field "work"`,
		`[`:              "it ends in the middle",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
