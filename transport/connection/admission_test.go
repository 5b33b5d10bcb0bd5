package connection

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
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
		})
	}
}
