package node

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/connector"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
)

// DefaultKVChecks finds what is wrong before a token drawn from it leaves, but for changes of a
// decode node's memory while it decodes: these are found before the last token leaves.
const DefaultKVChecks = "landing,hit,last"

// kvChecks is Config.KVChecks, read.
type kvChecks struct {
	landing bool
	connector.Checks
}

func parseKVChecks(list string) (k kvChecks, err error) {
	if list == "none" {
		return k, nil
	}
	whens := map[string]*bool{"landing": &k.landing, "hit": &k.Hit, "first": &k.First, "last": &k.Last}
	for name := range strings.SplitSeq(list, ",") {
		every, isEvery := strings.CutPrefix(name, "every=")
		switch when := whens[name]; {
		case when != nil && *when || isEvery && k.Every > 0:
			return k, fmt.Errorf("%q: the list has it already: name each check once", name)
		case when != nil:
			*when = true
		case isEvery:
			if k.Every, err = strconv.Atoi(every); err != nil || k.Every < 1 {
				return k, fmt.Errorf("%q: use a number of tokens of 1 or more: every=64", name)
			}
		default:
			return k, fmt.Errorf("%q: use landing and, behind commas, hit, first, last and every=N; or none alone", name)
		}
	}
	if !k.landing {
		return k, fmt.Errorf("%q: add landing: what the others compare blocks with is recorded when they land", list)
	}
	return k, nil
}

// maxLent bounds how many legs are remembered whose KV went to other nodes.
const maxLent = 1024

// lent are blocks of which other nodes have a copy.
type lent struct {
	key   any // legKey, or migrationKey of those that a migration writes
	leg   *live
	first int // index of refs[0] in the block table
	refs  []kvcache.Ref
}

// lend remembers the blocks of a leg that another node reads, or gets written: it may find them
// wrong when the leg has ended.
func (w *worker) lend(key any, l *live, first int, refs []kvcache.Ref) {
	if len(w.lent) >= maxLent {
		n := 0 // the older half, but for legs that go on
		w.lent = slices.DeleteFunc(w.lent, func(b lent) bool {
			n++
			return n <= maxLent/2 && w.live[b.leg.id] != b.leg
		})
	}
	w.lent = append(w.lent, lent{key, l, first, slices.Clone(refs)})
}

// changed compares the blocks that were lent under key with their digests, and returns how many are bad and what is
// wrong with the last. It does so at once, on the loop: something has gone wrong, and nothing may be recycled meanwhile.
// Blocks that were are left out. A block that has changed is evicted from the prefix cache, with those after it. If all
// are right, the moves of key are to blame, for reason.
func (w *worker) changed(key any, reason string) (bad int, err error) {
	g := w.cfg.Profile.KVGeometry
	for _, b := range w.lent {
		if b.key != key {
			continue
		}
		for i, ref := range b.refs {
			if !w.pool.Current(ref) {
				continue
			}
			if _, e := w.slab.Verify(ref, b.first+i, 0, g.Layers+min(g.HiddenSize, 1)); e != nil {
				bad++
				err = fmt.Errorf("request %s: %w: %w: %w", b.leg.name, connector.ErrContent, connector.ErrChanged, e)
				w.log.Error("a KV block has changed in this node's memory", "request", b.leg.name, "err", e)
				w.pool.Evict(b.refs[i:])
			}
		}
	}
	if bad == 0 {
		w.kv.Blame(key, fmt.Errorf("%w: %s", connector.ErrContent, reason))
	}
	return bad, err
}

// doubted answers for the KV of a leg that came out wrong on another node.
func (w *worker) doubted(s *session, sid uint64, reason string) {
	out := &proto.Failed{Id: sid, Code: proto.FailCode_FAIL_SOUND, Message: "its KV is as it was computed", Retryable: true}
	if bad, err := w.changed(legKey{s, sid}, reason); bad > 0 {
		out.Code, out.Message, out.Breakdown = proto.FailCode_FAIL_CHANGED, err.Error(), &proto.Breakdown{KvBlocksBad: uint32(bad)}
	}
	m := w.message(s)
	m.Failed = append(m.Failed, out)
}

// wanted are the digests that came with a part of a leg's KV, from a block on; none if none did.
func (l *live) wanted(part kvtransfer.Part, first int) (none kvtransfer.Digests) {
	for _, d := range l.want[part] {
		if d.Covers(first) {
			return d
		}
	}
	return none
}

// expect keeps the digests of a part that there may be, up to one for each of so many blocks.
func (l *live) expect(part kvtransfer.Part, d kvtransfer.Digests, blocks, layers int) {
	if part.Layer > layers || len(l.want[part]) >= blocks || l.wanted(part, d.First).Run > 0 {
		return
	}
	if l.want == nil {
		l.want = make(map[kvtransfer.Part][]kvtransfer.Digests)
	}
	l.want[part] = append(l.want[part], d)
}
