// Package tooldraws has the parts of Python and numpy that the clients of vLLM (vllm bench serve) and SGLang
// (sglang.bench_serving) draw from, as far as they use them: a seed gives the same numbers, to the bit. Package load
// has the tools' datasets and arrivals, and its tests compare each with what the real tool drew.
//
//   - [RandomState] is numpy's legacy generator, behind numpy.random.seed. Its stream is frozen (NEP 19): numpy 1.17
//     and later give the same. Integers and uniform numbers are equal to the bit. A number that goes through a logarithm
//     may differ in the last one or two bits, because libraries of mathematics differ there.
//   - [NumpyGenerator] is numpy.random.default_rng.
//   - [PythonRandom] is Python's module random, of CPython 3.2 and later.
//   - [PythonHash] and [PythonJSON] are Python's hash of a string and json.dumps.
package tooldraws
