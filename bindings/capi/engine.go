package capi

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"kvferry/transport"
	"kvferry/transport/pages"
	"kvferry/transport/rails"
)

// Options describe an engine. All but Rails have defaults.
type Options struct {
	// Rails are as package rails reads them, with commas between: "tcp/eth0?conns=2,cma".
	Rails string
	// Selection is how batches are spread over several paths; "" is transport.Affinity.
	Selection string
	// Matrix is a file that says which NIC is near which memory; "" asks the machine.
	Matrix string
	// Log is the lowest level that goes to standard error: "debug", "info", "warn", which
	// is the default, "error", or "off".
	Log string
	// SliceSize and Timeout are transport.Config's SliceSize and DefaultTimeout.
	SliceSize int
	Timeout   time.Duration
	// Name is what peers are told with messages.
	Name string
}

// An Engine is a transfer engine behind handles. Its methods may be called from any goroutine.
type Engine struct {
	engine *transport.Engine

	mu       sync.Mutex
	segments map[Handle]*registered
	regions  []region // of the segments; a new list for each change
	targets  map[Handle][]*transport.Target
	batches  map[Handle]*batch    // under way
	ended    []Completion         // not polled, oldest first
	messages []*transport.Message // not received, oldest first
	waiting  int                  // bytes of them
	alarm    alarm
}

// A registered segment knows where the caller says that its memory is.
type registered struct {
	*transport.Segment
	region
	release func() error // of memory by a descriptor
}

// A region is memory, and where the caller says that it is.
type region struct {
	base uintptr
	mem  []byte
}

// Open starts an engine and its rails.
func Open(o Options) (*Engine, error) {
	if o.Rails == "" {
		return nil, invalid("no rails: name at least one of %s", rails.Forms())
	}
	pages.GuardBySystemCalls()
	log, err := logger(o.Log)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		segments: make(map[Handle]*registered),
		targets:  make(map[Handle][]*transport.Target),
		batches:  make(map[Handle]*batch),
	}
	cfg := transport.Config{
		Select: transport.Selection(o.Selection), SliceSize: o.SliceSize, DefaultTimeout: o.Timeout, Logger: log,
		Name: o.Name, OnMessage: e.deliver, HasRoom: e.hasRoom,
	}
	specs := strings.Split(o.Rails, ",")
	if o.Rails == rails.Every {
		if specs, err = rails.EveryNIC(); err != nil {
			return nil, invalid("%v", err)
		}
	}
	if cfg.Rails, err = rails.OpenAll(specs, rails.Options{Logger: log}); err != nil {
		return nil, err
	}
	if cfg.Rank, err = rails.Ranks(cfg.Rails, o.Matrix, log); err == nil {
		e.engine, err = transport.New(cfg)
	}
	if err != nil {
		for _, r := range cfg.Rails {
			_ = r.Close()
		}
		return nil, err
	}
	return e, nil
}

func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "off":
		return slog.New(slog.DiscardHandler), nil
	case "":
		l = slog.LevelWarn
	default:
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, invalid("log level %q: use one of debug, info, warn, error, off", level)
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// A Kind says what a caller's memory is.
type Kind uint32

const (
	Host   Kind = iota // mapped into this process, pinned memory of a GPU's driver too
	DMABuf             // a GPU's, by a descriptor of it
	Memfd              // of a memfd
)

// A Memory is what a caller registers.
type Memory struct {
	Kind       Kind
	Address    unsafe.Pointer // the first byte; by a descriptor only what ranges call it
	Length     uint64         // bytes
	Name       string         // for errors
	Location   string         // "cpu:0"; "" is that
	Flags      uint32
	Descriptor int    // of a DMABuf or Memfd; the caller's
	Offset     uint64 // of the first byte, in what the descriptor stands for
}

// FlagPrivate is of memory that has no key for peers: it is the local side of this engine's batches.
const FlagPrivate = 1

// Register makes a segment of a caller's memory.
func (e *Engine) Register(m Memory) (Handle, error) {
	switch {
	case m.Flags&^FlagPrivate != 0:
		return 0, fmt.Errorf("%w: flags %#x", ErrUnsupported, m.Flags)
	case m.Address == nil:
		return 0, invalid("memory at no address")
	case m.Length == 0 || !inAddressSpace(uint64(uintptr(m.Address)), m.Length, 1):
		return 0, invalid("memory of %d bytes at %p", m.Length, m.Address)
	}
	m.Location = cmp.Or(m.Location, "cpu:0")
	register := e.engine.Register
	if m.Flags&FlagPrivate != 0 {
		register = e.engine.RegisterLocal
	}
	mem, release, err := m.open()
	if err != nil {
		return 0, err
	}
	t, err := register(m.Name, mem, m.Location)
	if err != nil {
		return 0, errors.Join(err, release())
	}
	h, s := newHandle(), &registered{t, region{uintptr(m.Address), mem}, release}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.segments[h] = s
	e.regions = append(slices.Clone(e.regions), s.region)
	return h, nil
}

// open is the memory as transport has it: by a descriptor it is elsewhere than the caller says.
func (m *Memory) open() (mem []byte, release func() error, err error) {
	switch m.Kind {
	case Host:
		return unsafe.Slice((*byte)(m.Address), m.Length), func() error { return nil }, nil
	case DMABuf:
		return transport.ReserveDMABuf(m.Descriptor, int64(m.Offset), int(m.Length))
	case Memfd:
		return transport.MapFile(m.Descriptor, int64(m.Offset), int(m.Length))
	}
	return nil, nil, invalid("memory of kind %d", m.Kind)
}

// Deregister closes a segment, and returns when its memory is the caller's again: when the
// batches that use it have ended, which their deadlines bound.
func (e *Engine) Deregister(h Handle) error {
	e.mu.Lock()
	s := e.segments[h]
	if s != nil {
		delete(e.segments, h)
		at := slices.IndexFunc(e.regions, s.same)
		e.regions = slices.Delete(slices.Clone(e.regions), at, at+1)
	}
	e.mu.Unlock()
	if s == nil {
		return fmt.Errorf("%w: segment %d", ErrHandle, h)
	}
	return errors.Join(s.Close(), s.release())
}

// same says that two regions are of the same memory.
func (r region) same(o region) bool {
	return r.base == o.base && len(r.mem) == len(o.mem) && unsafe.SliceData(r.mem) == unsafe.SliceData(o.mem)
}

// Cancel ends a batch early. It does nothing to one that has ended.
func (e *Engine) Cancel(h Handle) error {
	if h == 0 || uint64(h) > handles.Load() {
		return fmt.Errorf("%w: batch %d", ErrHandle, h)
	}
	e.mu.Lock()
	b := e.batches[h]
	e.mu.Unlock()
	if b == nil {
		return nil
	}
	if under := b.under.Load(); under != nil {
		under.Cancel()
	}
	return nil
}

// Close ends all batches and closes all segments, targets and rails. When it returns all memory is the
// caller's, and completions that were not polled are gone.
func (e *Engine) Close() error {
	errs := []error{e.engine.Close()}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.segments {
		errs = append(errs, s.release())
	}
	e.alarm.close()
	return errors.Join(errs...)
}
