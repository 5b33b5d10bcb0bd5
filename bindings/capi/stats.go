package capi

import "kvferry/transport"

// A Rail is what one rail has done so far, laid out as C's kvf_rail.
type Rail struct {
	Name        [64]byte  // "tcp/eth0", ending in zeros
	Address     [128]byte // what peers dial
	Written     uint64    // bytes of this engine's batches, completed
	Read        uint64    // likewise
	Slices      uint64    // posted
	Errors      uint64    // slices that ended with an error
	Retries     uint64    // slices queued again, here or on another rail
	Resent      uint64    // bytes of those that had been posted
	InFlight    uint64    // bytes queued and posted now
	Rate        uint64    // bytes/s that its paths were last seen to deliver
	Dials       uint64    // attempts to connect
	DialErrors  uint64    // those that failed
	Connections uint64    // open now
	Paths       uint64    // to peers
	PathsUp     uint64    // of them connected
	Downs       uint64    // times that a path was lost or given up
}

// Rails are the counts of the engine's rails, in the order of Options.Rails.
func (e *Engine) Rails() []Rail {
	var all []Rail
	for _, s := range e.engine.Rails() {
		r := Rail{
			Written: uint64(s.Write.Bytes), Read: uint64(s.Read.Bytes), Slices: uint64(s.Posted), Errors: uint64(s.Errors),
			Retries: uint64(s.Retries), Resent: uint64(s.Resent), InFlight: uint64(s.InFlight), Rate: uint64(s.Rate),
			Dials: uint64(s.Dials), DialErrors: uint64(s.DialErrors), Connections: uint64(s.Conns),
			Paths: uint64(s.Paths), PathsUp: uint64(s.Up), Downs: uint64(s.Downs),
		}
		PutText(r.Name[:], s.Name)
		PutText(r.Address[:], s.Addr)
		all = append(all, r)
	}
	return all
}

// A Record is a Completion laid out as C's kvf_completion.
type Record struct {
	Batch    Handle
	UserData uint64
	Bytes    uint64
	Nanos    uint64 // from Submit to its end
	Code     Code
	Reserved uint32
	Text     [256]byte // of the error; empty if there is none
}

// A Letter is a message's envelope, laid out as C's kvf_message.
type Letter struct {
	Length  uint64
	Sender  [256]byte
	Segment [256]byte
}

// LetterOf is a message's envelope as C has it.
func LetterOf(m *transport.Message) Letter {
	l := Letter{Length: uint64(len(m.Bytes))}
	PutText(l.Sender[:], m.Sender)
	PutText(l.Segment[:], m.Segment)
	return l
}

// RecordOf is a completion as C has it.
func RecordOf(c *Completion) Record {
	r := Record{Batch: c.Batch, UserData: c.UserData, Bytes: uint64(c.Bytes), Nanos: uint64(max(c.Elapsed, 0)), Code: CodeOf(c.Err)}
	if c.Err != nil {
		PutText(r.Text[:], c.Err.Error())
	}
	return r
}
