package wire

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"time"
)

// Config is a transport. The zero value of a field is its default.
type Config struct {
	// Pollers are the goroutines that read. Default: GOMAXPROCS, at most 8.
	Pollers int
	// Now is the clock of the times that handlers are told. Default: since New.
	Now func() time.Duration
	// Connect is how long the connection to a server may take to come up. Default 10 s.
	Connect time.Duration
	// Rest is how long a connection may have rested to be used again. Default 4 s.
	Rest time.Duration
}

func (cfg Config) withDefaults() Config {
	cfg.Pollers = cmp.Or(cfg.Pollers, min(runtime.GOMAXPROCS(0), 8))
	if cfg.Now == nil {
		start := time.Now()
		cfg.Now = func() time.Duration { return time.Since(start) }
	}
	cfg.Connect = cmp.Or(cfg.Connect, 10*time.Second)
	if cfg.Rest == 0 {
		cfg.Rest = 4 * time.Second
	}
	return cfg
}

// ErrClosed is of a request that was under way when the transport was closed, or came later.
var ErrClosed = errors.New("the transport is closed")

// ErrConnect is of a server that there is no connection to.
var ErrConnect = errors.New("no connection")

// A call is a request that is under way.
type call struct {
	handler Handler
	over    chan error // one, when it is over
}

// wait waits until the call is over, which abort brings about when ctx is done.
func (c *call) wait(ctx context.Context, abort func(error)) error {
	select {
	case err := <-c.over:
		return err
	case <-ctx.Done():
		abort(context.Cause(ctx))
		return <-c.over
	}
}
