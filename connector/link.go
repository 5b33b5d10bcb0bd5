package connector

import "kvferry/handoff"

// This file counts the KV that is still to cross the node's link, for placement. On the prefill
// side that is what is computed and not at the decode node yet; on the decode side what a leg
// that is here still waits for, from the moment it came.

// LinkQueued is how many bytes of KV this node's hand-offs have still to move, either way.
func (c *Core) LinkQueued() int64 { return c.queued }

// queue notes that of the parts of a request's KV some are still to cross the link.
func (c *Core) queue(r *request, left, parts int) {
	bytes := int64(0)
	if left > 0 {
		bytes = int64(c.moving(r)) * int64(c.cfg.Profile.KVGeometry.TokenBytes()) * int64(left) / int64(parts)
	}
	c.queued += bytes - r.queued
	r.queued = bytes
}

// moving is how many of a prompt's tokens move: a decode node has some in its prefix cache.
func (c *Core) moving(r *request) int {
	if r.Leg == handoff.DecodeLeg && r.seq != nil {
		return len(r.Prompt) - r.seq.Cached()
	}
	return len(r.Prompt)
}
