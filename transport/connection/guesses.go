package connection

import (
	"fmt"
	"time"

	"kvferry/transport"
)

// Guesses counts the keys of a connection that open nothing. A peer whose windows were closed has slices with their
// keys under way, many with one key and at most QueueSlices in all; a peer that guesses uses a new key each time. So
// repeated keys do not count, QueueSlices others are forgiven, and guessesPerSecond more. The zero value has counted none.
type Guesses struct {
	last  transport.Key
	count float64
	at    time.Time
}

// guessesPerSecond is above what windows that are closed under peers come to in a busy cluster.
const guessesPerSecond = 100

// Refused counts a key. It returns an ErrProtocol, for which the connection is to be closed, if there were too many.
func (g *Guesses) Refused(key transport.Key, now time.Time) error {
	if key == g.last {
		return nil
	}
	g.count = max(0, g.count-guessesPerSecond*now.Sub(g.at).Seconds()) + 1
	g.last, g.at = key, now
	if g.count > QueueSlices {
		return fmt.Errorf("%w: it has used more than %d keys that open nothing: does it guess them?", transport.ErrProtocol, QueueSlices)
	}
	return nil
}
