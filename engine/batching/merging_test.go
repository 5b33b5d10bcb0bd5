package batching

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// seen is an outlook in which every adapter's sequences could be in either kind of step.
func seen(of map[string]int) outlook {
	n := outlook{of: of, alone: of}
	for _, k := range of {
		n.all += k
	}
	return n
}

// measured is what decides where merged steps take speed times what unmerged ones do, and a change
// as much as so many of these.
func measured(speed, change float64) merging {
	const took = 20 * time.Millisecond
	m := newMerging(time.Duration(change * float64(took)))
	m.measure(took, took-time.Duration(speed*float64(took)))
	return m
}

// TestMergingThresholds: at the speeds that the artifact has measured an adapter is merged when all sequences
// are its own, and stays while merged steps are as fast.
func TestMergingThresholds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		speed  float64
		now    string
		of     map[string]int
		choice string
	}{
		{15. / 27, "", map[string]int{"a": 9}, "a"},
		{15. / 27, "", map[string]int{"a": 8, "b": 1}, ""},
		{15. / 27, "", map[string]int{"": 9}, ""}, // the model itself needs no merging
		{15. / 27, "", map[string]int{}, ""},
		{15. / 27, "a", map[string]int{}, "a"},
		{15. / 27, "a", map[string]int{"a": 15, "b": 12}, "a"},
		{15. / 27, "a", map[string]int{"a": 14, "b": 13}, ""},
		{15. / 27, "a", map[string]int{"b": 3}, "b"},
		{0.25, "", map[string]int{"a": 4, "b": 4}, "a"}, // of two alike, the first by name
		{0.25, "b", map[string]int{"a": 4, "b": 4}, "b"},
		{1, "", map[string]int{"a": 9}, ""}, // nothing is won
	} {
		m := measured(c.speed, 1)
		m.next = seen(c.of)
		if got := m.choose(c.now); got != c.choice {
			t.Errorf("at %.2f, with %q merged and sequences %v: %q, want %q", c.speed, c.now, c.of, got, c.choice)
		}
	}
	m := newMerging(0)
	m.measure(time.Millisecond, 2*time.Millisecond)
	if m.speed() != 0 {
		t.Errorf("steps that took less than adapters did give a speed of %v", m.speed())
	}
	m = newMerging(0)
	m.next = seen(map[string]int{"a": 9})
	if got := m.choose(""); got != "" {
		t.Errorf("%q is merged before anything was measured", got)
	}
}

// TestMergingReview: the threshold that led to a change is adjusted by what the time before it was
// worth, and one that is never reached by what merging would have been.
func TestMergingReview(t *testing.T) {
	t.Parallel()
	few, many := seen(map[string]int{"a": 5, "b": 5}), seen(map[string]int{"a": 9, "b": 1})
	for what, c := range map[string]struct {
		steps       int
		next        outlook
		was, now    string
		change      float64
		enter, stay float64 // times, or more by
	}{
		"merged steps were better":    {20, many, "a", "", 1, enterAtFirst - addToShare, stayAtFirst},
		"they were worse":             {20, few, "a", "", 1, enterAtFirst * timesShare, stayAtFirst},
		"they were too few":           {2, many, "a", "", 5, enterAtFirst * timesShare, stayAtFirst},
		"unmerged steps were better":  {20, few, "", "a", 1, enterAtFirst, stayAtFirst + addToShare},
		"they were worse than merged": {20, many, "", "a", 1, enterAtFirst, stayAtFirst / timesShare},
		"a review without a change":   {reviewEvery, many, "", "", 1, enterAtFirst - addToShare, stayAtFirst},
		"one that finds nothing":      {reviewEvery, few, "", "", 1, enterAtFirst, stayAtFirst},
	} {
		m := measured(0.6, c.change)
		m.next = c.next
		m.best = "a"
		other := map[string]string{"": "a", "a": ""}[c.was]
		m.ran(other, c.was)
		m.enter, m.stay = enterAtFirst, stayAtFirst // as they were before that change
		for range c.steps - 1 {
			m.ran(c.was, c.was)
		}
		m.ran(c.was, c.now)
		if math.Abs(m.enter-c.enter) > 1e-9 || math.Abs(m.stay-c.stay) > 1e-9 {
			t.Errorf("%s: thresholds %.3f and %.3f, want %.3f and %.3f", what, m.enter, m.stay, c.enter, c.stay)
		}
	}
}

// TestCredits: whatever comes, credits only move, nobody has more than the limit and a step's worth,
// and so a sequence that could be in a step is passed over a bounded number of times. What is
// chosen is a function of what came.
func TestCredits(t *testing.T) {
	t.Parallel()
	names := []string{"", "a", "b", "c", "d"}
	const most = 16
	bound := len(names) * (creditLimit + 1) * most
	run := func(seed uint64) string {
		var log strings.Builder
		rng := rand.New(rand.NewPCG(seed, 7))
		m := newMerging(time.Duration(rng.IntN(30)) * time.Millisecond)
		of, passed, now := map[string]int{}, map[string]int{}, ""
		for step := range 5000 {
			if rng.IntN(3) == 0 {
				name := names[rng.IntN(len(names))]
				of[name] = rng.IntN(2) * rng.IntN(most/len(names))
				if name == "a" && rng.IntN(3) > 0 {
					of[name] = most - (len(names)-1)*(most/len(names)-1)
				}
			}
			next := outlook{of: map[string]int{}, alone: map[string]int{}}
			for name, k := range of {
				if k > 0 {
					next.of[name], next.alone[name] = k, k
					next.all += k
				}
			}
			m.next = next
			was := now
			now = m.choose(was)
			m.ran(was, now)
			if now == "" {
				took := time.Duration(10+rng.IntN(5)) * time.Millisecond
				m.measure(took, took*time.Duration(seed%10)/10)
			}
			fmt.Fprintf(&log, "%s;", now)
			sum := 0.
			for name, c := range m.credit {
				sum += c
				if c > creditLimit+1 {
					t.Fatalf("seed %d, step %d: %q has %.2f", seed, step, name, c)
				}
			}
			if math.Abs(sum) > 1e-6 {
				t.Fatalf("seed %d, step %d: credits of %.3f in all", seed, step, sum)
			}
			for _, name := range names {
				if now == "" || now == name || next.of[name] == 0 {
					passed[name] = 0
				} else if passed[name]++; passed[name] > bound {
					t.Fatalf("seed %d, step %d: %q was passed over %d times", seed, step, name, passed[name])
				}
			}
		}
		return log.String()
	}
	merged, never := 0, run(0)
	for seed := range uint64(60) {
		log := run(seed)
		if log != run(seed) {
			t.Errorf("seed %d: another course the second time", seed)
		}
		if log != never {
			merged++
		}
	}
	if merged < 20 {
		t.Errorf("only %d of 60 runs merge anything", merged)
	}
}

// TestNobodyStarves: one that everybody's favourite adapter passes over is served all the same, under
// each policy, and meanwhile the favourite was merged.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{PrefillFirst, Chunked, V1, SGLang} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			s, err := NewScheduler(Config{
				Policy: policy, Pool: kvcache.NewPool(400, 4, false), MaxModelLen: 64, MaxNumSeqs: 6, MaxBatchedTokens: 64, ChunkTokens: 32,
				Conservativeness: 1, LoRA: engine.LoRA{TokenUSPerRank: 10, AdapterMS: 3, SwitchMS: 5, Merged: engine.MergeDynamic},
			})
			if err != nil {
				t.Fatal(err)
			}
			id, now, passed, full := uint64(0), time.Duration(0), 0, false
			add := func(adapter string) engine.Event {
				id++
				return engine.Add{Request: engine.Request{ID: id, Prompt: make([]kvcache.Token, 4+id%5), MaxTokens: 5 + int(id%9), Ready: now, Adapter: adapter, AdapterRank: 50, AtOnce: true}}
			}
			var events []engine.Event
			for range 20 {
				events = append(events, add("favourite"))
			}
			rare := map[uint64]int{} // tokens of the others' requests
			for step := 0; len(rare) < 12 || min(lowest(rare), 5) < 5; step++ {
				if step > 5000 {
					t.Fatalf("after %d steps the others have %v tokens", step, rare)
				}
				if step%150 == 100 && len(rare) < 12 {
					for _, adapter := range []string{"rare", "other", ""} {
						events = append(events, add(adapter))
						rare[id] = 0
					}
				}
				rd := s.Step(now, 0, events...)
				events = nil
				for _, o := range rd.Outputs {
					if n, ok := rare[o.Seq.ID]; ok {
						rare[o.Seq.ID] = n + 1
					} else if o.Last {
						events = append(events, add("favourite"))
					}
				}
				cur := s.Current()
				if cur == nil {
					continue // those that have just been added are next
				}
				if err := s.inspect(now, 0); err != nil {
					t.Fatal(err)
				}
				full = full || s.adapters.merged == "" && len(s.running) > s.cfg.MaxNumSeqs && len(cur.Works) == s.cfg.MaxNumSeqs
				if s.adapters.merged != "" && lowest(rare) < 5 {
					passed++
				}
				now = cur.At + 4*time.Millisecond + cur.Extra
				events = append([]engine.Event{engine.Done{At: now, Tokens: generate(cur, nil, vocab)}}, events...)
			}
			if passed < 20 || s.adapters.switches < 4 || !full {
				t.Errorf("%d merged steps while others waited, and %d changes, more ran than an unmerged step has: %v: it shows nothing", passed, s.adapters.switches, full)
			}
		})
	}
}

// TestOutlook: what waits counts as far as the batch, the slots and the blocks have room for it, in a
// batch of its adapter's alone too.
func TestOutlook(t *testing.T) {
	t.Parallel()
	s, err := NewScheduler(Config{
		Policy: V1, Pool: kvcache.NewPool(40, 1, false), MaxModelLen: 40, MaxNumSeqs: 3, MaxBatchedTokens: 40, ChunkTokens: 8, LoRA: engine.LoRA{MaxLoRAs: 2, Merged: engine.MergeDynamic},
	})
	if err != nil {
		t.Fatal(err)
	}
	id, now := uint64(0), time.Duration(0)
	step := func(adapter string, lens ...int) {
		var events []engine.Event
		if cur := s.Current(); cur != nil {
			now += time.Millisecond
			events = append(events, engine.Done{At: now, Tokens: generate(cur, nil, vocab)})
		}
		for _, n := range lens {
			id++
			events = append(events, engine.Add{Request: engine.Request{ID: id, Prompt: make([]kvcache.Token, n), MaxTokens: 9, Ready: now, Adapter: adapter}})
		}
		s.Step(now, 0, events...)
	}
	expect := func(what string, all, x, y, z, xAlone, yAlone, zAlone int) {
		t.Helper()
		n := s.adapters.merging.next
		got := []int{n.all, n.of["x"], n.of["y"], n.of["z"], n.alone["x"], n.alone["y"], n.alone["z"]}
		if want := []int{all, x, y, z, xAlone, yAlone, zAlone}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("x", 2)
	expect("one of x", 1, 1, 0, 0, 1, 0, 0)
	step("y", 2)
	expect("and one of y", 2, 1, 1, 0, 1, 1, 0)
	step("x", 2, 2, 2)
	expect("three of x, for which there is room beside their own", 3, 2, 1, 0, 3, 1, 0)
	step("y", 20, 20)
	expect("two of y that have blocks for one, behind two of x that have no place", 3, 2, 1, 0, 3, 2, 0)
	step("z", 1)
	expect("one of z without a slot", 3, 2, 1, 0, 3, 2, 0)
}

// TestMergedStandsStill: one that is to be merged and can do nothing keeps nobody else waiting.
func TestMergedStandsStill(t *testing.T) {
	t.Parallel()
	s, err := NewScheduler(Config{
		Pool: kvcache.NewPool(100, 1, false), MaxModelLen: 100, MaxNumSeqs: 8, MaxBatchedTokens: 100, ChunkTokens: 8,
		LoRA: engine.LoRA{TokenUSPerRank: 20, Merged: engine.MergeDynamic},
	})
	if err != nil {
		t.Fatal(err)
	}
	rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 2), MaxTokens: 9, Adapter: "x", AdapterRank: 50}})
	// It takes all blocks that are left, of which one in a hundred is not to be had while others run.
	rd = s.Step(2*time.Millisecond, 0, engine.Done{At: 2 * time.Millisecond, Tokens: generate(rd.Launch, nil, vocab)},
		engine.Add{Request: engine.Request{ID: 2, Prompt: make([]kvcache.Token, 98), MaxTokens: 2, Adapter: "a", AdapterRank: 50}})
	if m := &s.adapters.merging; m.best != "a" || m.choose("") != "a" {
		t.Fatalf("a is not to be merged: %+v", m.next)
	}
	if rd.Launch == nil || rd.Launch.Works[0].Seq.ID != 1 || s.adapters.merged != "" {
		t.Errorf("launched %v, with %q merged", rd.Launch, s.adapters.merged)
	}
}

func lowest(of map[uint64]int) int {
	least := math.MaxInt
	for _, n := range of {
		least = min(least, n)
	}
	return least
}

// TestForgetsCredits: adapters that come under ever new names are forgotten, those that are there are not,
// and their credits stay in all what they were.
func TestForgetsCredits(t *testing.T) {
	m := newMerging(time.Millisecond)
	m.next.all = 4
	for i := range 3 * maxKept {
		clear(m.next.of)
		m.next.of["always"], m.next.of[fmt.Sprint(i)] = 3, 1
		m.pay("always")
		if len(m.credit) > maxKept || m.credit["always"] == 0 || m.credit[fmt.Sprint(i)] != 0.25 {
			t.Fatalf("after %d: %d adapters, %v and %v", i, len(m.credit), m.credit["always"], m.credit[fmt.Sprint(i)])
		}
	}
	sum := 0.
	for name, c := range m.credit {
		sum += c
		if name != "always" && c != 0.25 {
			t.Errorf("%q, which was passed over once, has %v", name, c)
		}
	}
	if sum != 0 {
		t.Errorf("credits of %v in all", sum)
	}
}
