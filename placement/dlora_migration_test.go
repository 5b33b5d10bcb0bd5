package placement

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// running are requests of an adapter each, "a:x b:y" of 100 tokens and 100 to come, IDs from first on.
func running(first uint64, adapters ...string) (all []Running) {
	for i, a := range adapters {
		all = append(all, Running{ID: first + uint64(i), Adapter: a, Tokens: 100 + i, Left: 100})
	}
	return all
}

func TestDLoRAMigration(t *testing.T) {
	node := func(id string, legs, free int, adapters string, r ...Running) Node {
		return Node{Candidate: Candidate{ID: id, InFlight: legs, Blocks: 1000, AdapterSlots: 2, Adapters: strings.Fields(adapters)}, FreeBlocks: free, Running: r}
	}
	crowd := running(1, "x", "y", "z", "x", "y", "z", "x", "y")
	for _, tc := range []struct {
		name  string
		nodes []Node
		want  string // moves: request>node
	}{
		{"nothing runs", []Node{node("a", 0, 500, ""), node("b", 0, 500, "")}, ""},
		{"three above the mean are below the threshold", []Node{node("a", 8, 500, "x y", crowd...), node("b", 2, 500, "")}, ""},
		{"four are not: y is there, and goes first, then x takes the other slot", []Node{node("a", 8, 500, "x y", crowd...), node("b", 0, 500, "y")}, "2>b 5>b 8>b 1>b"},
		{"to whoever has the fewest", []Node{node("a", 8, 500, "x y", crowd...), node("b", 1, 500, "x y"), node("c", 0, 500, "x y")}, "1>c 2>c 4>b 5>b 7>c"},
		{"no room for the KV", []Node{node("a", 8, 500, "x y", crowd...), node("b", 0, 12, "x y")}, ""},
		{"the pool is full, whatever the requests", []Node{node("a", 2, 100, "x y", crowd[:2]...), node("b", 2, 500, "x y", running(20, "x", "y")...)}, "1>b"},
		{"both are full", []Node{node("a", 8, 100, "x y", crowd[:2]...), node("b", 2, 99, "x y")}, ""},
		{"it leaves", []Node{{Candidate: Candidate{ID: "a", InFlight: 1, Blocks: 1000}, FreeBlocks: 900, Leaving: true, Running: crowd[:1]}, node("b", 9, 500, "x")}, "1>b"},
		{"and nobody is there", []Node{{Candidate: Candidate{ID: "a", InFlight: 1}, Leaving: true, Running: crowd[:1]}}, ""},
		{"about to end", []Node{node("a", 8, 500, "x y", Running{ID: 1, Tokens: 9, Left: soonOver - 1}), node("b", 0, 500, "")}, ""},
	} {
		m, err := NewMigration(DLoRAMigration, MigrationOptions{BlockTokens: 16, Threshold: 4})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, move := range m.Migrate(tc.nodes) {
			if move.From != "a" {
				t.Errorf("%s: %+v", tc.name, move)
			}
			got = append(got, fmt.Sprintf("%d>%s", move.ID, move.To))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, got, tc.want)
		}
	}
}

// TestDLoRAMigrationBalances: over random nodes, no request moves twice or from where it is not,
// slots and pools hold what comes, and asked again with the moves done it moves less.
func TestDLoRAMigrationBalances(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		nodes := make([]Node, 2+rng.IntN(4))
		id := uint64(0)
		for i := range nodes {
			n := &nodes[i]
			n.Candidate = Candidate{ID: fmt.Sprint(i), Blocks: 1000, AdapterSlots: 1 + rng.IntN(4)}
			n.FreeBlocks = 1000
			for range rng.IntN(60) {
				id++
				r := Running{ID: id, Adapter: fmt.Sprintf("lora-%d", rng.IntN(5)), Tokens: 1 + rng.IntN(100), Left: rng.IntN(200)}
				n.Running = append(n.Running, r)
				n.FreeBlocks -= (r.Tokens + 15) / 16
			}
			n.InFlight = len(n.Running) + rng.IntN(5)
		}
		m, _ := NewMigration(DLoRAMigration, MigrationOptions{BlockTokens: 16, Threshold: 1 + rng.IntN(16)})
		most := 0
		for _, n := range nodes {
			most = max(most, n.InFlight)
		}
		for round := range 20 {
			moves := m.Migrate(nodes)
			if len(moves) == 0 {
				break
			}
			if round == 19 {
				t.Fatalf("seed %d: it never ends", seed)
			}
			for _, move := range moves {
				var from, to *Node
				for i := range nodes {
					if nodes[i].ID == move.From {
						from = &nodes[i]
					}
					if nodes[i].ID == move.To {
						to = &nodes[i]
					}
				}
				at := -1
				for i, r := range from.Running {
					if r.ID == move.ID {
						at = i
					}
				}
				if at < 0 || from == to {
					t.Fatalf("seed %d: %+v: it does not run there", seed, move)
				}
				r := from.Running[at]
				from.Running = append(from.Running[:at:at], from.Running[at+1:]...)
				from.InFlight, to.InFlight = from.InFlight-1, to.InFlight+1
				from.FreeBlocks += (r.Tokens + 15) / 16
				if to.FreeBlocks -= (r.Tokens + 15) / 16; to.FreeBlocks < 0 {
					t.Fatalf("seed %d: %+v: no room", seed, move)
				}
				before := adaptersOf(to)
				to.Running = append(to.Running, r)
				if n := adaptersOf(to); n > before && n > to.AdapterSlots {
					t.Fatalf("seed %d: %+v: %d adapters in %d slots", seed, move, n, to.AdapterSlots)
				}
			}
		}
		for _, n := range nodes {
			if n.InFlight > most {
				t.Fatalf("seed %d: %d requests on a node, %d before", seed, n.InFlight, most)
			}
		}
	}
}

func adaptersOf(n *Node) int {
	seen := map[string]bool{}
	for _, r := range n.Running {
		seen[r.Adapter] = true
	}
	return len(seen)
}
