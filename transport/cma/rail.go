package cma

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/process"
	"kvferry/transport/socket"
)

// Config describes a rail. Name is required.
type Config struct {
	// Name of the rail, "cma/0".
	Name string
	// Logger gets a line for each connection that is refused. Default
	// slog.Default().
	Logger *slog.Logger
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if !strings.HasPrefix(c.Name, "cma/") || c.Name == "cma/" {
		bad.Add("Name", c.Name, "name the rail cma/ and a number, like cma/0")
	}
	return bad.Err("transport/cma.Config")
}

// Rail implements transport.Rail.
type Rail struct {
	*socket.Rail
	machine string // of this machine, network namespace and user
}

// New listens and serves. The caller closes the rail, or gives it to an engine.
func New(cfg Config) (*Rail, error) { return listen(cfg, attach) }

func listen(cfg Config, attach func(socket.Conn) (socket.Memory, error)) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	fail := func(err error) (*Rail, error) {
		return nil, &transport.Error{Op: "listen", Rail: cfg.Name, Err: err}
	}
	if err := process.Supported(); err != nil {
		return fail(err)
	}
	process.Permit()
	config.Default(&cfg.Logger, slog.Default())
	r := &Rail{machine: process.Machine()}
	addr := "@kvferry/" + r.machine + "/" + rand.Text()
	ln, err := net.Listen("unix", addr)
	if err != nil {
		return fail(err)
	}
	r.Rail = socket.New(socket.Config{Name: cfg.Name, Listener: ln, Addr: addr, Dial: dial, Attach: attach, Peer: func(c socket.Conn) string { return process.Name(c) }, Logger: cfg.Logger})
	return r, nil
}

func dial(ctx context.Context, addr string) (socket.Conn, error) {
	if !strings.HasPrefix(addr, "@") {
		return nil, fmt.Errorf("%q is no address of a cma rail", addr) // nor a file to open
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Scope names the rails that this one reaches: those of this machine, network namespace and user.
func (r *Rail) Scope() string { return r.machine }

// Route implements transport.Router.
func (r *Rail) Route(addr string) (transport.Reach, string) {
	if !strings.HasPrefix(addr, "@kvferry/"+r.machine+"/") {
		return transport.NoRoute, "it is on another machine, in another network namespace, or another user's"
	}
	return transport.Beside, ""
}
