package kvcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs the conversations in testdata. After go test -rewrite,
// commit a changed transcript only if you understand what changed it.
//
// Tokens are letters, one each. A sequence s has a block table:
//
//	pool blocks=N block-tokens=N [cache]   a new pool
//	admit s tokens=abc                     match, adopt, grow; all or nothing
//	grow s tokens=N                        room for N tokens in all
//	commit s                               the full blocks of the admitted tokens
//	release s
//	retain|release|valid ref=ID@GEN        one reference, by hand
//
// Every answer ends with the state of the pool.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/pool", func(t *testing.T, path string) {
		var p *Pool
		tables := map[string]*Table{}
		prompts := map[string][]Token{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			report := func(err error) {
				if err != nil {
					fmt.Fprintln(&out, err)
				}
			}
			name := ""
			if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
				name = d.CmdArgs[0].Key
			}
			var ref []Ref
			if d.HasArg("ref") {
				var text string
				d.ScanArgs(t, "ref", &text)
				var r Ref
				if _, err := fmt.Sscanf(text, "%d@%d", &r.ID, &r.Gen); err != nil {
					d.Fatalf(t, "ref %q: %v", text, err)
				}
				ref = []Ref{r}
			}
			switch d.Cmd {
			case "pool":
				var blocks, blockTokens int
				d.ScanArgs(t, "blocks", &blocks)
				d.ScanArgs(t, "block-tokens", &blockTokens)
				p = NewPool(blocks, blockTokens, d.HasArg("cache"))
			case "admit":
				var text string
				d.ScanArgs(t, "tokens", &text)
				var tokens []Token
				for _, c := range text {
					tokens = append(tokens, Token(c))
				}
				tab := &Table{}
				report(tab.Adopt(p, p.Match(PrefixHashes(Hash{}, tokens, p.BlockTokens()))))
				matched := len(tab.Refs())
				if !tab.Grow(p, len(tokens)) {
					report(tab.Release(p))
					fmt.Fprintf(&out, "%s waits: %d matched, no room for the rest\n", name, matched)
					break
				}
				p.Queried(len(tokens), matched*p.BlockTokens())
				tables[name], prompts[name] = tab, tokens
				fmt.Fprintf(&out, "%s: %v, %d matched\n", name, tab.Refs(), matched)
			case "grow":
				var n int
				d.ScanArgs(t, "tokens", &n)
				ok := tables[name].Grow(p, n)
				fmt.Fprintf(&out, "%v, %s: %v\n", ok, name, tables[name].Refs())
			case "commit":
				hashes := PrefixHashes(Hash{}, prompts[name], p.BlockTokens())
				report(p.Commit(tables[name].Refs()[:len(hashes)], hashes))
			case "release":
				if ref != nil {
					report(p.Release(ref))
				} else {
					report(tables[name].Release(p))
				}
			case "retain":
				report(p.Retain(ref))
			case "valid":
				fmt.Fprintln(&out, p.Valid(ref[0]))
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if err := p.verify(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			out.WriteString(p.describe())
			return out.String()
		})
	})
}

// describe is the pool on a line: what Alloc would do next, and the counts.
func (p *Pool) describe() string {
	next := slices.Clone(p.free)
	slices.Reverse(next)
	var evict []BlockID
	for id := p.lru.front; id != nowhere; id = p.prefixes[id].link.next {
		evict = append(evict, id)
	}
	st := p.Stats()
	return fmt.Sprintf("used=%d free=%d: freed %v, fresh %d, evict %v; hits %d/%d tokens, %d evicted\n",
		p.Used(), p.Free(), next, p.total-len(p.blocks), evict, st.PrefixHits, st.PrefixQueries, st.Evictions)
}
