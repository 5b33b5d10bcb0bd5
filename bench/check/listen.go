package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"kvferry/bench/rail"
	"kvferry/internal/config"
)

// DefaultPort is where a Listener listens.
const DefaultPort = "18516"

// protocol is the version of what the two ends say to each other.
const protocol = 1

// A ListenConfig describes the other end. Rails is required.
type ListenConfig struct {
	Rails []string
	// Listen is the host:port for facts and probes; transfers have a port of their own, which
	// the peer is told. Default :18516.
	Listen string
	// Segment is the most memory that a check gets, as transfer.ServerConfig's.
	Segment int64
	// Location and Matrix are as transfer.ServerConfig's.
	Location, Matrix string
	Log              io.Writer    // a line for each check; default none
	Logger           *slog.Logger // the rails'
}

// question is what is asked of a Listener; answer is what it says.
type question struct {
	Protocol int      `json:"protocol"`
	Rails    []string `json:"rails"` // where the asker's are reached, in their order
	Echo     bool     `json:"echo"`  // and probes are to come
}

type answer struct {
	Protocol int     `json:"protocol"`
	Transfer string  `json:"transfer"` // port of the transfers' server
	Rails    []Facts `json:"rails"`
	Host     Host    `json:"host"`
	Echoes   []echo  `json:"echoes"` // one a rail; without an address where there is none
	Clock    int64   `json:"clock_ns"`
}

// A Listener is the end that waits.
type Listener struct {
	cfg    ListenConfig
	server *rail.Server
	lis    net.Listener

	mu     sync.Mutex
	over   bool
	echoes []*echo // of the last that asked
}

// transfer is what of the configuration is the transfers' server's.
func (c *ListenConfig) transfer() rail.ServerConfig {
	host, _, _ := net.SplitHostPort(c.Listen)
	return rail.ServerConfig{
		Rails: c.Rails, Listen: net.JoinHostPort(host, "0"), Segment: c.Segment, Location: c.Location, Matrix: c.Matrix, Log: c.Log, Logger: c.Logger,
	}
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *ListenConfig) Validate() error {
	var bad config.Faults
	if c.Listen != "" {
		_, _, err := config.Address(c.Listen)
		bad.Check("Listen", err)
	}
	t := c.transfer()
	bad.Check("", t.Validate())
	return bad.Err("bench/check.ListenConfig")
}

// Listen opens the rails and the ports. The caller calls Serve.
func Listen(cfg ListenConfig) (*Listener, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Listen, ":"+DefaultPort)
	config.Default(&cfg.Log, io.Discard)
	cfg.Log = &serial{w: cfg.Log} // that of checks, and of transfers
	server, err := rail.Listen(cfg.transfer())
	if err != nil {
		return nil, err
	}
	lis, err := config.Listen("Listen", cfg.Listen)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return &Listener{cfg: cfg, server: server, lis: lis}, nil
}

// A serial writes for several, one after the other.
type serial struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *serial) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// Addr is where it listens, and Rails its rails.
func (l *Listener) Addr() string    { return l.lis.Addr().String() }
func (l *Listener) Rails() []string { return l.server.Rails() }

// Serve answers until ctx is done, and returns its error. Nothing of it is left then.
func (l *Listener) Serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /facts", l.facts)
	mux.HandleFunc("GET /clock", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(answer{Protocol: protocol, Clock: time.Now().UnixNano()})
	})
	web := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	served := make(chan error, 1)
	go func() { served <- web.Serve(l.lis) }()
	err := l.server.Serve(ctx)
	_ = web.Close()
	<-served
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true // an answer may be under way yet
	l.endEchoes()
	return err
}

func (l *Listener) endEchoes() {
	for _, e := range l.echoes {
		e.close()
	}
	l.echoes = nil
}

// facts says what this end knows, and has probes echoed. One check at a time has echoes.
func (l *Listener) facts(w http.ResponseWriter, r *http.Request) {
	var q question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q); err != nil || q.Protocol != protocol {
		http.Error(w, fmt.Sprintf("this is kvferry rail check --listen, version %d of its protocol: use the same kvferry at both ends", protocol), http.StatusBadRequest)
		return
	}
	_, port, _ := net.SplitHostPort(l.server.Addr())
	a := answer{Protocol: protocol, Transfer: port, Host: root("/").host()}
	l.mu.Lock()
	defer l.mu.Unlock()
	q.Echo = q.Echo && !l.over
	if q.Echo {
		l.endEchoes()
		fmt.Fprintf(l.cfg.Log, "checked by %s\n", r.RemoteAddr)
	}
	for i, line := range l.server.Rails() {
		name, addr, _ := strings.Cut(line, " at ")
		peer := ""
		if i < len(q.Rails) {
			peer = q.Rails[i]
		}
		a.Rails = append(a.Rails, root("/").facts(l.cfg.Rails[i], name, addr, peer))
		at := echo{}
		if host, _, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host) != nil && q.Echo {
			if e, err := serveEcho(host); err == nil {
				l.echoes = append(l.echoes, e)
				at.Addr, at.Token = e.Addr, e.Token
			}
		}
		a.Echoes = append(a.Echoes, at)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}
