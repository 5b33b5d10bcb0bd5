package selection

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestSilence: three paths, of which the first goes silent at 100 ms. sign says what path i shows
// otherwise; asked is whether its peer owes it an answer.
func TestSilence(t *testing.T) {
	const ms = time.Millisecond
	var silentFrom time.Duration
	alive := Sign{Up: true, Waiting: true, Alive: true, Asked: true, Answer: ms}
	idle := Sign{Up: true}
	silent := func(s Sign, now time.Duration) Sign {
		s.Alive = s.Alive && now < silentFrom
		return s
	}
	var poked map[int]bool
	cases := map[string]struct {
		sign func(i int, now time.Duration) Sign
		look func(now time.Duration) time.Duration // until the next look; nil: SilenceLook
		want []string
		from time.Duration // when the first path goes silent; 0: 100 ms
	}{
		"the others answer": {func(i int, now time.Duration) Sign {
			if i == 0 {
				return silent(alive, now)
			}
			return alive
		}, nil, []string{"125ms leave 0"}, 0},
		"a long way": {func(i int, now time.Duration) Sign {
			s := alive
			if s.Answer = 40 * ms; i == 0 {
				return silent(s, now)
			}
			return s
		}, nil, []string{"175ms leave 0"}, 0},
		"nothing is under way": {func(i int, now time.Duration) Sign {
			if i == 0 {
				return idle
			}
			return alive
		}, nil, nil, 0},
		"it waits for data, and is asked": {func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Asked = poked[0]
				return s
			}
			return alive
		}, nil, []string{"110ms poke 0", "125ms leave 0"}, 0},
		"it answers when asked: the process is slow": {func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Asked = false
				s.Alive = s.Alive || poked[0]
				delete(poked, 0)
				return s
			}
			return alive
		}, nil, []string{"110ms poke 0", "130ms poke 0", "150ms poke 0", "170ms poke 0", "190ms poke 0"}, 0},
		"the others are asked": {func(i int, now time.Duration) Sign {
			if i == 0 {
				return silent(alive, now)
			}
			s := idle
			s.Alive = poked[i]
			delete(poked, i)
			return s
		}, nil, []string{"110ms poke 1", "110ms poke 2", "125ms leave 0"}, 0},
		"all are silent: the peer is": {func(i int, now time.Duration) Sign { return silent(alive, now) }, nil, nil, 0},
		"none other is up": {func(i int, now time.Duration) Sign {
			if i == 0 {
				return silent(alive, now)
			}
			return Sign{}
		}, nil, nil, 0},
		"it loses packets": {func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Lost = uint64(min(now, silentFrom-ms) / (50 * ms))
				return s
			}
			return alive
		}, nil, nil, 0},
		"it lost packets long ago": {sign: func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Lost = 5
				return s
			}
			return alive
		}, from: 10100 * ms, want: []string{"10.125s leave 0"}},
		"what it sends again is not lost packets": {func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Lost = uint64(max(0, now-silentFrom) / (10 * ms))
				return s
			}
			return alive
		}, nil, []string{"125ms leave 0"}, 0},
		"nobody looked": {func(i int, now time.Duration) Sign {
			if i == 0 {
				s := silent(alive, now)
				s.Alive = s.Alive || now > 160*ms
				return s
			}
			return alive
		}, func(now time.Duration) time.Duration {
			if now == silentFrom {
				return 60 * ms
			}
			return SilenceLook
		}, nil, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if silentFrom = c.from; silentFrom == 0 {
				silentFrom = 100 * ms
			}
			var s Silence
			var got []string
			poked = make(map[int]bool)
			left := make(map[int]bool)
			for now := time.Duration(0); now < silentFrom+100*ms; {
				var signs []Sign
				for i := range 3 {
					sign := c.sign(i, now)
					if left[i] {
						sign = Sign{}
					}
					signs = append(signs, sign)
				}
				poke, leave := s.Step(now, signs)
				for i := range signs {
					if poke&(1<<i) != 0 {
						got = append(got, fmt.Sprintf("%v poke %d", now, i))
						poked[i] = true
					}
					if leave&(1<<i) != 0 {
						got = append(got, fmt.Sprintf("%v leave %d", now, i))
						left[i] = true
					}
				}
				if c.look != nil {
					now += c.look(now)
				} else {
					now += SilenceLook
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
