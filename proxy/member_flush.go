package proxy

import (
	"fmt"

	"kvferry/proto"
)

// flush has the node forget its prefixes. What comes of it is sent once: nil when the cache is
// empty.
func (m *member) flush() <-chan error {
	done := make(chan error, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up {
		done <- fmt.Errorf("%w: its stream is not open", errNoNode)
		return done
	}
	m.flushSeq++
	m.flushes[m.flushSeq] = done
	m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Flush{Flush: &proto.Flush{Seq: m.flushSeq}}})
	return done
}

// settleFlushes tells those that wait for flushes up to seq. The caller holds mu.
func (m *member) settleFlushes(seq uint64, err error) {
	for s, done := range m.flushes {
		if s <= seq {
			done <- err
			delete(m.flushes, s)
		}
	}
}

// forgetPrefixes has placement start anew: what it believes nodes to have, they have no more.
func (n *nodes) forgetPrefixes() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.places)
}
