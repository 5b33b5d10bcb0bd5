package load

import "kvferry/load/tooldraws"

// Generators are numpy's and Python's global ones, which vllm bench serve and
// sglang.bench_serving seed once with --seed and draw everything from: the requests of the
// dataset first, then adapters and gaps between arrivals. So what comes after the dataset
// depends on how much the dataset has drawn: a load that was sampled as one of these tools
// does it hands them on in [Load].Generators.
type Generators struct {
	Numpy  *tooldraws.RandomState
	Python *tooldraws.PythonRandom
}

// newGenerators are both of them freshly seeded. numpy takes seeds of 32 bits.
func newGenerators(seed uint64) Generators {
	return Generators{Numpy: tooldraws.NewRandomState(uint32(seed)), Python: tooldraws.NewPythonRandom(int64(seed))}
}

// clone are generators that draw the same from here on, by themselves.
func (g *Generators) clone() *Generators {
	return &Generators{Numpy: g.Numpy.Clone(), Python: g.Python.Clone()}
}
