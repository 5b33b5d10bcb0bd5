package connector

import (
	"slices"
	"time"
)

// A frontEnd is what of the modelled front end is serial, as it is in vLLM and in SGLang: one
// process takes requests in (HTTP, tokenise, hand over) and lets tokens out (detokenise, HTTP), in
// the order in which they come. So in a burst of requests the first one's tokens wait until the
// last one is in. What requests wait beside each other is Costs.RequestMS.
//
//	request ─▶ in ─RequestMS─▶ scheduler ─▶ step ─▶ out ─▶ tokens
//	           └─────────── one process ────────────┘
//
// The tokens that leave the scheduler together are one message to the process that lets them
// out, as SGLang's BatchTokenIDOutput is, and leave together when it has done them all. A request's end
// waits behind its tokens, past its deadline even; what a hand-off says to other nodes waits for
// nothing. One that fails says so at once, and its tokens stay inside.
//
// A decode leg that a hand-off brings was taken in where its prompt was computed. A front end
// that costs nothing holds nothing.
type frontEnd struct {
	in, out time.Duration  // for a request, for a token
	free    time.Duration  // when it is through with what it has
	last    time.Duration  // when it is through with the tokens
	said    []saying       // not out yet, in order
	of      map[uint64]int // how many of these are of a request
	ends    int            // and how many Drops
}

// A saying is one thing that the node says of a request.
type saying struct {
	at    time.Duration
	id    uint64
	drops bool // it is a Drop
	say   func(*Actions)
}

// enter is when a request is in that comes now.
func (f *frontEnd) enter(now time.Duration) time.Duration {
	if f.in == 0 {
		return now
	}
	f.free = max(f.free, now) + f.in
	return f.free
}

// take has n tokens let out that leave the scheduler now, and returns when they are out.
func (f *frontEnd) take(now time.Duration, n int) time.Duration {
	if f.out == 0 {
		return now
	}
	if n > 0 {
		f.free = max(f.free, now) + time.Duration(n)*f.out
		f.last = f.free
	}
	return max(f.last, now)
}

// hold keeps what is said in a Step until it is out, and has said what is out by now.
func (f *frontEnd) hold(now time.Duration, a *Actions) {
	if f.out == 0 {
		return
	}
	at := max(f.last, now)
	for _, t := range a.Tokens {
		f.add(saying{at: at, id: t.ID, say: func(a *Actions) { a.Tokens = append(a.Tokens, t) }})
	}
	a.Tokens = a.Tokens[:0]
	a.Prefilled = behind(f, a.Prefilled, func(p Prefilled) saying {
		return saying{id: p.ID, say: func(a *Actions) { a.Prefilled = append(a.Prefilled, p) }}
	})
	a.Finished = behind(f, a.Finished, func(p Finished) saying {
		return saying{id: p.ID, say: func(a *Actions) { a.Finished = append(a.Finished, p) }}
	})
	for _, failed := range a.Failed {
		f.forget(failed.ID)
	}
	a.Drop = behind(f, a.Drop, func(id uint64) saying {
		return saying{id: id, drops: true, say: func(a *Actions) { a.Drop = append(a.Drop, id) }}
	})
	n := 0
	for n < len(f.said) && f.said[n].at <= now {
		f.said[n].say(a)
		f.count(&f.said[n], -1)
		n++
	}
	clear(f.said[:n])
	f.said = f.said[n:]
}

// behind takes from a list what waits behind tokens of its request, and returns the rest.
func behind[T any](f *frontEnd, list []T, wrap func(T) saying) []T {
	rest := list[:0]
	for _, v := range list {
		s := wrap(v)
		if f.of[s.id] == 0 {
			rest = append(rest, v)
			continue
		}
		s.at = f.said[len(f.said)-1].at
		f.add(s)
	}
	return rest
}

func (f *frontEnd) add(s saying) {
	if f.of == nil {
		f.of = make(map[uint64]int)
	}
	f.said = append(f.said, s)
	f.count(&s, 1)
}

// count counts a saying in or out.
func (f *frontEnd) count(s *saying, n int) {
	if s.drops {
		f.ends += n
	}
	if f.of[s.id] += n; f.of[s.id] == 0 {
		delete(f.of, s.id)
	}
}

// forget has nothing more said of a request that was cancelled or has failed, but that it is
// dropped.
func (f *frontEnd) forget(id uint64) {
	f.said = slices.DeleteFunc(f.said, func(s saying) bool {
		if s.id != id || s.drops {
			return false
		}
		f.count(&s, -1)
		return true
	})
}

// wake is when something is out, or 0.
func (f *frontEnd) wake() time.Duration {
	if len(f.said) == 0 {
		return 0
	}
	return f.said[0].at
}
