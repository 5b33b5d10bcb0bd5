package load_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/load/loadtest"
)

const requests, vocab = 1000, 5000

// trace writes a trace of as many requests, of two blocks and 600 tokens each.
func trace(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for i := range requests {
		fmt.Fprintf(&b, "{\"timestamp\": %d, \"input_length\": 600, \"output_length\": %d, \"hash_ids\": [%d, %d]}\n", 3*(i/5), 1+i%30, i%7, i)
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestKinds: every load that can be named keeps what a source promises.
func TestKinds(t *testing.T) {
	names := map[string]bool{}
	for _, k := range load.Kinds() {
		if k.Name == "" || k.About == "" || names[k.Name] {
			t.Errorf("%q: %q is no kind, or is there twice", k.Name, k.About)
		}
		names[k.Name] = true
		t.Run(k.Name, func(t *testing.T) {
			s, bounds := ofKind(t, k.Name)
			if of := fromFile[k.Name]; of != nil {
				s, bounds = of(t)
			}
			s.Kind = k.Name
			loadtest.TestSource(t, s.Open, bounds)
		})
	}
}

// TestSources: so do those that have no name.
func TestSources(t *testing.T) {
	list, err := load.Collect(drawn(t, 300))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("list", func(t *testing.T) {
		loadtest.TestSource(t, func() (load.Load, error) {
			l := list
			return load.Load{Source: &l, InFlight: 2}, nil
		}, loadtest.Bounds{Requests: 300, Prompt: 1000, MaxTokens: 10, Vocab: vocab})
	})
	t.Run("paced", func(t *testing.T) {
		loadtest.TestSource(t, func() (load.Load, error) {
			return load.Load{Source: load.Paced(drawn(t, 1000), new(clockwork))}, nil
		}, loadtest.Bounds{Requests: 1000, Prompt: 1000, MaxTokens: 10, Vocab: vocab})
	})
}

func drawn(t *testing.T, n int) load.Load {
	t.Helper()
	l, err := load.Spec{Requests: n, Rate: 5, Burstiness: 1, InputLen: 1000, OutputLen: 10, Vocab: vocab}.Open()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// clockwork is an arrival a second, up to a limit if there is one.
type clockwork struct{ at, limit time.Duration }

func (c *clockwork) Next() (time.Duration, error) {
	at := c.at
	if c.at += time.Second; c.limit > 0 && c.at > c.limit {
		return 0, errors.New("too late")
	}
	return at, nil
}

// TestFailures: an error is for good, whatever it comes from.
func TestFailures(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	const line = `{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}` + "\n"
	if err := os.WriteFile(broken, []byte(line+"{\n"+line), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(s load.Spec) load.Load {
		t.Helper()
		l, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	slow := open(load.Spec{Requests: 1000, Rate: 1e-9, Burstiness: 1, InputLen: 1, OutputLen: 1, Vocab: 10})
	for want, s := range map[string]load.Source{
		"broken.jsonl:2: it ends in the middle": open(load.Spec{Kind: load.Traced, File: broken, Speed: 1, Vocab: 10}),
		"too late":                              load.Paced(drawn(t, 10), &clockwork{limit: 3 * time.Second}),
		"raise the rate":                        slow,
	} {
		if err := loadtest.TestFailing(t, s); !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
	// Times that are not needed any more are no error.
	if all, err := load.Collect(load.Paced(&load.List{{Prompt: []kvcache.Token{1}, MaxTokens: 1}}, &clockwork{limit: time.Second})); err != nil || len(all) != 1 {
		t.Errorf("%d requests, %v", len(all), err)
	}
}

// TestSpecFaults: what no load can be opened from is named by its field.
func TestSpecFaults(t *testing.T) {
	for want, s := range map[string]load.Spec{
		`Kind: "bursty": there is no such load: use random, random-ids, `: {Kind: "bursty"},
		"File: none given":                      {Kind: load.Traced, Speed: 1, Vocab: 1},
		"Speed: 0: use more than 0":             {Kind: load.Traced, File: "x", Vocab: 1},
		"Requests: -1: use 1 or more":           {Kind: load.Traced, File: "x", Speed: 1, Requests: -1, Vocab: 1},
		"Requests: 0: use 1 to":                 {Kind: "256/q8", Vocab: 1},
		"Adapters.Names: 65537: name 65536":     {Requests: 1, Rate: 1, Burstiness: 1, InputLen: 1, OutputLen: 1, Vocab: 10, Adapters: load.Adapters{Names: slices.Repeat([]string{"a"}, 1<<16+1)}},
		"Seed: 4294967296: use 0 to 4294967295": {Kind: "256/q8", Requests: 1, Seed: 1 << 32, Vocab: 1},
	} {
		if _, err := s.Open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
	if _, err := (load.Spec{Kind: load.Traced, File: t.TempDir(), Speed: 1, Vocab: 1}).Open(); err == nil || !strings.Contains(err.Error(), "is a directory") && !strings.Contains(err.Error(), "folder") {
		t.Errorf("a folder is a trace: %v", err)
	}
}
