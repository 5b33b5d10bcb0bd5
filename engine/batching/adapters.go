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
// Where one adapter is merged into the model's weights, a step has its sequences alone. Where that
// is always so, adapters take turns, and so does the model itself: the one that was served longest ago is next,
// and a turn lasts until nobody of it can go on, or, if others wait, minTurn times what the change took. Where it is
// dynamic, see merging.
type adapters struct {
	cfg         engine.LoRA
	any         bool // a request with an adapter has come
	slots, host adapterCache
	shown       []string      // those in slots, by name; never changed
	batch       []string      // those of the sequences that have blocks
	loads       uint64        // into slots
	loading     time.Duration // that they took
	added       time.Duration // what computing with adapters adds to the step under way
	beside      time.Duration // and what loading them and changing what is merged does

	// Of merged ones. turn is whose step is being formed, if turning: the adapter's that is to be
	// merged, or empty for the model's. switches is how often that changed.
	turning  bool
	order    []string // of turns to try
	turn     string
	merged   string
	switches uint64
	until    time.Duration // the turn of the merged one goes on till then
	served   adapterCache  // those that a step had; the model itself is one of them
	merging  merging
}

// maxKept is for how many adapters there is room where a profile has no bound: as many as a proxy serves at a
// time. A name that nobody asks for any more is forgotten when others have come.
const maxKept = 1 << 12

// minTurn bounds the share of time that changes take, to one in 1+minTurn.
const minTurn = 10

func newAdapters(cfg engine.LoRA) adapters {
	return adapters{cfg: cfg, slots: newAdapterCache(cfg.MaxLoRAs), host: newAdapterCache(cfg.MaxCPULoRAs), served: newAdapterCache(0), merging: newMerging(cfg.Switch())}
}

// bounded reports whether the batch has room for some adapters only. Where one is always merged each
// step has one, so none is too many.
func (a *adapters) bounded() bool {
	return a.any && a.cfg.MaxLoRAs > 0 && a.cfg.Merged != engine.MergeAlways
}

// slot reports whether a sequence has its adapter among those of a batch, or room for it there.
func (a *adapters) slot(q *sequence, batch []string) bool {
	return q.Adapter == "" || !a.bounded() || len(batch) < a.cfg.MaxLoRAs || slices.Contains(batch, q.Adapter)
}

// join adds an adapter to those of a batch.
func join(batch []string, name string) []string {
	if name == "" || slices.Contains(batch, name) {
		return batch
	}
	return append(batch, name)
}

// gather notes whose adapters are in the batch, before others join.
func (a *adapters) gather(s *Scheduler) {
	a.batch = a.batch[:0]
	if !a.bounded() {
		return
	}
	for _, list := range [...][]*sequence{s.running, s.pending, s.waiting} {
		for _, q := range list {
			if len(q.Table.Refs()) > 0 {
				a.batch = join(a.batch, q.Adapter)
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
	case !a.slot(q, a.batch):
		s.starved = true
		return false
	}
	if a.bounded() {
		a.batch = join(a.batch, q.Adapter)
	}
	return true
}

// serves reports whether a step may have a sequence: if adapters take turns, in its own.
func (a *adapters) serves(q *sequence) bool { return !a.turning || q.Adapter == a.turn }

// form has the policy form a step: the first of those that it may be that has anything.
func (s *Scheduler) form(step *engine.Step, now time.Duration) {
	a := &s.adapters
	a.order = append(a.order[:0], "")
	if a.any && a.cfg.Merged == engine.MergeAlways {
		a.order = a.turns(s, now)
	} else if a.any && a.cfg.Merged == engine.MergeDynamic {
		s.look()
		if one := a.merging.choose(a.merged); one != "" {
			a.order = append(a.order[:0], one, "")
		}
	}
	for _, a.turn = range a.order {
		a.turning = a.alone()
		s.policy.form(s, step)
		s.park()
		if len(step.Works) > 0 {
			break
		}
	}
	a.turning = false
}

// alone reports whether a step of this turn has no other's sequences.
func (a *adapters) alone() bool {
	return a.turn != "" || a.any && a.cfg.Merged == engine.MergeAlways
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
func (a *adapters) turns(s *Scheduler, now time.Duration) []string {
	names := a.order[:0]
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
	a.batch, a.added, a.beside = a.batch[:0], 0, 0
	var ranks []int
	for i := range step.Works {
		q := step.Works[i].Seq
		if q.Adapter == "" {
			continue
		}
		a.added += a.cfg.Token(step.Works[i].N, q.AdapterRank)
		if !slices.Contains(a.batch, q.Adapter) {
			a.batch, ranks = append(a.batch, q.Adapter), append(ranks, q.AdapterRank)
		}
	}
	a.added += time.Duration(max(len(a.batch)-1, 0)) * a.cfg.Another()
	if a.alone() {
		a.added = 0
	}
	for i, name := range a.batch {
		a.beside += a.load(name, ranks[i])
	}
	was := a.merged
	if a.merged = a.turn; a.merged != was {
		a.switches++
		a.until = step.At + minTurn*a.cfg.Switch()
		a.beside += a.cfg.Switch()
	}
	step.Extra += a.added + a.beside
	switch a.cfg.Merged {
	case engine.MergeAlways:
		a.served.use(a.turn, func(string) bool { return false })
	case engine.MergeDynamic:
		a.merging.ran(was, a.merged)
	}
}

// done notes how long a step took.
func (a *adapters) done(step *engine.Step, took time.Duration) {
	if a.any && a.cfg.Merged == engine.MergeDynamic && step.Kind != engine.Receive && !a.alone() {
		a.merging.measure(took-a.beside, a.added)
	}
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
