package sim

import (
	"fmt"
	"time"
)

// nextArrival asks the load for its next request. Where as many as may be are under way,
// it is held back.
func (c *cluster) nextArrival() {
	r, ok, err := c.load.Next()
	switch {
	case err != nil:
		c.err = err
		return
	case !ok:
		return
	case r.At < c.coming.At:
		c.err = fmt.Errorf("sim: the load goes back in time: request at %v after %v", r.At, c.coming.At)
		return
	}
	c.coming = r
	if c.held = c.load.InFlight > 0 && c.inFlight >= c.load.InFlight; !c.held {
		c.agenda.push(max(r.At, c.now), event{kind: arrive})
	}
}

// room has the request that was held back arrive, as one has ended whose client had its
// last token at that time.
func (c *cluster) room(last time.Duration) {
	c.inFlight--
	if c.held {
		c.held = false
		c.agenda.push(max(c.coming.At, last, c.now), event{kind: arrive})
	}
}
