package sim

import (
	"cmp"
	"slices"

	"kvferry/attempt"
	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/placement"
)

// considerLater has the policy asked at the next multiple of the interval, while there are
// requests.
func (c *cluster) considerLater() {
	if c.migration == nil || c.balancing {
		return
	}
	c.balancing = true
	every := c.cfg.Migration.Interval
	c.agenda.Push(c.now/every*every+every, event{kind: balance})
}

// balance asks the policy which requests go on elsewhere.
func (c *cluster) balance() {
	c.balancing = false
	if len(c.flights) == 0 {
		return
	}
	c.considerLater()
	g := &c.decode
	if c.cfg.Nondisagg > 0 {
		g = &c.compute
	}
	nodes := make([]placement.Node, len(g.nodes))
	at := make(map[*node]*placement.Node, len(nodes))
	for i, n := range g.nodes {
		nodes[i] = placement.Node{Candidate: *n.load, FreeBlocks: n.pool.Free()}
		at[n] = &nodes[i]
	}
	flights := make([]*flight, 0, len(c.flights))
	for _, f := range c.flights {
		if f.attempt.Movable() {
			flights = append(flights, f)
		}
	}
	slices.SortFunc(flights, func(a, b *flight) int { return cmp.Compare(a.id, b.id) })
	for _, f := range flights {
		moves, _ := f.attempt.Migrations()
		n := at[*f.generates()]
		n.Running = append(n.Running, placement.Running{
			ID: f.id, Adapter: f.Adapter, Tokens: len(f.prompt) + f.Tokens, Left: f.attempt.Left(), Moves: moves,
		})
	}
	for _, m := range c.migration.Migrate(nodes) {
		if f, to := c.flights[m.ID], c.names[m.To]; f != nil && to != nil && to != *f.generates() {
			c.migrate(f, to)
		}
	}
}

// generates is where the node is that emits the tokens.
func (f *flight) generates() **node {
	if f.decode != nil {
		return &f.decode
	}
	return &f.compute
}

// on reports whether a node has a leg of the request, and not only had one.
func (f *flight) on(n *node) bool { return n == f.compute || n == f.decode || n == f.target }

// migrate begins to move a request.
func (c *cluster) migrate(f *flight, to *node) {
	if !f.attempt.Migrate() {
		return
	}
	f.target = to
	to.load.InFlight++
	prompt := slices.Concat(f.prompt, f.out)
	f.known = len(prompt)
	s := connector.Submit{
		ID: f.id, Leg: handoff.DecodeLeg, Handoff: handoff.Migration, Prompt: prompt, MaxTokens: f.attempt.MaxTokens(handoff.MigrationLeg), Age: c.now - f.arrived,
		Adapter: f.Adapter, AdapterRank: c.cfg.Ranks.Of(f.Adapter),
	}
	s.Reserve = attempt.Reserve(s.MaxTokens)
	if c.cfg.PrefixCaching {
		s.Prefix = prefixHashes(f.Adapter, prompt, c.cfg.Profile.KVGeometry.BlockTokens)
	}
	to.coming++
	to.comingBlocks += c.cfg.Profile.KVGeometry.Blocks(len(prompt))
	c.send(to, s, c.now+c.cfg.RPC)
}

// migrated goes on when a node has moved a request, or could not.
func (c *cluster) migrated(n *node, m *connector.Migrated) {
	f := c.flights[m.ID]
	if f == nil || !f.on(n) {
		return
	}
	f.moving = *m
	var next attempt.Next
	var err error
	c.tokens, next, err = f.attempt.Migrated(c.tokens[:0], f.legOf(n), m.Tokens, c.now+c.cfg.RPC)
	c.outAll(f)
	if next == attempt.Continue {
		c.send(f.target, connector.Continue{ID: f.id, Tokens: slices.Clone(m.Tokens)}, c.now+2*c.cfg.RPC)
		return
	}
	c.proceed(n, f, nil, 0, next, err)
}

// handed lets the node go that had a request which goes on on another one.
func (c *cluster) handed(f *flight) {
	from := f.generates()
	(*from).load.InFlight--
	c.send(*from, connector.Cancel{ID: f.id}, c.now+2*c.cfg.RPC)
	if *from == f.compute && f.Migrations == 0 {
		f.Cached = f.moving.Cached
	}
	f.Breakdown.Add(&f.moving.Breakdown)
	f.Migrations++
	*from, f.target = f.target, nil
}

// stay has a request go on where it is.
func (c *cluster) stay(f *flight) {
	c.letGo(f)
	c.send(*f.generates(), connector.Resume{ID: f.id}, c.now+2*c.cfg.RPC)
}

// letGo ends the leg on a node that was to take a request over.
func (c *cluster) letGo(f *flight) {
	if f.target == nil {
		return
	}
	f.target.load.InFlight--
	c.send(f.target, connector.Cancel{ID: f.id}, c.now+2*c.cfg.RPC)
	f.target = nil
}
