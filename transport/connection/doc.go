// Package connection is what rails keep of their connections. It is the same for all of
// them, so it is written once; bytes and sockets are the rails' own.
//
//	initiator   Room       what an endpoint has taken and not completed, and how much more it may
//	            Losses     the connections that ended with writes unanswered, by the peer's address
//	target      Admission  which connections are served, where there are too many
//	            Served     those that have said who they are, for fences
//
// A lost connection goes from one side to the other: the initiator adds its secret to
// Losses, its next connection to that address tells the secrets, and the target fences
// them in Served before it welcomes the newcomer. So bytes of the lost connection do not
// land after those of a retry.
//
// [PeerOf] and [Advertised] say whose an address is, and which one peers are told.
package connection
