package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a host that ends when the test says so, or when it is told to.
type scripted struct {
	name   string
	over   chan struct{}
	code   int
	killed bool
	err    error
	deaf   bool // to "stop"
}

func (s *scripted) Name() string              { return s.name }
func (s *scripted) Over() <-chan struct{}     { return s.over }
func (s *scripted) Ended() (int, bool, error) { return s.code, s.killed, s.err }

func (s *scripted) Tell(word string) {
	if word == "stop" && !s.deaf && !IsOver(s) {
		s.code = 143
		close(s.over)
	}
}

// TestFollow: how hosts end, and what becomes of the others.
func TestFollow(t *testing.T) {
	died := errors.New("died")
	for name, c := range map[string]struct {
		until   int
		end     func(a, b *scripted, cancel func())
		results string // "" where it fails
		err     string
		late    int
		took    time.Duration
	}{
		"all end": {end: func(a, b *scripted, _ func()) { a.code = 3; close(a.over); close(b.over) }, results: "[{3 false false} {0 false false}]"},
		"until":   {until: 1, end: func(a, _ *scripted, _ func()) { close(a.over) }, results: "[{0 false false} {143 false true}]"},
		"until, and the other is deaf": {
			until: 2, end: func(a, b *scripted, _ func()) { a.deaf = true; close(b.over) },
			results: "[{137 false true} {0 false false}]", late: 1, took: StopGrace,
		},
		"killed":   {end: func(a, b *scripted, _ func()) { a.killed, a.err = true, died; close(a.over); close(b.over) }, results: "[{137 true false} {0 false false}]"},
		"died":     {end: func(a, _ *scripted, _ func()) { a.err = died; close(a.over) }, err: "died"},
		"canceled": {end: func(a, _ *scripted, cancel func()) { a.code = 2; close(a.over); synctest.Wait(); cancel() }, err: "context canceled: host1 exited 2, host2 runs"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hosts := []*scripted{{name: "host1", over: make(chan struct{})}, {name: "host2", over: make(chan struct{})}}
				defer func() { // a lab that is cleared away
					for _, h := range hosts {
						if !IsOver(h) {
							close(h.over)
						}
					}
				}()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go c.end(hosts[0], hosts[1], cancel)
				results, late, start := make([]HostResult, 2), 0, time.Now()
				err := Follow(ctx, hosts, c.until, results, func(running []*scripted) { late = len(running) })
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) {
						t.Errorf("%v, want %q", err, c.err)
					}
					return
				}
				if got := fmt.Sprint(results); err != nil || got != c.results || late != c.late || time.Since(start) != c.took {
					t.Errorf("%s, %d late after %v, %v; want %s", got, late, time.Since(start), err, c.results)
				}
			})
		})
	}
}
