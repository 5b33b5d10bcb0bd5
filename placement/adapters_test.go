package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// adapterNode is a candidate with adapters in its slots.
func adapterNode(id string, legs, slots int, adapters ...string) Candidate {
	return Candidate{ID: id, InFlight: legs, AdapterSlots: slots, Adapters: adapters}
}

// placed is where requests for adapters go, in a row.
func placed(p Policy, candidates []Candidate, adapters ...string) string {
	var got []string
	for _, a := range adapters {
		got = append(got, candidates[p.Place(Request{Tokens: 1, Adapter: a}, candidates)].ID)
	}
	return strings.Join(got, " ")
}

func TestStatic(t *testing.T) {
	p, _ := New(Static, 16, true)
	c := []Candidate{adapterNode("a", 9, 8), adapterNode("b", 0, 8), adapterNode("c", 0, 8)}
	if got := placed(p, c, "lora-0", "lora-1", "lora-2", "lora-3", "lora-10", "lora-0"); got != "a b c a b a" {
		t.Errorf("%s", got)
	}
	if got := placed(p, c, "", "", ""); strings.Contains(got, "a") && !strings.Contains(got, "b") {
		t.Errorf("of the base model: %s", got)
	}
	// A name without a number always goes to the same node, and not all to one.
	names := map[string]bool{}
	for i := range 20 {
		name := fmt.Sprintf("%c-lora", 'a'+i)
		first := placed(p, c, name)
		if placed(p, c, name) != first {
			t.Errorf("%s goes to two nodes", name)
		}
		names[first] = true
	}
	if len(names) != 3 {
		t.Errorf("20 names go to %v", names)
	}
}

func TestAdapterAffinity(t *testing.T) {
	for _, tc := range []struct {
		name       string
		candidates []Candidate
		want       string
	}{
		{"it has the adapter", []Candidate{adapterNode("a", 0, 2), adapterNode("b", 9, 2, "x"), adapterNode("c", 1, 2)}, "b"},
		{"and of two the one with less to do", []Candidate{adapterNode("a", 2, 2, "x"), adapterNode("b", 1, 2, "x", "y")}, "b"},
		{"but not a batch behind", []Candidate{adapterNode("a", 0, 2), adapterNode("b", behind, 2, "x")}, "a"},
		{"a free slot", []Candidate{adapterNode("a", 0, 1, "y"), adapterNode("b", 3, 1)}, "b"},
		{"no slot free", []Candidate{adapterNode("a", 1, 1, "y"), adapterNode("b", 0, 1, "z")}, "b"},
		{"nobody has slots", []Candidate{adapterNode("a", 1, 0), adapterNode("b", 0, 0)}, "b"},
	} {
		p, _ := New(AdapterAffinity, 16, true)
		if got := placed(p, tc.candidates, "x"); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	p, _ := New(AdapterAffinity, 16, true)
	if got := placed(p, []Candidate{adapterNode("a", 1, 1, "x"), adapterNode("b", 0, 1)}, ""); got != "b" {
		t.Errorf("the base model: %s", got)
	}
}

// TestDLoRA is a transcript: adapters come, get nodes, and free slots go to those that are asked
// for most.
func TestDLoRA(t *testing.T) {
	p := dloraKind.make(16, true).(*dlora)
	two := func(a, b int) []Candidate { return []Candidate{adapterNode("a", a, 2), adapterNode("b", b, 2)} }
	given := func() string {
		var all []string
		for _, name := range []string{"w", "x", "y", "z"} {
			all = append(all, name+":"+strings.Join(slices.Sorted(slices.Values(p.given[name])), ""))
		}
		return strings.Join(all, " ")
	}
	for i, step := range []struct {
		adapter string
		a, b    int // requests there
		want    string
		given   string
	}{
		{"x", 1, 0, "b", "w: x:ab y: z:"},   // the fewest; free slots: the only adapter there is
		{"x", 0, 3, "a", "w: x:ab y: z:"},   // of its two nodes the one with less to do
		{"y", 0, 3, "a", "w: x:ab y:ab z:"}, // new; both have a slot left
		{"y", 5, 4, "b", "w: x:ab y:ab z:"},
		{"y", 5, 4, "b", "w: x:ab y:ab z:"},
		{"z", 5, 4, "b", "w: x:a y:ab z:b"}, // no slot is left: x, asked for least, gives b up
		{"x", 9, 0, "a", "w: x:a y:ab z:b"}, // and stays where it is
		{"w", 9, 0, "b", "w:b x:a y:ab z:b"},
	} {
		if got := placed(p, two(step.a, step.b), step.adapter); got != step.want || given() != step.given {
			t.Errorf("step %d, %s: placed on %s, want %s; given are %s, want %s", i, step.adapter, got, step.want, given(), step.given)
		}
	}
	// A node says that it has w now, as a request that runs was moved there: it is w's too.
	c := two(0, 9)
	c[0].Adapters = []string{"x", "w"}
	if got := placed(p, c, "w"); got != "a" {
		t.Errorf("after migration w goes to %s", got)
	}
	// Where a node is gone its adapters find another.
	if got := placed(p, []Candidate{adapterNode("c", 9, 2), adapterNode("d", 0, 2)}, "z"); got != "d" {
		t.Errorf("z goes to %s", got)
	}
}

// TestDLoRASlots: however adapters are asked for, each has a node, and no node more adapters than
// it has room for while others could take them.
func TestDLoRASlots(t *testing.T) {
	p := dloraKind.make(16, true).(*dlora)
	c := []Candidate{adapterNode("a", 0, 4), adapterNode("b", 0, 4), adapterNode("c", 0, 4)}
	for i := range 500 {
		name := fmt.Sprintf("lora-%d", i*i%11)
		node := p.Place(Request{Tokens: 1, Adapter: name}, c)
		if !slices.Contains(p.given[name], c[node].ID) {
			t.Fatalf("%s is on %v and was placed on %s", name, p.given[name], c[node].ID)
		}
		c[node].InFlight = (c[node].InFlight + 1) % 5
	}
	on := map[string]int{}
	for name, nodes := range p.given {
		if len(nodes) == 0 {
			t.Errorf("%s has no node", name)
		}
		for _, id := range nodes {
			on[id]++
		}
	}
	for id, n := range on {
		if n > 5 { // four slots; 11 squares are 6 residues, and 2 more replicas
			t.Errorf("%s has %d adapters", id, n)
		}
	}
}

// TestDLoRAForgets: adapters that come under ever new names, to ever new nodes, take no more memory than
// so many, and those that are asked for meanwhile are not forgotten.
func TestDLoRAForgets(t *testing.T) {
	p := dloraKind.make(16, true).(*dlora)
	for i := range maxNodes + 100 {
		placed(p, []Candidate{adapterNode("a", 0, 2), adapterNode(fmt.Sprint("new-", i), 0, 2, fmt.Sprint("there-", i))}, "kept")
	}
	if n := len(p.given["kept"]); n != maxNodes {
		t.Errorf("kept is on %d nodes", n)
	}
	for i := range maxAdapters - maxNodes - 200 { // quickly
		p.ask(fmt.Sprint("old-", i))
	}
	two := []Candidate{adapterNode("a", 0, 0), adapterNode("b", 1, 0)}
	for i := range 200 {
		placed(p, two, fmt.Sprint("lora-", i), "kept")
	}
	if asked := p.asked["kept"]; asked != maxNodes+100+200+1 || !slices.Contains(p.given["kept"], "a") && !slices.Contains(p.given["kept"], "b") {
		t.Errorf("kept was asked for %d times by its account, and is on %q", asked, p.given["kept"])
	}
	if len(p.seen) > maxAdapters || len(p.asked) > len(p.seen) || len(p.given) > len(p.seen) {
		t.Errorf("%d names, %d that are asked for, %d on nodes", len(p.seen), len(p.asked), len(p.given))
	}
	all := 0
	for name, asked := range p.asked {
		all += asked
		if n := len(p.given[name]); n > maxNodes {
			t.Errorf("%s is on %d nodes", name, n)
		}
	}
	if all != p.all {
		t.Errorf("%d requests are counted, of adapters %d", p.all, all)
	}
}
