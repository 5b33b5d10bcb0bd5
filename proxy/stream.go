package proxy

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"kvferry/attempt"
	"kvferry/proxy/admission"
	"kvferry/proxy/chunks"
)

// A stream's connection is taken from net/http once its request was taken on, and given
// back for the next one. net/http's buffers for it, and the stack of a goroutine that runs
// a whole handler, were half of what an open stream took.

// serveStream takes a request's connection from net/http and streams to it, in a goroutine
// of its own: that of the handler goes, and its stack with it. If it returns nil, the exchange
// and the connection are that goroutine's, which also calls leave; after an error they are
// still the caller's.
//
// A second goroutine, watch, reads. over tells it that the answer has ended, and whether the
// connection may be used again. With both goroutines and what it keeps of a request, 1,000
// open streams take 23.7 MB of the proxy, where net/http's handlers took 44.2.
func (p *Proxy) serveStream(w http.ResponseWriter, r *http.Request, x *exchange) error {
	raw, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("a stream needs a connection of HTTP/1: %w", err)
	}
	conn := raw.(*admission.Connection)
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	conn.Ahead = slices.Clone(ahead)                   // not the whole buffer
	s := chunks.NewWriter(conn, r, w.Header().Clone()) // with X-Request-Id, and what browsers want
	x.events.To(s)
	ctx, gone := context.WithCancelCause(p.ctx) // r's own context ends with the handler
	over := make(chan bool, 1)
	p.connections.Take(conn)
	p.connections.Streaming.Go(func() { p.watch(conn, gone, over) })
	p.connections.Streaming.Go(func() {
		whole := false
		defer func() {
			if fault := recover(); fault != nil { // as net/http does it
				p.cfg.Logger.Error("panic serving a stream", "request", x.requestID, "err", fmt.Sprint(fault), "stack", string(debug.Stack()))
			}
			gone(nil)
			p.leave(x)
			if whole {
				_ = conn.SetReadDeadline(time.Now().Add(p.timeouts.idle)) // ends watch's wait for a next request
				p.http.ConnState(conn, http.StateIdle)
			} else {
				_ = conn.Close()
			}
			over <- whole
		}()
		whole = p.stream(ctx, x, s)
	})
	return nil
}

// stream serves a stream and reports whether its connection is fit for another request.
func (p *Proxy) stream(ctx context.Context, x *exchange, s *chunks.Writer) (whole bool) {
	ctx, cancel := x.deadline(ctx, s)
	defer cancel()
	err := x.run(ctx)
	if err == nil {
		if err = x.events.End(x.account()); err != nil {
			err = fmt.Errorf("%w: %w", attempt.ClientGone, err)
		}
	}
	if p.finish(s, x, err) {
		return false
	}
	if err != nil && s.End() != nil { // the answer that says so
		return false
	}
	return s.Keep()
}

// watch reads the byte that says more of a client than its stream does: it has gone, or
// sends its next request. Once the answer is over, the connection goes back to net/http
// with the first byte of that.
func (p *Proxy) watch(c *admission.Connection, gone context.CancelCauseFunc, over <-chan bool) {
	if len(c.Ahead) == 0 {
		b := make([]byte, 1)
		n, err := c.TCPConn.Read(b)
		if err != nil {
			gone(fmt.Errorf("%w: %w", attempt.ClientGone, err))
		}
		c.Ahead = b[:n]
	}
	whole := <-over
	p.connections.Leave(c)
	if whole && len(c.Ahead) > 0 && p.connections.Back.Give(c) {
		return
	}
	_ = c.Close()
	p.http.ConnState(c, http.StateClosed)
}
