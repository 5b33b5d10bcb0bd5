package load

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"kvferry/kvcache"
)

// requests are all n of the workload, for seed 0.
func requests(t *testing.T, w Workload, n int, salt string, vocab int) []Request {
	t.Helper()
	all, err := Collect(w.Load(n, 0, salt, vocab))
	if err != nil || len(all) != n {
		t.Fatalf("%d requests, %v: want %d", len(all), err, n)
	}
	return all
}

func TestScheduleSums(t *testing.T) {
	for _, c := range []struct{ qps, sum float64 }{{2, 98.504}, {4, 49.252}, {6, 32.835}, {8, 24.626}} {
		w := Workload{"1024/q2", 1024, c.qps}
		if at := requests(t, w, 200, "0", 10)[0].At; at != 0 {
			t.Errorf("q%v: first request at %v, want 0", c.qps, at)
		}
		got := (w.End(200, 0) - 200*ClientDrift).Seconds()
		if math.Abs(got-c.sum) > 0.0006 {
			t.Errorf("q%v: 200 gaps sum to %.4f s, want %.3f", c.qps, got, c.sum)
		}
	}
}

func TestRequestsHaveThePublishedTotals(t *testing.T) {
	for _, w := range Workloads() {
		want := promptLengths[w.InputLen]
		all := requests(t, w, PublishedPrompts, "0", qwenVocabulary)
		total, squares := 0, 0.0
		first := map[kvcache.Token]bool{}
		mean := float64(want.total) / PublishedPrompts
		for i, r := range all {
			total += len(r.Prompt)
			squares += math.Pow(float64(len(r.Prompt))-mean, 2)
			first[r.Prompt[0]] = true
			if r.MaxTokens != 6 {
				t.Fatalf("%s: request %d asks for %d tokens", w.Name, i, r.MaxTokens)
			}
			for _, id := range r.Prompt {
				if id >= qwenVocabulary {
					t.Fatalf("%s: token id %d is not in the vocabulary", w.Name, id)
				}
			}
		}
		if total != want.total {
			t.Errorf("%s: %d prompt tokens, published %d", w.Name, total, want.total)
		}
		if len(first) != len(all) {
			t.Errorf("%s: %d of %d prompts start with a token of their own", w.Name, len(first), len(all))
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
		for _, r := range requests(t, w, PublishedPrompts, "0", qwenVocabulary) {
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
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != "38bc461d6ba2fb6804b4dd3eabd596461b5fcf1039ba1e8d7bd92fe43e6519e1" {
		t.Errorf("the published rows' prompts have changed: SHA-256 %s", got)
	}
}

// Ids stay below the vocabulary, however small, and lengths do not depend on it.
func TestVocabulary(t *testing.T) {
	w := Workloads()[4]
	lengths := requests(t, w, 20, "0", qwenVocabulary)
	for _, vocab := range []int{1, 7, 32000} {
		top := kvcache.Token(0)
		for i, r := range requests(t, w, 20, "0", vocab) {
			top = max(top, slices.Max(r.Prompt))
			if len(r.Prompt) != len(lengths[i].Prompt) {
				t.Errorf("vocabulary %d: request %d has another length", vocab, i)
			}
		}
		if int(top) >= vocab || int(top) < vocab*9/10 {
			t.Errorf("vocabulary %d: the highest id of 5,000 is %d", vocab, top)
		}
	}
}

func TestRequestsAreReproducible(t *testing.T) {
	w := Workloads()[4]
	a, b := requests(t, w, 20, "0", qwenVocabulary), requests(t, w, 20, "0", qwenVocabulary)
	for i := range a {
		if !slices.Equal(a[i].Prompt, b[i].Prompt) || a[i].ID != b[i].ID {
			t.Fatalf("request %d differs between two draws", i)
		}
	}
	again := requests(t, w, 20, "1", qwenVocabulary)
	q2 := requests(t, Workloads()[1], 20, "0", qwenVocabulary)
	for i := range a {
		if len(a[i].Prompt) != len(again[i].Prompt) || len(a[i].Prompt) != len(q2[i].Prompt) {
			t.Fatalf("request %d: lengths must not depend on the repeat or the rate", i)
		}
		if slices.Equal(a[i].Prompt[:16], again[i].Prompt[:16]) || slices.Equal(a[i].Prompt[:16], q2[i].Prompt[:16]) {
			t.Fatalf("request %d shares its first block with another run's", i)
		}
	}
	if small := requests(t, w, 3, "0", qwenVocabulary); len(small) != 3 {
		t.Fatalf("%d requests, want 3", len(small))
	}
}
