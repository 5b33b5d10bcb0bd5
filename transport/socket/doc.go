// Package socket is what rails over stream sockets are made of: frames, the
// initiator's and the target's side of a connection, and the regions that keys name.
// Package tcp gives it sockets of a network, package cma those of one machine.
//
// An endpoint is one long-lived connection. The initiator sends frames of up to
// 512 slices of one direction, all their descriptors first:
//
//	WRITE   header | descriptor... [immediate [text]] | bytes of slice 0, 1, ...
//	READ    header | descriptor...
//
// and the target answers, in the order of the frames of each direction:
//
//	ack     every WRITE frame up to this one is applied
//	nak     this slice of this frame was refused, and why; comes before the
//	        frame's ack or data
//	data    header | bytes of the READ frame's slices that were not refused
//	reset   what came was no frame; the connection ends
//
// An immediate belongs to the last slice of its frame, and says of how many slices before
// that, also those of earlier frames: if the target has refused one of them, it refuses that
// slice as well. What handles immediates may refuse one too: that is a nak after the bytes.
//
// With the descriptors in front, the receiver knows where all of a frame's
// bytes go and reads them with readv straight into the segments, the bytes of
// hundreds of 4 KiB slices in one system call and none through a buffer, except
// those that came in one piece with the descriptors. The last element of every
// readv is the buffer for the next header, so that small frames cost one system
// call too. The sender's side is one writev a frame.
//
// One frame is up to [frameBytes] long, several are under way at once, and acks
// are cumulative: the target sends one when it runs out of input, or every
// [ackBytes].
//
// A connection at rest has neither buffers nor lists: it takes them from a pool when something
// has come or is to be sent, and gives them back. Two goroutines with small stacks and 4 kB of
// heap are left at the initiator, one at the target, and another once there was a READ.
//
// Who has moved bulk looks whether something has come over connections whose frames are small, and
// lets their goroutines go first: see lookout. Who is to send bulk waits a moment for what is small and not
// answered yet: see precedence.
//
// # References
//
// With Config.Attach frames carry addresses where bytes would be, and who receives
// copies the bytes from the sender's memory. A process never writes into another's:
//
//	WRITE     header | descriptor... | address...     the target copies, and acks
//	WRITE     header | descriptor | immediate [text]  of bytes that went before
//	READ      header | descriptor...
//	data      header | address...                     the initiator copies
//	release   header                                  of all READ frames up to this one
//
// The target holds what it lends until the release. If somebody else is to have it and
// the release does not come, it withdraws a random number that it keeps in its memory
// for this purpose, and ends the connection. The initiator looks at that number after
// it has copied, with one more copy and no message: if it is there, what it has is
// whole. An immediate waits until the target has acknowledged all bytes before it: the
// initiator may have its memory back without asking the target, and what is copied
// after that must not be announced.
//
// # Loss
//
// A connection is lost together with everything that was in flight on it. A new
// one tells the secrets of the lost ones, and the target ends those before it welcomes
// the new one: bytes still in their receive buffers are not applied after a retry's. A
// hello says only the name of its own connection, from which the secret does not follow:
// see transport.Secret.
//
// A rail serves a bounded number of connections, and of each peer a part of that. One
// that is idle, because it has sent no hello, no frame or none with a good key, makes
// room for others, see connection.Admission.
//
// Anybody who can connect can send frames; what protects a segment are its keys,
// 64 random bits each, and what transport.Access says of each: its ranges and its
// direction are checked for every slice before anything is touched. There is no
// encryption.
package socket
