// Package sim runs a cluster in virtual time: the scheduler, the hand-offs and
// the placement policies are the ones that the daemons run (packages engine,
// connector and placement), and only what surrounds them is another. Where a
// daemon waits out a step and moves bytes, a simulated node notes when the step
// ends and the network says when the bytes are there. Nothing is waited for, so a
// minute of a cluster takes as long as its events do, about a microsecond each. What concerns one
// node or one pair of them for a while is gone through together: coast.go has steps that are all
// alike, convoy.go layers that meet nobody on their way.
//
//	load.Load ──▶ dispatch ──▶ node (connector.Core + engine.CostModel) ──▶ Outcome
//	                 ▲             │ moves      ▲ moved, arrived
//	                 │             ▼            │
//	             placement       network: NICs, max-min fair
//
// A [Config] says what the cluster is, a [load.Load] what it is asked, the same that a
// live client takes; [Run] goes through it. In a closed loop the next request arrives
// when one has ended. Each request that ends is an [Outcome], given to whoever asked
// for it and then forgotten.
//
// Units: times are durations since the start of the run, sizes bytes, rates bytes
// a second.
//
// What is modelled and what is left out. Steps cost what the profile says. A NIC
// carries its rate each way at once; transfers that share one get equal parts of
// it, and what one of them cannot use the others do (max-min fairness). Messages
// of the control plane take Config.RPC. Not modelled: the proxy's own work, the
// consumer's check of the bytes, and loss. The switches are as fast as their ports,
// or Config.Oversubscription says how much slower.
//
// Everything is deterministic. Events at the same time happen in the order in
// which they were caused, so equal configurations and loads give equal outcomes
// to the last bit.
package sim
