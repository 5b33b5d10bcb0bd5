package connection

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
)

// A guest is a connection by name.
type guest struct {
	name  string
	stand Standing
	out   *[]string
}

func (g *guest) Standing() Standing { return g.stand }
func (g *guest) Evict(error)        { *g.out = append(*g.out, g.name) }

// TestAdmission plays what comes and goes at a rail that serves four connections, two
// from one peer. A line is an event, and what comes of it:
//
//	NAME PEER [busy] [known] [idle=N]    comes, and stands like that from then on; N is a time
//	NAME busy | idle=N                   stands differently
//	NAME leaves
func TestAdmission(t *testing.T) {
	for name, script := range map[string]string{
		"room for all": `
			a x idle=1           in
			b x idle=2           in
			c y idle=3           in
			d y idle=4           in`,
		"a peer's share is its own": `
			a x idle=1           in
			b y idle=2           in
			c y idle=3           in
			d y idle=4           in, b out
			e y idle=5           in, c out`,
		"the idlest of all when the table is full": `
			a x idle=5           in
			b x idle=2           in
			c y idle=3           in
			d y idle=4           in
			e z idle=6           in, b out
			f z idle=7           in, c out
			g z idle=8           in, e out`,
		"who has shown no key goes first": `
			a x known idle=1     in
			b x known idle=2     in
			c y idle=4           in
			d y known idle=3     in
			e z idle=5           in, c out
			f z idle=6           in, e out
			f known idle=6       .
			g w idle=7           in, a out`,
		"the busy stay": `
			a x busy             in
			b x busy known       in
			c x idle=1           refused
			d y busy             in
			e z busy             in
			f w idle=2           refused
			e idle=9             .
			g w idle=3           in, e out
			a idle=9             .
			h x idle=4           in, a out`,
		"who leaves makes room": `
			a x busy             in
			b x busy             in
			c x busy             refused
			a leaves             .
			c x busy             in
			c leaves             .
			c leaves             .
			d x busy             in
			e x busy             refused`,
		"evicted twice counts once": `
			a x idle=1           in
			b x idle=2           in
			c x idle=3           in, a out
			a leaves             .
			d x idle=4           in, b out
			e y busy             in
			f y busy             in
			g z idle=5           in, c out`,
	} {
		t.Run(name, func(t *testing.T) {
			var out []string
			a := NewAdmission(AdmissionConfig{Rail: "tcp/lo", Max: 4, PerPeer: 2, Logger: slog.New(slog.DiscardHandler)})
			guests := map[string]*guest{}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				event, want, _ := strings.Cut(strings.TrimSpace(line), "  ")
				words := strings.Fields(event)
				g := guests[words[0]]
				coming := len(words) > 1 && len(words[1]) == 1
				if coming {
					g = &guest{name: words[0], out: &out}
					guests[words[0]] = g
				}
				g.stand.Busy = slices.Contains(words, "busy")
				g.stand.Known = g.stand.Known || slices.Contains(words, "known")
				for _, w := range words {
					var at int
					if n, _ := fmt.Sscanf(w, "idle=%d", &at); n == 1 {
						g.stand.Idle = time.Unix(int64(at), 0)
					}
				}
				got := "."
				out = nil
				switch {
				case words[1] == "leaves":
					a.Leave(g)
				case coming:
					got = "in"
					if err := a.Admit(g, words[1]); err != nil {
						got = "refused"
					}
					if len(out) > 0 {
						got += ", " + strings.Join(out, " ") + " out"
					}
				}
				if got != strings.TrimSpace(want) {
					t.Errorf("%s: %s, want %s", event, got, strings.TrimSpace(want))
				}
			}
			n := 0
			for _, of := range a.peers {
				n += of
			}
			if n != len(a.guests) || n > 4 {
				t.Errorf("%d guests, %v", len(a.guests), a.peers)
			}
			for _, g := range guests {
				a.Leave(g)
			}
			if len(a.guests)+len(a.peers) > 0 {
				t.Errorf("when all have left there are %v of %v", a.guests, a.peers)
			}
		})
	}
}

// TestAdmissionDefaults: how many are served in all, and from one peer.
func TestAdmissionDefaults(t *testing.T) {
	for _, tc := range []struct{ maxConns, perPeer, inAll, fromOne int }{
		{0, 0, DefaultConns, DefaultConns / 4},
		{0, 3, DefaultConns, 3},
		{8, 0, 8, 2},
		{3, 0, 3, 1}, // a quarter of it is none
		{4, 5, 4, 4},
	} {
		served := func(peer func(i int) string) (n int) {
			a := NewAdmission(AdmissionConfig{Max: tc.maxConns, PerPeer: tc.perPeer, Logger: slog.New(slog.DiscardHandler)})
			for a.Admit(&guest{stand: Standing{Busy: true}}, peer(n)) == nil && n <= DefaultConns {
				n++
			}
			return n
		}
		if got := served(strconv.Itoa); got != tc.inAll {
			t.Errorf("%+v: %d connections of %d peers are served", tc, got, got)
		}
		if got := served(func(int) string { return "x" }); got != tc.fromOne {
			t.Errorf("%+v: %d connections of one peer are served", tc, got)
		}
	}
}

// TestAdmissionLog: nothing is said while there is room. Later a line says what became of
// whom, and the next one how many came since.
func TestAdmissionLog(t *testing.T) {
	log := &clocktest.Log{}
	a := NewAdmission(AdmissionConfig{Rail: "tcp/lo", Max: 4, PerPeer: 2, Logger: slog.New(slog.NewTextHandler(log, nil))})
	var out []string
	come := func(peer string, busy bool) { _ = a.Admit(&guest{stand: Standing{Busy: busy}, out: &out}, peer) }
	come("x", true)
	come("x", false)
	if text := log.String(); text != "" {
		t.Errorf("there is room, and the log says %s", text)
	}
	come("x", true)
	if text := log.String(); !strings.Contains(text, `no room for a connection: an idle one was ended (options maxconns and peerconns raise the limits)" rail=tcp/lo peer=x limit=4 per_peer=2 since_last_line=1`) {
		t.Errorf("the first that has no room: %s", text)
	}
	come("x", true)
	a.lines.at = a.lines.at.Add(-sparseEvery)
	come("x", true)
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `refused: 2 connections from one host have something under way, and no more are served (option peerconns raises that)" rail=tcp/lo peer=x limit=4 per_peer=2 since_last_line=2`) {
		t.Errorf("and two more: %s", text)
	}
}
