// Package migration has a proxy's requests that generate go on on other nodes: it asks a policy
// of package placement every so often, and tells each request where to go. How one goes is the
// request's own, see package attempt.
package migration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvferry/placement"
)

// A Roster has the requests that generate. Safe for concurrent use; a nil one has none, and
// nobody goes anywhere.
type Roster struct {
	cfg placement.MigrationConfig

	mu      sync.Mutex
	next    uint64
	entries map[uint64]*Entry
	policy  placement.Migration // made when the nodes' block size is known
	blocks  int                 // that size, in tokens
}

// New returns a roster of no requests, nil if none ever moves.
func New(cfg placement.MigrationConfig) *Roster {
	if !cfg.Migrates() {
		return nil
	}
	return &Roster{cfg: cfg, entries: make(map[uint64]*Entry)}
}

// An Entry is a request. Its methods are the request's own, those of nil do nothing.
type Entry struct {
	r       *Roster
	wake    func()
	node    string // where it generates; "" if it cannot be moved now
	running placement.Running
	to      string // where it is to go
}

// Join returns the entry of a request, which is woken when it is to go somewhere. Leave ends it.
func (r *Roster) Join(adapter string, wake func()) *Entry {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	e := &Entry{r: r, wake: wake, running: placement.Running{ID: r.next, Adapter: adapter}}
	r.entries[r.next] = e
	return e
}

// Leave takes the request out.
func (e *Entry) Leave() {
	if e == nil {
		return
	}
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	delete(e.r.entries, e.running.ID)
}

// Set says how far the request is: the node where it generates, "" if it cannot go elsewhere now;
// its tokens so far, prompt included, and those still to come; and how often it was moved.
func (e *Entry) Set(node string, tokens, left, moves int) {
	if e == nil {
		return
	}
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	e.node, e.running.Tokens, e.running.Left, e.running.Moves = node, tokens, left, moves
}

// Take is where the request is to go, once; "" if it stays.
func (e *Entry) Take() (to string) {
	if e == nil {
		return ""
	}
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	to, e.to = e.to, ""
	return to
}

// Run asks the policy until ctx ends. groups are the nodes of each role on which requests
// generate, without what runs there.
func (r *Roster) Run(ctx context.Context, groups func() (nodes [][]placement.Node, blockTokens int)) {
	if r == nil {
		return
	}
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.Step(groups())
		}
	}
}

// Step asks the policy once, and wakes those that are to go.
func (r *Roster) Step(groups [][]placement.Node, blockTokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policy == nil || r.blocks != blockTokens {
		var err error
		if r.policy, err = r.cfg.New(blockTokens); err != nil {
			panic(fmt.Sprintf("migration: %v", err)) // Check has looked
		}
		r.blocks = blockTokens
	}
	for _, nodes := range groups {
		for i := range nodes {
			n := &nodes[i]
			for _, e := range r.entries {
				if e.node == n.ID && e.to == "" {
					n.Running = append(n.Running, e.running)
				}
			}
			slices.SortFunc(n.Running, func(a, b placement.Running) int { return cmp.Compare(a.ID, b.ID) })
		}
		for _, m := range r.policy.Migrate(nodes) {
			if e := r.entries[m.ID]; e != nil && e.node == m.From && m.To != m.From {
				e.to = m.To
				e.wake()
			}
		}
	}
}
