package nullserver

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"time"

	"kvferry/bench/stats"
	"kvferry/internal/clock"
)

// Config says what a server does. The zero value answers at once all that it is asked.
type Config struct {
	TTFT time.Duration // from the request's last byte to the first token
	ITL  time.Duration // between tokens
	// Tokens is how many an answer has, 0 for as many as are asked for.
	Tokens int
	// Model is the only one. Default "null".
	Model string

	// What a strict server does.
	Strict   bool   // fields that OpenAI's API does not have are refused
	TextOnly bool   // prompts of token ids are refused
	Key      string // asked of all requests
	NoHealth bool   // there is no /health
	NoModels bool   // there is no /v1/models
	NoUsage  bool   // stream_options is refused, and no usage is told
	NoStream bool   // stream is ignored: the answer comes whole, after all its tokens' time

	Clock clock.Clock // Default clock.Precise()
}

// A Server is one that runs.
type Server struct {
	cfg      Config
	clock    clock.Clock
	listener net.Listener
	pacer    *pacer
	serving  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

// Start serves what comes to the listener, until Close.
func Start(listener net.Listener, cfg Config) (*Server, error) {
	cfg.Model = cmp.Or(cfg.Model, "null")
	if cfg.Clock == nil {
		cfg.Clock = clock.Precise()
	}
	p, err := newPacer(cfg.Clock, cfg.ITL)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, clock: cfg.Clock, listener: listener, pacer: p, conns: map[net.Conn]bool{}}
	s.serving.Go(s.accept)
	return s, nil
}

// URL is where the server is.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Lateness is how late tokens were written so far.
func (s *Server) Lateness() stats.Histogram { return s.pacer.lateness() }

// Close ends all connections and returns when nothing of the server runs any more.
func (s *Server) Close() error {
	err := s.listener.Close()
	s.pacer.close() // it writes to descriptors that must not be closed before
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		err = errors.Join(err, c.Close())
	}
	s.mu.Unlock()
	s.serving.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue // too many files, or one that was gone before it was here
		}
		s.mu.Lock()
		if s.closed {
			c.Close()
		} else {
			s.conns[c] = true
			s.serving.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

// serve answers the requests of a connection, one after the other.
func (s *Server) serve(c net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conns[c] {
			c.Close()
		}
		delete(s.conns, c)
	}()
	plainCongestion(c)
	in := bufio.NewReaderSize(c, 4<<10)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
		if err != nil {
			return
		}
		if s.answer(c, r, body) != nil || r.Close {
			return
		}
	}
}

// plainCongestion leaves out of a connection what some systems do to each packet: BBR paces
// it by a timer of its own. Where that cannot be chosen, tokens cost more.
func plainCongestion(c net.Conn) {
	const tcpCongestion = 13 // TCP_CONGESTION of Linux; package syscall has no name for it
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil || runtime.GOOS != "linux" {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, tcpCongestion, "reno")
	})
}

// answer answers one request. An error is of the connection.
func (s *Server) answer(c net.Conn, r *http.Request, body []byte) error {
	begun := s.clock.Now()
	if s.cfg.Key != "" && r.Header.Get("Authorization") != "Bearer "+s.cfg.Key {
		return refuse(c, http.StatusUnauthorized, "Incorrect API key provided")
	}
	switch path := r.Method + " " + r.URL.Path; {
	case path == "GET /health" && !s.cfg.NoHealth:
		return reply(c, http.StatusOK, "")
	case path == "GET /v1/models" && !s.cfg.NoModels:
		return reply(c, http.StatusOK, fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","owned_by":"nobody","root":%[1]q}]}`, s.cfg.Model))
	case path == "GET /null/lateness":
		l := s.Lateness()
		return reply(c, http.StatusOK, fmt.Sprintf(`{"tokens":%d,"p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f}`, l.Count(), ms(l.Percentile(50)), ms(l.Percentile(99)), ms(l.Max())))
	case r.Method == http.MethodPost:
		api, ok := apis[r.URL.Path]
		if !ok {
			break
		}
		q, err := s.cfg.read(api, body)
		if err != nil {
			return refuse(c, http.StatusBadRequest, err.Error())
		}
		return s.complete(r.Context(), c, api, q, begun)
	}
	return refuse(c, http.StatusNotFound, "Not Found")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// complete writes an answer's tokens, or has the pacer do it.
func (s *Server) complete(ctx context.Context, c net.Conn, api *api, q *question, begun time.Duration) error {
	if !q.stream || s.cfg.NoStream {
		return s.pacer.whole(c, begun+s.cfg.TTFT+time.Duration(q.tokens-1)*s.cfg.ITL, response(http.StatusOK, "application/json", api.whole(q, s.cfg.NoUsage)))
	}
	return s.pacer.stream(c, begun+s.cfg.TTFT, api, q)
}

// response is a whole answer on the wire.
func response(status int, kind, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), kind, len(body), body)
}

func reply(c net.Conn, status int, body string) error {
	_, err := c.Write(response(status, "application/json", body))
	return err
}

func refuse(c net.Conn, status int, why string) error {
	return reply(c, status, fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error","code":%d}}`, why, status))
}
