package batching

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"kvferry/engine"
)

// adapters are the LoRA adapters of a node: which are in the GPU's slots, which in host memory,
// and which may join the batch. What is done is what vLLM and SGLang do: a sequence
// has its adapter in a slot from the step in which it is admitted to its end, so one whose adapter
// would need a slot too many waits, and others go before it. The adapters of a step that are not
// in slots are loaded as it begins.
//
// Where adapters are merged into the model's weights, a step has the sequences of one of them,
// or those of the model itself. They take turns: the one that was served longest ago is next,
// and a turn lasts until nobody of it can go on, or, if others wait, minTurn times what the change took.
type adapters struct {
	cfg         engine.LoRA
	any         bool // a request with an adapter has come
	slots, host adapterCache
	shown       []string      // those in slots, by name; never changed
	batch       []string      // those of the sequences that have blocks
	loads       uint64        // into slots
	loading     time.Duration // that they took

	// Of merged ones. turn is whose step is being formed, if one is.
	turning bool
	turn    string
	merged  string
	until   time.Duration // the turn of the merged one goes on till then
	served  adapterCache  // those that a step had; the model itself is one of them
}

// maxKept is for how many adapters there is room where a profile has no bound: as many as a proxy serves at a
// time. A name that nobody asks for any more is forgotten when others have come.
const maxKept = 1 << 12

// minTurn bounds the share of time that changes take, to one in 1+minTurn.
const minTurn = 10

func newAdapters(cfg engine.LoRA) adapters {
	return adapters{cfg: cfg, slots: newAdapterCache(cfg.MaxLoRAs), host: newAdapterCache(cfg.MaxCPULoRAs), served: newAdapterCache(0)}
}

// bounded reports whether the batch has room for some adapters only. Of merged ones each step has
// one, so none is too many.
func (a *adapters) bounded() bool { return a.any && a.cfg.MaxLoRAs > 0 && !a.cfg.Merged }

// gather notes whose adapters are in the batch, before others join.
func (a *adapters) gather(s *Scheduler) {
	a.batch = a.batch[:0]
	if !a.bounded() {
		return
	}
	for _, list := range [...][]*sequence{s.running, s.pending, s.waiting} {
		for _, q := range list {
			if q.Adapter != "" && len(q.Table.Refs()) > 0 && !slices.Contains(a.batch, q.Adapter) {
				a.batch = append(a.batch, q.Adapter)
			}
		}
	}
}

// admits reports whether a waiting sequence may join the batch, as far as its adapter goes, and
// takes it that it does.
func (s *Scheduler) admits(q *sequence) bool {
	a := &s.adapters
	switch {
	case !a.serves(q):
		return false
	case q.Adapter == "" || !a.bounded() || slices.Contains(a.batch, q.Adapter):
		return true
	case len(a.batch) == a.cfg.MaxLoRAs:
		s.starved = true
		return false
	}
	a.batch = append(a.batch, q.Adapter)
	return true
}

// serves reports whether a step may have a sequence: if adapters take turns, in its own.
func (a *adapters) serves(q *sequence) bool { return !a.turning || q.Adapter == a.turn }

// form has the policy form a step; of merged adapters for the first, in order of their turns,
// that can do anything.
func (s *Scheduler) form(step *engine.Step, now time.Duration) {
	a := &s.adapters
	if !a.any || !a.cfg.Merged {
		s.policy.form(s, step)
		s.park()
		return
	}
	a.turning = true
	for _, a.turn = range a.turns(s, now) {
		s.policy.form(s, step)
		s.park()
		if len(step.Works) > 0 {
			break
		}
	}
	a.turning = false
}

// lead has those that wait with blocks go before those without, which they may have overtaken: see
// holding.
func (s *Scheduler) lead() {
	if s.adapters.any {
		slices.SortStableFunc(s.waiting, func(x, y *sequence) int {
			return cmp.Compare(min(len(y.Table.Refs()), 1), min(len(x.Table.Refs()), 1))
		})
	}
}

// turns are the adapters that have something to do, in the order in which they may do it.
func (a *adapters) turns(s *Scheduler, now time.Duration) (names []string) {
	for _, list := range [...][]*sequence{s.running, s.waiting} {
		for _, q := range list {
			if !slices.Contains(names, q.Adapter) {
				names = append(names, q.Adapter)
			}
		}
	}
	rank := func(name string) int64 {
		if name == a.merged && now < a.until {
			return -1
		}
		return int64(a.served.used[name])
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(rank(x), rank(y)) })
	return names
}

// prepare has a step's adapters in slots, and adds what that and computing with them takes.
func (a *adapters) prepare(step *engine.Step) {
	if !a.any || step.Kind == engine.Receive {
		return
	}
	a.batch = a.batch[:0]
	var ranks []int
	for i := range step.Works {
		q := step.Works[i].Seq
		if q.Adapter == "" {
			continue
		}
		step.Extra += a.cfg.Token(step.Works[i].N, q.AdapterRank)
		if !slices.Contains(a.batch, q.Adapter) {
			a.batch, ranks = append(a.batch, q.Adapter), append(ranks, q.AdapterRank)
		}
	}
	for i, name := range a.batch {
		step.Extra += a.load(name, ranks[i])
	}
	if !a.cfg.Merged {
		step.Extra += time.Duration(max(len(a.batch)-1, 0)) * a.cfg.Change()
		return
	}
	if a.turn != a.merged {
		a.merged = a.turn
		a.until = step.At + minTurn*a.cfg.Change()
		step.Extra += a.cfg.Change()
	}
	a.served.use(a.turn, func(string) bool { return false })
}

// load has an adapter in a slot, and says how long that takes.
func (a *adapters) load(name string, rank int) time.Duration {
	there := a.slots.use(name, func(other string) bool { return slices.Contains(a.batch, other) })
	if !there {
		a.loads++
		a.shown = slices.Sorted(maps.Keys(a.slots.used))
	}
	inHost := a.host.use(name, func(other string) bool { _, slot := a.slots.used[other]; return slot })
	if there {
		return 0
	}
	took := a.cfg.Load(rank, !inHost)
	a.loading += took
	return took
}

// AskedAdapters implements engine.AdapterTeller.
func (s *Scheduler) AskedAdapters() (running, waiting []string) {
	if !s.adapters.any {
		return nil, nil
	}
	runs, waits := map[string]bool{}, map[string]bool{}
	for _, q := range s.seqs {
		switch {
		case q.Adapter == "" || q.where == finished || q.where == kept:
		case len(q.Table.Refs()) > 0:
			runs[q.Adapter] = true
		default:
			waits[q.Adapter] = true
		}
	}
	return slices.Sorted(maps.Keys(runs)), slices.Sorted(maps.Keys(waits))
}

// An adapterCache keeps the adapters that were used last.
type adapterCache struct {
	limit int
	used  map[string]uint64
	clock uint64
}

// newAdapterCache has room for so many adapters, with 0 for maxKept.
func newAdapterCache(limit int) adapterCache {
	return adapterCache{limit: cmp.Or(limit, maxKept), used: map[string]uint64{}}
}

// use notes that an adapter is used now, and reports whether it was there. If it was not, it takes
// the place of the one that was used longest ago and is not to be kept.
func (c *adapterCache) use(name string, keep func(string) bool) (there bool) {
	c.clock++
	_, there = c.used[name]
	if !there && len(c.used) >= c.limit {
		oldest, first := "", c.clock
		for other, at := range c.used {
			if at < first && !keep(other) {
				oldest, first = other, at
			}
		}
		if first < c.clock {
			delete(c.used, oldest)
		}
	}
	c.used[name] = c.clock
	return there
}
