package batching

import (
	"cmp"
	"math"
	"slices"
	"time"

	"kvferry/engine"
)

// merging says for each step whether an adapter is merged into the model's weights, and which: a
// step of the merged one has its sequences alone, which cost nothing more, and an unmerged step
// has what the policy says. It is the dynamic batching of dLoRA (Wu et al., OSDI 2024), as its
// artifact has it (LLMServe/dLoRA-artifact, vllm/core/scheduler.py: _credit_schedule,
// _adjust_credit, _adjust_merge_threshold). From there:
//
//   - The two possible batches are compared: the adapter's with the most sequences, and the one
//     without merging. One threshold says when an adapter is merged, a lower one how long it
//     stays. They begin at 1 and at the time of a merged step over that of an unmerged one.
//   - Each change has the threshold that led to it adjusted, by what the time since the change
//     before was worth: how many sequences a second its steps had, and how many they would have
//     had otherwise, changes included. The first falls by 0.05 if merged steps were better, and
//     rises by a tenth if not; the second rises by 0.05 if unmerged ones were, and falls by a tenth.
//   - Each adapter has credits, and so has the model itself. A merged step that passes sequences
//     over moves credits from the merged adapter to theirs. Whose credits reach a limit is served
//     in unmerged steps, until they are below a second, lower limit.
//
// What is ours:
//
//   - The artifact has measured once that a merged step of Llama-7B takes 15 ms and an unmerged
//     one 27 ms. Here what adapters cost depends on the batch, so it is measured in the last
//     unmerged steps, and thresholds are relative to it: at 15 to 27 they begin where the artifact's
//     do. The second is leastStay at least.
//   - A threshold that is never reached is adjusted too, once in reviewEvery unmerged steps.
//   - A sequence that is passed over is worth its part of the unmerged batch, and limits are in
//     whole batches; in the artifact it is worth one over the largest batch, and the limit is
//     10,000. Who was served for credits pays them back, to the one who owes most; in the
//     artifact others have to be passed over for it.
//   - What is compared are batches for which there are blocks: those who are passed over keep theirs,
//     and what waits has to find some. As in the artifact they have no place in the batch
//     meanwhile, as each step is bounded, not all that run; of too many an unmerged step has those
//     that were admitted first.
//
// So an adapter whose sequences could be in a step is passed over for a bounded number of steps:
// it gains its part of a batch with each, and owes no more than the limit, and a batch, for each
// of the others.
type merging struct {
	change      float64 // what one takes, in ns
	enter, stay float64
	credit      map[string]float64 // by adapter; their sum is 0
	starved     map[string]bool    // those that are being served for their credits

	next outlook
	best string // the adapter with the most sequences in next; empty for none
	since
	// Of the last unmerged steps, older ones counting less: how many, what they took, and what of
	// that adapters did, in ns.
	weight, took, added float64
}

// An outlook is what the next step could have.
type outlook struct {
	all   int            // sequences, unmerged
	of    map[string]int // an adapter's of these
	alone map[string]int // an adapter's, merged
}

// since is what the steps since a change, or a review, were worth.
type since struct {
	steps           float64
	merged, without float64 // sequences that they had, and would have had otherwise
	changed         float64 // 1 if they began with a change
	spared          float64 // changes that merging would have taken
	of              string  // the adapter that it would have begun with, or gone on to
}

const (
	// From the artifact.
	enterAtFirst = 27. / 15
	stayAtFirst  = 1.
	addToShare   = 0.05
	timesShare   = 1.1
	// Ours.
	creditLimit = 8
	creditRest  = creditLimit / 2
	leastStay   = 0.5 // of what is as fast as unmerged steps
	reviewEvery = 64
	forget      = 1 - 1./32 // of the weight of unmerged steps, with each
)

func newMerging(change time.Duration) merging {
	return merging{
		change: float64(change), enter: enterAtFirst, stay: stayAtFirst, credit: map[string]float64{}, starved: map[string]bool{},
		next: outlook{of: map[string]int{}, alone: map[string]int{}},
	}
}

// choose says which adapter the next step has merged, or none, where now one is, or none.
func (m *merging) choose(now string) string {
	n := &m.next
	m.best = ""
	for name, k := range n.alone {
		if most := n.alone[m.best]; name != "" && (m.best == "" || k > most || k == most && name < m.best) {
			m.best = name
		}
	}
	even := float64(n.all) * m.speed() // sequences in a merged step that is worth an unmerged one
	switch {
	case n.all == 0:
		return now
	case m.starving():
		return ""
	case now != "" && float64(n.alone[now]) >= m.stay*even:
		return now
	case float64(n.alone[m.best]) >= m.enter*even:
		return m.best
	}
	return ""
}

// speed is what a merged step takes over what an unmerged one does.
func (m *merging) speed() float64 {
	if m.took == 0 {
		return 1
	}
	return 1 - m.added/m.took
}

// starving reports whether one that could be in the next step is to be served for its credits.
func (m *merging) starving() (any bool) {
	for name := range m.next.of {
		if c := m.credit[name]; c >= creditLimit || m.starved[name] && c >= creditRest {
			m.starved[name], any = true, true
		} else {
			delete(m.starved, name)
		}
	}
	return any
}

// ran notes that the next step is launched, with what is merged now, and was before.
func (m *merging) ran(was, now string) {
	n := &m.next
	if was != now {
		m.review(was != "")
		m.since = since{changed: 1}
	}
	switch {
	case n.all == 0:
		return
	case now != "":
		m.count(now)
		m.pay(now)
		return
	case m.best != "":
		m.count(m.best)
		if m.of != m.best {
			m.of = m.best
			m.spared++
		}
		if m.steps >= reviewEvery {
			if m.better(m.spared, m.changed) {
				m.enter = max(m.enter-addToShare, m.stay)
			}
			m.since = since{of: m.of}
		}
	}
	m.repay()
}

// count has a step count that is, or would have been, an adapter's.
func (m *merging) count(adapter string) {
	m.steps++
	m.merged += float64(m.next.alone[adapter])
	m.without += float64(m.next.all)
}

// pay moves credits from an adapter to those that its step passes over.
func (m *merging) pay(adapter string) {
	n := &m.next
	for name, k := range n.of {
		if name != adapter {
			m.credit[name] += float64(k) / float64(n.all)
		}
	}
	m.credit[adapter] -= float64(n.all-n.of[adapter]) / float64(n.all)
	m.forget()
}

// forget forgets adapters if there are too many: of those that have nothing in the next step, who has
// the least credits or debts. They are then those of the one that owes most.
func (m *merging) forget() {
	if len(m.credit) <= maxKept {
		return
	}
	var names []string
	for name := range m.credit {
		if name != "" && m.next.of[name] == 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(math.Abs(m.credit[x]), math.Abs(m.credit[y])), cmp.Compare(x, y))
	})
	had := 0.
	for _, name := range names[:min(len(names), len(m.credit)-maxKept*7/8)] {
		had += m.credit[name]
		delete(m.credit, name)
		delete(m.starved, name)
	}
	m.credit[m.debtor()] += had
}

// repay moves credits from those that are served for them to the one that owes most.
func (m *merging) repay() {
	if len(m.starved) == 0 {
		return
	}
	owes := m.debtor()
	n := &m.next
	served := 0
	for name := range m.starved {
		served += n.of[name]
		m.credit[name] -= float64(n.of[name]) / float64(n.all)
	}
	m.credit[owes] += float64(served) / float64(n.all)
}

// debtor is the one that owes most.
func (m *merging) debtor() (name string) {
	least := 0.
	for other, c := range m.credit {
		if c < least || c == least && other < name {
			name, least = other, c
		}
	}
	return name
}

// review adjusts, at a change, the threshold that has led to it.
func (m *merging) review(wasMerged bool) {
	switch {
	case wasMerged && m.better(m.changed, 0):
		m.enter = max(m.enter-addToShare, m.stay)
	case wasMerged:
		m.enter *= timesShare
	case m.better(m.spared, m.changed):
		m.stay = max(m.stay/timesShare, leastStay)
	default:
		m.stay = min(m.stay+addToShare, m.enter)
	}
}

// better reports whether merged steps had more sequences a second, or would have had, with so many
// changes each.
func (m *merging) better(merged, without float64) bool {
	change := 0. // in unmerged steps
	if m.took > 0 {
		change = m.change * m.weight / m.took
	}
	return m.merged*(m.steps+without*change) > m.without*(m.steps*m.speed()+merged*change)
}

// measure notes what an unmerged step took, and what adapters' part of it was.
func (m *merging) measure(took, added time.Duration) {
	took = max(took, added) // whatever the executor says
	m.weight = m.weight*forget + 1
	m.took = m.took*forget + float64(took)
	m.added = m.added*forget + float64(added)
}

// A room is what is left in a batch.
type room struct{ places, blocks int }

// take reports whether there is room for one more, with blocks. Once there is not, there is none.
func (r *room) take(blocks int) bool {
	r.places--
	r.blocks -= blocks
	return r.places >= 0 && r.blocks >= 0
}

// look has next be what the step could have that is about to be formed: what runs, and of what
// waits as much as there is room for, in order, in a batch of all, or in one of an adapter's alone.
func (s *Scheduler) look() {
	n := &s.adapters.merging.next
	clear(n.of)
	clear(n.alone)
	n.all = 0
	for _, q := range s.running {
		if n.all < s.cfg.MaxNumSeqs {
			n.all++
			n.of[q.Adapter]++
		}
		if n.alone[q.Adapter] < s.cfg.MaxNumSeqs {
			n.alone[q.Adapter]++
		}
	}
	free := room{s.cfg.MaxNumSeqs - len(s.pending), s.cfg.Pool.Free()}
	all, rooms := room{free.places - len(s.running), free.blocks}, map[string]room{}
	slots := s.adapters.batch[:len(s.adapters.batch):len(s.adapters.batch)]
	for _, q := range s.waiting {
		if q.KV != engine.Compute || free.places <= 0 {
			break
		}
		blocks := 0
		if len(q.Table.Refs()) == 0 {
			blocks = s.missing(q, q.Len())
		}
		if s.adapters.slot(q, s.adapters.batch) {
			mine, ok := rooms[q.Adapter]
			if !ok {
				mine = room{free.places - n.alone[q.Adapter], free.blocks}
			}
			if mine.take(blocks) {
				n.alone[q.Adapter]++
			}
			rooms[q.Adapter] = mine
		}
		if s.adapters.slot(q, slots) && all.take(blocks) {
			n.all++
			n.of[q.Adapter]++
			slots = join(slots, q.Adapter)
		}
	}
}
