package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// hosts makes nodes a, b, ... with these requests each, whose prompts have 16 tokens more each
// from the first on.
func hosts(loads ...int) (nodes []Node) {
	id := uint64(0)
	for i, n := range loads {
		node := Node{Candidate: Candidate{ID: string(rune('a' + i)), InFlight: n}, FreeBlocks: 1000}
		for j := range n {
			id++
			node.Running = append(node.Running, Running{ID: id, Tokens: 16 * (j + 1), Left: 100})
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func TestPeriodic(t *testing.T) {
	for _, tc := range []struct {
		name      string
		nodes     []Node
		threshold int
		change    func([]Node)
		want      string
	}{
		{"alike", hosts(3, 3), 1, nil, ""},
		{"one apart is none to move", hosts(4, 3), 1, nil, ""},
		{"at the threshold", hosts(5, 3), 2, nil, ""},
		{"beyond it", hosts(6, 3), 2, nil, "1:a>b"},
		{"until they are within it", hosts(9, 1), 2, nil, "1:a>b 2:a>b 3:a>b"},
		{"over three", hosts(8, 0, 4), 2, nil, "1:a>b 2:a>b 3:a>b"},
		{"those that wait count", hosts(3, 3), 2, func(n []Node) { n[0].InFlight = 9 }, "1:a>b 2:a>b"},
		{"the least KV", hosts(6, 3), 2, func(n []Node) { n[0].Running[0].Tokens = 200 }, "2:a>b"},
		{"not one that was moved before", hosts(6, 3), 2, func(n []Node) { n[0].Running[0].Moves = 1 }, "2:a>b"},
		{"not one that is about to end", hosts(6, 3), 2, func(n []Node) { n[0].Running[0].Left = 15 }, "2:a>b"},
		{"no room there", hosts(6, 3), 2, func(n []Node) { n[1].FreeBlocks = 7 }, ""},
		{"room for one", hosts(9, 1), 2, func(n []Node) { n[1].FreeBlocks = 9 }, "1:a>b"},
		{"all of a node that is leaving", hosts(2, 5), 9, func(n []Node) { n[0].Leaving = true }, "1:a>b 2:a>b"},
		{"to whom has the fewest", hosts(2, 5, 1), 9, func(n []Node) { n[0].Leaving = true }, "1:a>c 2:a>c"},
		{"none to one that is leaving", hosts(6, 0), 2, func(n []Node) { n[1].Leaving = true }, ""},
		{"both leave", hosts(6, 0), 2, func(n []Node) { n[0].Leaving, n[1].Leaving = true, true }, ""},
		{"one node", hosts(6), 2, nil, ""},
		{"none", nil, 2, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.change != nil {
				tc.change(tc.nodes)
			}
			p, err := NewMigration(Periodic, MigrationOptions{BlockTokens: 16, Threshold: tc.threshold})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range p.Migrate(tc.nodes) {
				got = append(got, fmt.Sprintf("%d:%s>%s", m.ID, m.From, m.To))
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("moves %q, want %q", s, tc.want)
			}
		})
	}
}

// TestMigrations is what every policy keeps to: it moves what may be moved, once, to another of
// the nodes that stays, and says the same again.
func TestMigrations(t *testing.T) {
	for _, name := range Migrations() {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(MigrationHelp(), name) {
				t.Errorf("%q is not in the help: %s", name, MigrationHelp())
			}
			play := func() (all []Move) {
				p, err := NewMigration(name, MigrationOptions{BlockTokens: 16, Threshold: 1})
				if err != nil || p == nil != (name == NoMigration) {
					t.Fatalf("%v, %v", p, err)
				}
				if p == nil {
					return nil
				}
				for _, loads := range [][]int{nil, {5}, {9, 0}, {9, 0, 3, 3}, {0, 0, 0}, {1, 40, 2}} {
					nodes := hosts(loads...)
					if len(nodes) > 1 {
						nodes[0].Leaving = true
					}
					seen := map[uint64]bool{}
					for _, m := range p.Migrate(nodes) {
						at := map[string]bool{}
						for _, n := range nodes {
							for _, r := range n.Running {
								at[n.ID] = at[n.ID] || r.ID == m.ID
							}
							if n.ID == m.To && n.Leaving {
								t.Errorf("%v: %+v goes to a node that is leaving", loads, m)
							}
						}
						if !contains(nodes, m.To) || !at[m.From] || m.From == m.To || seen[m.ID] {
							t.Errorf("%v: %+v", loads, m)
						}
						seen[m.ID] = true
						all = append(all, m)
					}
				}
				return all
			}
			if a, b := play(), play(); fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("%v, and then %v", a, b)
			}
		})
	}
	if _, err := NewMigration("nonsense", MigrationOptions{}); err == nil || !strings.Contains(err.Error(), Periodic) {
		t.Errorf("an unknown policy: %v", err)
	}
	if p, err := NewMigration("", MigrationOptions{}); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
}

func contains(nodes []Node, id string) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return n.ID == id })
}
