package transport

import (
	"errors"
	"fmt"

	"kvferry/transport/immediate"
)

// MaxMessage is how long a batch's message may be, MaxName the name of an engine, and MaxText what every rail carries
// with an immediate, in bytes.
const (
	MaxMessage = immediate.MaxMessage
	MaxName    = immediate.MaxName
	MaxText    = immediate.MaxText
)

// A Message is bytes that came with a peer's batch, after its data: see BatchOptions.Message.
type Message struct {
	Sender  string // Config.Name of the peer's engine: what it says of itself
	Bytes   []byte // the callee's
	Segment string // name of the segment or window whose key it came with
	Rail    string // the local rail it came over
}

// cutMessage takes the message of the options, which the caller may change from now on.
func (b *Batch) cutMessage() error {
	switch {
	case b.opt.Message == nil:
		return nil
	case b.opt.HasImm:
		return fmt.Errorf("%w: an immediate and a message: leave one out", ErrInvalid)
	case len(b.opt.Message) > MaxMessage:
		return fmt.Errorf("%w: a message of %d bytes, more than %d", ErrInvalid, len(b.opt.Message), MaxMessage)
	}
	b.parts = immediate.Cut(b.e.cfg.Name, b.opt.Message)
	b.opt.HasImm, b.opt.Message = true, nil
	if last := len(b.parts) - 1; last > 0 && !b.number() {
		return ErrBusy
	}
	return nil
}

// sendParts sends all of a message but its last part, beside the batch's bytes.
func (b *Batch) sendParts() {
	if len(b.parts) < 2 {
		return
	}
	var run []*Slice
	for _, m := range b.parts[:len(b.parts)-1] {
		m.Source, m.Seq, m.Floor = b.imm.Source, b.imm.Seq, b.imm.Floor
		run = append(run, &Slice{Op: Write, HasImm: true, Imm: m, batch: b, target: b.t})
	}
	b.mu.Lock()
	b.again = append(b.again, run...)
	b.mu.Unlock()
	b.t.peer.signal(run)
}

// message takes an immediate that has text, of a key that may be used so.
func (e *Engine) message(at keyAt, segment string, imm Imm) error {
	name, text, err := e.inbox.Message(imm)
	switch {
	case errors.Is(err, immediate.ErrFull):
		return ErrBusy
	case err != nil:
		return ErrBounds
	case text == nil:
		if !imm.Part() {
			e.accts[at.rail].ImmRepeats.Add(1)
		}
		return nil
	}
	e.accts[at.rail].ImmIn.Add(1)
	if f := e.cfg.OnMessage; f != nil {
		f(Message{Sender: name, Bytes: text, Segment: segment, Rail: e.cfg.Rails[at.rail].Name()})
	}
	return nil
}
