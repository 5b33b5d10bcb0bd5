package health

import "time"

// waitLevels are the expected waits that are worth a line in the log.
var waitLevels = []time.Duration{time.Second, 10 * time.Second, time.Minute}

// Alarm tells when the expected wait has passed one of them. It falls back below
// half of it before it does again, lest a wait about a level fill the log.
type Alarm struct{ Level int }

// Step takes the wait as it is now and reports whether that is news.
func (a *Alarm) Step(wait time.Duration) (news bool) {
	before := a.Level
	for a.Level < len(waitLevels) && wait >= waitLevels[a.Level] {
		a.Level++
	}
	for a.Level > 0 && wait < waitLevels[a.Level-1]/2 {
		a.Level--
	}
	return a.Level != before
}
