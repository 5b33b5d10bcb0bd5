// Package tooldraws draws what the clients of vLLM (vllm bench serve) and SGLang (sglang.bench_serving) draw from a
// seed, to the bit: the lengths, tokens, texts and arrivals of their datasets.
//
// A dataset is a [Sampler], which makes a [Sampled] from a [Spec]. Package load gives the datasets their names on the
// command line. The tools draw a whole dataset before they send the first request. A Sampler draws only what has to be
// drawn before, so that the generators stand where the tool's stand. The Source that it returns makes tokens and texts
// as they are asked for, where the tool's order of draws allows that. Changing the order of two draws changes every
// request after them; the tests of package load compare each dataset with what the real tool drew.
//
// Lengths are in tokens. A file is read and closed within the call that names it. The caller owns what a Source
// returns. A Source is for one goroutine.
//
// Under the datasets lie the parts of Python and numpy that the tools draw from, as far as they use them:
//
//   - [RandomState] is numpy's legacy generator, behind numpy.random.seed. Its stream is frozen (NEP 19): numpy 1.17
//     and later give the same. Integers and uniform numbers are equal to the bit. A number that goes through a logarithm
//     may differ in the last one or two bits, because libraries of mathematics differ there.
//   - [NumpyGenerator] is numpy.random.default_rng.
//   - [PythonRandom] is Python's module random, of CPython 3.2 and later.
//   - [PythonHash] and [PythonJSON] are Python's hash of a string and json.dumps.
package tooldraws

import (
	"kvferry/internal/config"
	"kvferry/kvcache"
)

// A Token is one of the model's.
type Token = kvcache.Token

// A Tokenizer is that of the model; load.Tokenizer says more of each.
type Tokenizer interface {
	Encode(text string, special bool) []Token
	Decode(tokens []Token, skipSpecial bool) string
	Len() int
	VocabSize() int
	BOS() string
	Special() []Token
}

// A Sampler is a dataset of a tool.
type Sampler struct {
	// Check notes what is wrong with what it reads of a Spec, by the names of the fields.
	Check func(s Spec, bad *config.Faults)
	// Sample reads the file, if there is one, and draws; Check has found nothing.
	Sample func(s Spec) (Sampled, error)
}

// The tools' datasets: of vllm bench serve 0.32, its sonnet of 0.26, and of
// sglang.bench_serving 0.5.23.
var (
	VLLMRandom           = Sampler{checkVLLMRandom, func(s Spec) (Sampled, error) { return vllmRandoms(s, s.Tokenizer), nil }}
	VLLMRandomIDs        = Sampler{checkVLLMRandom, func(s Spec) (Sampled, error) { return vllmRandoms(s, nil), nil }} // the same before it is made to survive being text
	VLLMShareGPT         = Sampler{checkVLLMConversations, vllmShareGPT}
	VLLMCustom           = Sampler{checkCustom, vllmCustom}
	VLLMSonnet           = Sampler{checkSonnet, vllmSonnet}
	VLLMPrefixRepetition = Sampler{checkPrefixRepetition, vllmPrefixRepetition}
	VLLMBurstGPT         = Sampler{checkBurstGPT, vllmBurstGPT}
	SGLangRandom         = Sampler{checkSGLangRandom, sglangRandoms}
	SGLangRandomIDs      = Sampler{checkSGLangRandom, sglangRandomIDs}
	SGLangShareGPT       = Sampler{checkSGLangConversations, sglangShareGPT}
	SGLangCustom         = Sampler{checkSGLangConversations, sglangCustom}
	SGLangSharedPrefix   = Sampler{checkSharedPrefix, sglangSharedPrefix}
	VLLMSpecBench        = Sampler{checkSpecBench, vllmSpecBench}
	VLLMSpeedBench       = Sampler{checkVLLMSpeedBench, vllmSpeedBench}
	SGLangSpeedBench     = Sampler{checkSGLangSpeedBench, sglangSpeedBench}
	SGLangLongBench      = Sampler{checkLongBench, sglangLongBench}
)

// Options are those of single datasets, and those that several have.
type Options struct {
	OutputRatio    *float64 // RangeRatio of outputs, where it is another; of vLLM's random draws
	DisableShuffle bool     // vLLM's datasets are asked in the order of the file
	NoOversample   bool     // vLLM's datasets that have too few requests do not repeat any
	TokenIDs       bool     // SGLang's prompts are tokens alone, and not shorter for special ones: --tokenize-prompt
	PromptSuffix   string   // SGLang's conversations end with it
	ChatTemplate   bool     // SGLang's conversations are asked in the chat template
	Chat           bool     // the endpoint puts the chat template around what is sent

	ShareGPT         ShareGPT
	Custom           Custom
	Sonnet           Sonnet
	PrefixRepetition PrefixRepetition
	SharedPrefix     SharedPrefix
	SpecBench        Bench
	SpeedBench       Bench
}

// A Spec is what a dataset reads; each says which of it.
type Spec struct {
	Requests   int
	Seed       uint64
	File       string
	InputLen   int
	OutputLen  int
	PrefixLen  int
	RangeRatio float64
	Options

	Vocab     int       // random tokens are below it, where there is no Tokenizer
	Tokenizer Tokenizer // nil where none is known
	// Template puts the model's chat template around what a user says, with the mark that the
	// assistant's turn begins.
	Template func(user string) (string, error)
}

// A Request is one that a dataset asks: load.Request says more of the fields.
type Request struct {
	Prompt    []Token
	Text      string
	MaxTokens int
	MayStop   bool
	Group     string
	Routing   string
	Continues bool // the next turn of the conversation of the request before it
}

// Sampled are the requests of a dataset, and what it leaves behind.
type Sampled struct {
	Source
	Count int      // conversations, which are requests where they have one turn
	Notes []string // what a reader of the figures has to know of the requests
	g     *generators
}

// A Source is a stream of requests. After the last one Next returns false for ever.
type Source interface {
	Next() (r Request, ok bool, err error)
}

// Generators are the tool's global ones, as the dataset left them.
func (s *Sampled) Generators() (*RandomState, *PythonRandom) {
	return s.g.Numpy, s.g.Python
}

// generators are those that a tool seeds once and draws everything from: numpy.random's and
// random's global ones.
type generators struct {
	Numpy  *RandomState
	Python *PythonRandom
}

// seeded are both generators at their first number: random.seed(seed) and numpy.random.seed(seed).
func seeded(seed uint64) generators {
	return generators{Numpy: NewRandomState(uint32(seed)), Python: NewPythonRandom(int64(seed))}
}

// special is how many tokens the tokenizer puts around each text.
func (s Spec) special() int {
	if s.Tokenizer == nil {
		return 0
	}
	return len(s.Tokenizer.Encode("", true))
}

// vocab is what random tokens are below: those that the model's tokenizer has of itself,
// as the tools have it, or Vocab without one.
func (s Spec) vocab() int {
	if s.Tokenizer == nil {
		return s.Vocab
	}
	return s.Tokenizer.VocabSize()
}

// specialIDs are the special tokens below vocab, in ascending order.
func (s Spec) specialIDs() (ids []Token) {
	if s.Tokenizer == nil {
		return nil
	}
	for _, id := range s.Tokenizer.Special() {
		if int(id) < s.vocab() {
			ids = append(ids, id)
		}
	}
	return ids
}

// plain is how many tokens there are to draw that are not special.
func (s Spec) plain() int { return s.vocab() - len(s.specialIDs()) }
