package health

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestQuarantine plays outcomes: f fails, s succeeds, a number is seconds that pass. What
// comes of it is the state after each: + good, t on trial and free to be tried, - resting,
// in seconds until it is over.
func TestQuarantine(t *testing.T) {
	node, pair := Subject{Node: "d"}, Subject{"p", "d"}
	for _, tc := range []struct {
		name    string
		subject Subject
		play    string
		want    string
	}{
		{"one failure is none", pair, "f s f s f s", "+ + + + + +"},
		{"a pair rests after two", pair, "f f", "+ -1"},
		{"a node after four", node, "f f f f", "+ + + -1"},
		{"a minute apart", pair, "f 61 f 61 f", "+ + + + +"},
		{"failures of what was under way do not count", pair, "f f f f 1", "+ -1 -1 -1 t"},
		{"twice as long each time", pair, "f f 1 f 2 f 4 f 8 f 16 f 32 f 60 f", "+ -1 t -2 t -4 t -8 t -16 t -32 t -60 t -60"},
		{"tried and good", pair, "f f 1 s s f f", "+ -1 t + + + -1"},
		{"good once after a rest is not forgotten at once", pair, "f f 1 s f f", "+ -1 t + + -2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q, now := NewQuarantine(), time.Hour
			var got []string
			for _, what := range strings.Fields(tc.play) {
				switch what {
				case "f":
					q.Failed(now, tc.subject)
				case "s":
					q.Succeeded(now, tc.subject)
				default:
					var s int
					fmt.Sscan(what, &s)
					now += time.Duration(s) * time.Second
				}
				c := q.of[tc.subject]
				switch {
				case q.Resting(now, tc.subject):
					got = append(got, fmt.Sprintf("-%.0f", (c.until-now).Seconds()))
				case c != nil && c.onTrial:
					got = append(got, "t")
				default:
					got = append(got, "+")
				}
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("%s gives %s, want %s", tc.play, got, tc.want)
			}
		})
	}
}

// TestTrial: one request tries, the others stay away until its outcome is known, or it
// has taken too long.
func TestTrial(t *testing.T) {
	s := Subject{"p", "d"}
	q, now := NewQuarantine(), time.Hour
	q.Failed(now, s)
	q.Chosen(now, s)
	if q.Resting(now, s) {
		t.Error("a Subject that is not on trial is chosen once only")
	}
	now += q.Failed(now, s)
	q.Chosen(now, s)
	if !q.Resting(now, s) || !q.Resting(now+trialWithin-1, s) {
		t.Error("a second request may try")
	}
	if q.Resting(now+trialWithin, s) {
		t.Error("a trial without an outcome is waited for without end")
	}
	if !q.Succeeded(now, s) || q.Resting(now, s) {
		t.Error("the trial went well, and it still rests")
	}
}

// TestQuarantineShare: of what fails nine times in ten, one placement in some hundred
// seconds is what is left, and what fails once in twenty goes on.
func TestQuarantineShare(t *testing.T) {
	for _, tc := range []struct {
		fails    float64
		most     int
		atLeast  int
		describe string
	}{{0.9, 30, 5, "nearly always"}, {0.05, 3000, 2800, "now and then"}} {
		rng := rand.New(rand.NewPCG(1, 2))
		q, s, placed := NewQuarantine(), Subject{"p", "d"}, 0
		for i := range 3000 {
			now := time.Hour + time.Duration(i)*100*time.Millisecond // five minutes
			if q.Resting(now, s) {
				continue
			}
			placed++
			q.Chosen(now, s)
			if rng.Float64() < tc.fails {
				q.Failed(now, s)
			} else {
				q.Succeeded(now, s)
			}
		}
		if placed > tc.most || placed < tc.atLeast {
			t.Errorf("what fails %s was chosen for %d of 3000", tc.describe, placed)
		}
	}
}

func TestQuarantineForgets(t *testing.T) {
	q := NewQuarantine()
	for _, s := range []Subject{{Node: "a"}, {"a", "b"}, {"b", "a"}, {Node: "b"}, {"b", "c"}} {
		q.Failed(0, s)
	}
	q.Forget("a")
	if len(q.of) != 2 {
		t.Errorf("%d subjects are left of two", len(q.of))
	}
}
