package tooldraws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
)

// draws are what Python drew from a seed: testdata/python.py prints them.
type draws struct {
	Seed            int64
	Random          float64
	Getrandbits     []any
	Randrange       [][]int
	Randint, Choice []int
	Choices         []int
	Shuffle         []int
	Sample          [][]int
	Mixed           []float64
}

// drawn is as many draws as are wanted.
func drawn(want []int, next func() int) []int {
	got := make([]int, len(want))
	for i := range got {
		got[i] = next()
	}
	return got
}

func TestRandom(t *testing.T) {
	text, err := os.ReadFile("testdata/python.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Draws []draws }
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // numbers have 64 bits
	if err := d.Decode(&v); err != nil || len(v.Draws) < 7 {
		t.Fatal(err, len(v.Draws))
	}
	for _, want := range v.Draws {
		t.Run(fmt.Sprint(want.Seed), func(t *testing.T) {
			open := func() *PythonRandom { return NewPythonRandom(want.Seed) }
			if got := open().Random(); got != want.Random {
				t.Errorf("random %v, want %v", got, want.Random)
			}
			for i, k := range []int{1, 31, 32, 33, 64} {
				if got := open().Getrandbits(k); fmt.Sprint(got) != fmt.Sprint(want.Getrandbits[i]) {
					t.Errorf("getrandbits(%d) %v, want %v", k, got, want.Getrandbits[i])
				}
			}
			for i, n := range []int{1, 2, 7, 64, 151936, 1 << 40} {
				r := open()
				if got := drawn(want.Randrange[i], func() int { return r.Randrange(n) }); !slices.Equal(got, want.Randrange[i]) {
					t.Errorf("randrange(%d) %v, want %v", n, got, want.Randrange[i])
				}
			}
			shuffled := make([]int, len(want.Shuffle))
			for i := range shuffled {
				shuffled[i] = i
			}
			open().Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			randint, choice, choices := open(), open(), open()
			for name, got := range map[string][2][]int{
				"randint": {drawn(want.Randint, func() int { return randint.Randint(-3, 3) }), want.Randint},
				"choice":  {drawn(want.Choice, func() int { return choice.Randrange(10) }), want.Choice},
				"choices": {drawn(want.Choices, func() int { return choices.Choices(151936) }), want.Choices},
				"shuffle": {shuffled, want.Shuffle},
			} {
				if !slices.Equal(got[0], got[1]) {
					t.Errorf("%s %v, want %v", name, got[0], got[1])
				}
			}
			for i, c := range [][2]int{{5, 5}, {21, 3}, {22, 3}, {84, 6}, {86, 6}, {1000, 64}} {
				if got := open().Sample(c[0], c[1]); !slices.Equal(got, want.Sample[i]) {
					t.Errorf("sample of %d, %d: %v, want %v", c[0], c[1], got, want.Sample[i])
				}
			}
			r := open()
			if got := []float64{float64(r.Randrange(10)), float64(r.Choices(100)), float64(r.Getrandbits(5)), r.Random()}; !slices.Equal(got, want.Mixed) {
				t.Errorf("in turns %v, want %v", got, want.Mixed)
			}
		})
	}
}
