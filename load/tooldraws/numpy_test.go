package tooldraws

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"
)

// vectors are what numpy and pandas drew: testdata/numpy.py prints them.
type vectors struct {
	Ranges    [][2]int64
	Shapes, P []float64
	Legacy    map[string]legacy
	Generator map[string]generator
}

type legacy struct {
	RandomSample                []float64 `json:"random_sample"`
	Randint                     [][]int64
	Exponential                 []float64
	StandardNormal              []float64 `json:"standard_normal"`
	Gamma                       [][]float64
	Choice, Sample, Permutation []int
	Mixed                       []float64
}

type generator struct {
	Random   []float64
	Integers [][]int64
	Choice   []int
	Mixed    []float64
}

func numpys(t *testing.T) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/numpy.json")
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil || len(v.Legacy) < 4 || len(v.Generator) < 6 || len(v.Ranges) < 10 {
		t.Fatalf("testdata/numpy.json: %v, %d and %d seeds", err, len(v.Legacy), len(v.Generator))
	}
	return v
}

// draw is as many draws as are wanted.
func draw[T any](want []T, next func() T) []T {
	got := make([]T, len(want))
	for i := range got {
		got[i] = next()
	}
	return got
}

// nearly tells numbers apart that differ in more than the last bits of a logarithm.
func nearly(a, b float64) bool { return math.Abs(a-b) <= 4e-15*math.Abs(b) }

func TestRandomState(t *testing.T) {
	v := numpys(t)
	for name, want := range v.Legacy {
		seed, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		state := func() *RandomState { return NewRandomState(uint32(seed)) }
		if got := draw(want.RandomSample, state().RandomSample); !slices.Equal(got, want.RandomSample) {
			t.Errorf("seed %d: random_sample %v, want %v", seed, got, want.RandomSample)
		}
		for i, ends := range v.Ranges {
			r := state()
			got := draw(want.Randint[i], func() int64 { return r.Randint(ends[0], ends[1]) })
			if !slices.Equal(got, want.Randint[i]) {
				t.Errorf("seed %d: randint%v %v, want %v", seed, ends, got, want.Randint[i])
			}
		}
		r := state()
		if got := draw(want.Exponential, func() float64 { return r.Exponential(0.5) }); !slices.EqualFunc(got, want.Exponential, nearly) {
			t.Errorf("seed %d: exponential %v, want %v", seed, got, want.Exponential)
		}
		if got := draw(want.StandardNormal, state().StandardNormal); !slices.EqualFunc(got, want.StandardNormal, nearly) {
			t.Errorf("seed %d: standard_normal %v, want %v", seed, got, want.StandardNormal)
		}
		for i, shape := range v.Shapes {
			r := state()
			if got := draw(want.Gamma[i], func() float64 { return r.Gamma(shape, 2) }); !slices.EqualFunc(got, want.Gamma[i], nearly) {
				t.Errorf("seed %d: gamma(%v) %v, want %v", seed, shape, got, want.Gamma[i])
			}
		}
		r = state()
		if got := draw(want.Choice, func() int { return r.Choice(v.P) }); !slices.Equal(got, want.Choice) {
			t.Errorf("seed %d: choice %v, want %v", seed, got, want.Choice)
		}
		if got := state().Sample(50, 12); !slices.Equal(got, want.Sample) {
			t.Errorf("seed %d: df.sample %v, want %v", seed, got, want.Sample)
		}
		if got := state().Permutation(20); !slices.Equal(got, want.Permutation) {
			t.Errorf("seed %d: permutation %v, want %v", seed, got, want.Permutation)
		}
		r = state()
		mixed := []float64{r.StandardNormal(), float64(r.Randint(0, 10)), float64(r.Randint(3, 4)), r.StandardNormal(), r.Gamma(2.5, 1), r.RandomSample()}
		if !slices.EqualFunc(mixed, want.Mixed, nearly) {
			t.Errorf("seed %d: in turns %v, want %v", seed, mixed, want.Mixed)
		}
	}
}

func TestGenerator(t *testing.T) {
	v := numpys(t)
	for name, want := range v.Generator {
		seed, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := draw(want.Random, DefaultRNG(seed).Random); !slices.Equal(got, want.Random) {
			t.Errorf("seed %d: random %v, want %v", seed, got, want.Random)
		}
		for i, ends := range v.Ranges {
			g := DefaultRNG(seed)
			got := draw(want.Integers[i], func() int64 { return g.Integers(ends[0], ends[1]) })
			if !slices.Equal(got, want.Integers[i]) {
				t.Errorf("seed %d: integers%v %v, want %v", seed, ends, got, want.Integers[i])
			}
		}
		g := DefaultRNG(seed)
		if got := g.Choice(v.P, len(want.Choice)); !slices.Equal(got, want.Choice) {
			t.Errorf("seed %d: choice %v, want %v", seed, got, want.Choice)
		}
		g = DefaultRNG(seed)
		mixed := []float64{float64(g.Integers(0, 100)), g.Random(), float64(g.Integers(3, 4)), float64(g.Integers(0, 100)), float64(g.Integers(0, 1<<40)), float64(g.Integers(0, 7))}
		if !slices.Equal(mixed, want.Mixed) {
			t.Errorf("seed %d: in turns %v, want %v", seed, mixed, want.Mixed)
		}
	}
}
