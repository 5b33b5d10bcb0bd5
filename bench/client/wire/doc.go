// Package wire is HTTP/1.1 for ten thousand streams on one core: requests whose answers
// arrive in small pieces over a long time, where what a piece costs is what the client
// costs. It knows nothing of tokens.
//
// net/http has two goroutines and 8 KB of buffers for each connection, and a piece wakes
// both. Here a [Transport] has a few pollers, one for each CPU. A poller is one goroutine
// with an epoll descriptor of its own, one buffer, and all that it reads goes straight to
// the [Handler] of the request:
//
//	Do: connect or reuse ──▶ write ──▶ wait                             ▲
//	                                                                    │ the end
//	poller: epoll_wait ──▶ 64 events ──▶ read ──▶ head, chunks ──▶ Handler.Body(piece, at)
//
// The poller never waits in the kernel. Its epoll descriptor is itself watched by Go's
// network poller, so with nothing to read it is a parked goroutine like any other. After
// each 64 events it lets others run: with GOMAXPROCS=1 a request that is due waits for
// the pieces of 64 streams at most, 0.1 to 0.2 ms, and not for all that are there.
//
// Each piece has the time at which it was read. What the kernel had received earlier was
// late in the client: the kernel's own time of receipt comes with it (SO_TIMESTAMPNS), and
// Body is told how long ago that was. So a client that cannot keep up says so.
//
// Plain HTTP/1.1 on Linux is all there is. For TLS, HTTP/2 and other systems the caller
// has net/http. Nothing is sent twice: a request whose connection turns out to be gone once
// bytes went out has failed. So that this does not happen to connections that the server
// closes at rest, those that have rested for 4 s are not used again (common servers close
// theirs after 5 s), and a connection is looked at before it is used again: a request of which
// nothing was sent takes a new one.
//
// Ownership: a Transport owns its connections; the request bytes given to Do are read until
// it returns; what Body gets is valid during the call.
package wire
