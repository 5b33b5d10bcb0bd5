package connector

import "kvferry/engine"

// A Driver does what a Core wants done: a node's worker with a clock, sockets and memory,
// or a simulation with none. Its methods return at once; what they begin ends in an Event.
// Pointers are valid until the next Step.
type Driver interface {
	Launch(step *engine.Step, layers, read bool) // see Actions
	Copy(c engine.Copy)
	Token(t Token)
	Move(m *Move)
	Check(c *Check)
	Reserved(o *Offer)
	Prefilled(p *Prefilled)
	Migrated(m *Migrated)
	Finished(f *Finished)
	Failed(f *Failed)
	Ask(a Ask)
	Answer(a Answer)
	Halt(id uint64)
	Close(id uint64)
	Drop(id uint64)
}

// Perform has d do all of this, in the one order in which it may be done:
//
//  1. The step comes first: the GPU waits for nothing here. Then come copies within the node.
//  2. A request's tokens come before its end, and so do moves and checks: what they use is
//     let go of after them.
//  3. An offer opens its window before anybody can be told of it. So offers come before
//     what else is said to other nodes.
//  4. A window is closed when all is said: until then a peer's question about it is
//     answered by what it was.
//  5. Nothing is known of a request any more once it is dropped.
func (a *Actions) Perform(d Driver) {
	if a.Launch != nil {
		d.Launch(a.Launch, a.Layers, a.Read)
	}
	for _, k := range a.Copies {
		d.Copy(k)
	}
	for _, t := range a.Tokens {
		d.Token(t)
	}
	for i := range a.Moves {
		d.Move(&a.Moves[i])
	}
	for i := range a.Checks {
		d.Check(&a.Checks[i])
	}
	for i := range a.Reserved {
		d.Reserved(&a.Reserved[i])
	}
	for i := range a.Prefilled {
		d.Prefilled(&a.Prefilled[i])
	}
	for i := range a.Migrated {
		d.Migrated(&a.Migrated[i])
	}
	for i := range a.Finished {
		d.Finished(&a.Finished[i])
	}
	for i := range a.Failed {
		d.Failed(&a.Failed[i])
	}
	for _, q := range a.Ask {
		d.Ask(q)
	}
	for _, q := range a.Answer {
		d.Answer(q)
	}
	for _, id := range a.Halt {
		d.Halt(id)
	}
	for _, id := range a.Close {
		d.Close(id)
	}
	for _, id := range a.Drop {
		d.Drop(id)
	}
}
