package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestRequestsHaveThePublishedTotals(t *testing.T) {
	for _, w := range Workloads() {
		want := promptLengths[w.InputLen]
		requests := w.Requests(PublishedPrompts, 0, "0", qwenVocabulary)
		total, squares := 0, 0.0
		first := map[int]bool{}
		mean := float64(want.total) / PublishedPrompts
		for i, r := range requests {
			total += len(r.Prompt)
			squares += math.Pow(float64(len(r.Prompt))-mean, 2)
			first[r.Prompt[0]] = true
			if r.MaxTokens != 6 {
				t.Fatalf("%s: request %d asks for %d tokens", w.Name, i, r.MaxTokens)
			}
			for _, id := range r.Prompt {
				if id < 0 || id >= qwenVocabulary {
					t.Fatalf("%s: token id %d is not in the vocabulary", w.Name, id)
				}
			}
		}
		if total != want.total {
			t.Errorf("%s: %d prompt tokens, published %d", w.Name, total, want.total)
		}
		if len(first) != len(requests) {
			t.Errorf("%s: %d of %d prompts start with a token of their own", w.Name, len(first), len(requests))
		}
		if std := math.Sqrt(squares / PublishedPrompts); math.Abs(std-want.std) > want.std/5 {
			t.Errorf("%s: lengths spread by %.1f, want about %.1f", w.Name, std, want.std)
		}
	}
}

// qwenVocabulary is that of the published model, and of the A10 profile.
const qwenVocabulary = 151936

// The prompts behind all figures that were printed so far, to the token.
func TestPromptsOfThePublishedRows(t *testing.T) {
	h := sha256.New()
	for _, w := range Workloads() {
		for _, r := range w.Requests(PublishedPrompts, 0, "0", qwenVocabulary) {
			ids := []int64{int64(len(r.Prompt))}
			for _, id := range r.Prompt {
				ids = append(ids, int64(id))
			}
			fmt.Fprint(h, r.ID)
			if err := binary.Write(h, binary.LittleEndian, ids); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != "96f87f28821e1a7d8ddbc5297435e92e6b38a63030fac02a01383a791b7b2dcd" {
		t.Errorf("the published rows' prompts have changed: SHA-256 %s", got)
	}
}

// Ids stay below the vocabulary, however small, and lengths do not depend on it.
func TestVocabulary(t *testing.T) {
	w := Workloads()[4]
	lengths := w.Requests(20, 0, "0", qwenVocabulary)
	for _, vocab := range []int{1, 7, 32000} {
		top := 0
		for i, r := range w.Requests(20, 0, "0", vocab) {
			top = max(top, slices.Max(r.Prompt))
			if len(r.Prompt) != len(lengths[i].Prompt) {
				t.Errorf("vocabulary %d: request %d has another length", vocab, i)
			}
		}
		if top >= vocab || top < vocab*9/10 {
			t.Errorf("vocabulary %d: the highest id of 5,000 is %d", vocab, top)
		}
	}
}

func TestRequestsAreReproducible(t *testing.T) {
	w := Workloads()[4]
	a, b := w.Requests(20, 0, "0", qwenVocabulary), w.Requests(20, 0, "0", qwenVocabulary)
	for i := range a {
		if !slices.Equal(a[i].Prompt, b[i].Prompt) || a[i].ID != b[i].ID {
			t.Fatalf("request %d differs between two draws", i)
		}
	}
	again := w.Requests(20, 0, "1", qwenVocabulary)
	q2 := Workloads()[1].Requests(20, 0, "0", qwenVocabulary)
	for i := range a {
		if len(a[i].Prompt) != len(again[i].Prompt) || len(a[i].Prompt) != len(q2[i].Prompt) {
			t.Fatalf("request %d: lengths must not depend on the repeat or the rate", i)
		}
		if slices.Equal(a[i].Prompt[:16], again[i].Prompt[:16]) || slices.Equal(a[i].Prompt[:16], q2[i].Prompt[:16]) {
			t.Fatalf("request %d shares its first block with another run's", i)
		}
	}
	if small := w.Requests(3, 0, "0", qwenVocabulary); len(small) != 3 {
		t.Fatalf("%d requests, want 3", len(small))
	}
}

func TestBody(t *testing.T) {
	body, err := Request{ID: "x", Prompt: []int{1, 2}, MaxTokens: 6}.body("m")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"model":"m","prompt":[1,2],"max_tokens":6,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`
	if string(body) != want {
		t.Fatalf("body = %s\nwant   %s", body, want)
	}
	if !json.Valid(body) {
		t.Fatal("not JSON")
	}
}

func TestParseLists(t *testing.T) {
	rows, err := ParseRows("1024/q2, 256/q4")
	if err != nil || len(rows) != 2 || rows[0].Name != "1024/q2" || rows[1].QPS != 4 {
		t.Fatalf("rows = %v, %v", rows, err)
	}
	if rows, err = ParseRows("all"); err != nil || len(rows) != 5 {
		t.Fatalf("all = %v, %v", rows, err)
	}
	settings, err := ParseSettings("tcp,layerwise")
	if err != nil || len(settings) != 2 || settings[1].Handoff != "layerwise" || settings[1].Link != "tcp" {
		t.Fatalf("settings = %v, %v", settings, err)
	}
	for _, c := range []struct {
		list string
		want []string
	}{
		{"256/q9", []string{`"256/q9"`, "256/q8", "all"}},
		{"256/q8,,256/q2", []string{"empty row", "256/q8,,256/q2"}},
		{"", []string{"empty row"}},
		{"256/q8,256/q8", []string{"twice"}},
	} {
		_, err := ParseRows(c.list)
		wantError(t, c.list, err, c.want...)
	}
	_, err = ParseSettings("tcp,rmda")
	wantError(t, "tcp,rmda", err, `"rmda"`, "nondisagg, chunked, rdma, rdma2, tcp, pull, layerwise")
}

func wantError(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %q does not say %q", what, err, p)
		}
	}
}
