package members

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"kvferry/proto"
)

// List is a Membership in memory: its nodes are those that the program has join. All of its
// methods may be called at once.
type List struct {
	mu       sync.Mutex
	closed   bool
	nodes    map[uint64]*Node  // by incarnation
	ids      map[string]uint64 // their incarnations
	watchers map[*watcher]bool
}

// NewList has these nodes join.
func NewList(nodes ...*proto.NodeInfo) *List {
	l := &List{nodes: make(map[uint64]*Node), ids: make(map[string]uint64), watchers: make(map[*watcher]bool)}
	for _, info := range nodes {
		l.Join(info)
	}
	return l
}

// Join adds a node and returns its incarnation, a number that nobody can guess. A node with
// the same id is gone before, with ErrReplaced. After Close nobody joins, and it is 0.
func (l *List) Join(info *proto.NodeInfo) (incarnation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0
	}
	l.leave(l.ids[info.Id], ErrReplaced)
	for incarnation == 0 || l.nodes[incarnation] != nil {
		incarnation = rand.Uint64()
	}
	n := &Node{Info: info, Incarnation: incarnation}
	l.nodes[incarnation], l.ids[info.Id] = n, incarnation
	l.tell(Change{Kind: Joined, Node: *n})
	return incarnation
}

// Report is a node's heartbeat; a nil load leaves the last one. The list owns both from now
// on. A node whose load says so drains, and goes on to.
func (l *List) Report(incarnation uint64, load *proto.Load, rails []*proto.RailLoad) {
	l.change(incarnation, func(n *Node) {
		n.Rails = rails
		if load != nil {
			n.Load, n.Draining = load, n.Draining || load.Draining
		}
	})
}

// Drain has a node drain.
func (l *List) Drain(incarnation uint64) {
	l.change(incarnation, func(n *Node) { n.Draining = true })
}

// change does nothing for one that is gone.
func (l *List) change(incarnation uint64, do func(*Node)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[incarnation]; n != nil {
		do(n)
		l.tell(Change{Kind: Changed, Node: *n})
	}
}

// Leave takes a node out, for a cause such as ErrLeft. That is nothing for one that is gone.
func (l *List) Leave(incarnation uint64, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(incarnation, cause)
}

// leave is Leave. The caller holds mu.
func (l *List) leave(incarnation uint64, cause error) {
	if n := l.nodes[incarnation]; n != nil {
		delete(l.nodes, incarnation)
		delete(l.ids, n.Info.Id)
		l.tell(Change{Kind: Gone, Node: *n, Cause: cause})
	}
}

// Close takes all nodes out, and ends what watches once it was told so.
func (l *List) Close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.sorted() {
		l.leave(n.Incarnation, cause)
	}
	l.closed = true
	for w := range l.watchers {
		w.wake()
	}
}

// sorted are the nodes by id. The caller holds mu.
func (l *List) sorted() []*Node {
	return slices.SortedFunc(maps.Values(l.nodes), func(a, b *Node) int { return cmp.Compare(a.Info.Id, b.Info.Id) })
}

// tell has the watchers told. The caller holds mu.
func (l *List) tell(c Change) {
	for w := range l.watchers {
		w.add(c)
	}
}

// Watch implements [Membership].
func (l *List) Watch(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		w := &watcher{ready: make(chan struct{}, 1)}
		l.mu.Lock()
		for _, n := range l.sorted() {
			w.add(Change{Kind: Joined, Node: *n})
		}
		l.watchers[w] = true
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.watchers, w)
		}()
		for {
			c, ok := l.next(ctx, w)
			if !ok || !yield(c) {
				return
			}
		}
	}
}

// next waits for something to tell a watcher; false if that is over.
func (l *List) next(ctx context.Context, w *watcher) (Change, bool) {
	for {
		if ctx.Err() != nil {
			return Change{}, false
		}
		l.mu.Lock()
		c, ok := w.take()
		closed := l.closed
		l.mu.Unlock()
		if ok || closed {
			return c, ok
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
	}
}

// A watcher is what one reader has still to be told. List.mu guards it.
type watcher struct {
	ready   chan struct{} // one buffered wake-up
	pending []Change      // of a node at most a Gone, and then a Joined or Changed
}

// add appends a change, and takes out what that makes old.
func (w *watcher) add(c Change) {
	at := slices.IndexFunc(w.pending, func(p Change) bool { return p.Kind != Gone && p.Node.Incarnation == c.Node.Incarnation })
	switch {
	case at < 0:
		w.pending = append(w.pending, c)
	case c.Kind == Changed:
		w.pending[at].Node = c.Node // one that has not been told of joins as it is now
	default:
		joined := w.pending[at].Kind == Joined
		w.pending = slices.Delete(w.pending, at, at+1)
		if joined {
			return // it came and went
		}
		w.pending = append(w.pending, c)
	}
	w.wake()
}

func (w *watcher) take() (c Change, ok bool) {
	if len(w.pending) == 0 {
		return c, false
	}
	c = w.pending[0]
	w.pending = slices.Delete(w.pending, 0, 1)
	return c, true
}

func (w *watcher) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}
