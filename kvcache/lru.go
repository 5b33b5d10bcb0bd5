package kvcache

// nowhere ends the list. A pool has at most 1<<32-1 blocks, so it is no block.
const nowhere = ^BlockID(0)

// A link is a block's position on the LRU list. The links live beside the blocks, so
// the list allocates nothing and removal from its middle costs a few loads.
type link struct{ prev, next BlockID }

// An lruList is the list of cached blocks that nobody holds, the one released
// longest ago at the front.
type lruList struct {
	front, back BlockID
	len         int
}

func newLRUList() lruList { return lruList{front: nowhere, back: nowhere} }

func (l *lruList) pushBack(prefixes []prefix, id BlockID) {
	prefixes[id].link = link{prev: l.back, next: nowhere}
	if l.back == nowhere {
		l.front = id
	} else {
		prefixes[l.back].link.next = id
	}
	l.back = id
	l.len++
}

func (l *lruList) remove(prefixes []prefix, id BlockID) {
	at := prefixes[id].link
	if at.prev == nowhere {
		l.front = at.next
	} else {
		prefixes[at.prev].link.next = at.next
	}
	if at.next == nowhere {
		l.back = at.prev
	} else {
		prefixes[at.next].link.prev = at.prev
	}
	l.len--
}

// popFront removes the block released longest ago; there must be one.
func (l *lruList) popFront(prefixes []prefix) BlockID {
	id := l.front
	l.remove(prefixes, id)
	return id
}
