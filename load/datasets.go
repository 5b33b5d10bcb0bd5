package load

import (
	"math"

	"kvferry/internal/config"
	"kvferry/kvcache"
)

// The datasets of vllm bench serve 0.32, its sonnet of 0.26, and of sglang.bench_serving 0.5.23 draw a whole dataset
// before the first request is sent. Here only what has to be drawn before is, so that the generators stand where the
// tool's stand; tokens and texts are made as they are asked for, where the tool's order of draws allows that. Changing
// the order of two draws changes every request after them.

// ofTool returns what s has of the two tools: SGLang's if Compat says so, vLLM's if not.
func ofTool[T any](s Spec, vllm, sglang T) T {
	if s.Compat == CompatSGLang {
		return sglang
	}
	return vllm
}

// template puts the model's chat template around what a user says, with the mark that the
// assistant's turn begins.
func (s Spec) template(user string) (string, error) {
	return s.Tokenizer.Chat([]Message{{Role: "user", Content: user}}, true)
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
func (s Spec) specialIDs() (ids []kvcache.Token) {
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

// maxHeld bounds the tokens of a load that is in memory as a whole: 2 GB.
const maxHeld = 1 << 29

// checkSGLangRatio checks a range ratio in SGLang's meaning.
func checkSGLangRatio(bad *config.Faults, field string, ratio float64) {
	bad.Refuse(!(ratio >= 0 && ratio <= 1), field, ratio, "use 0 to 1: lengths are drawn from length x this to length")
}

// checkLengths checks what the random draws of both tools read.
func checkLengths(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	checkRequests(s, bad)
	config.Between(bad, "InputLen", s.InputLen, 1, maxLen)
	config.Between(bad, "OutputLen", s.OutputLen, 1, maxLen)
	config.Between(bad, "PrefixLen", s.PrefixLen, 0, maxLen)
	checkVocab(s, bad)
}

// checkNoVLLM refuses what SGLang's datasets of a file do not have.
func checkNoVLLM(s Spec, bad *config.Faults) {
	const fix = "only vllm bench serve has it: leave it out, or use --compat vllm"
	bad.Refuse(s.DisableShuffle, "DisableShuffle", s.DisableShuffle, fix)
	bad.Refuse(s.NoOversample, "NoOversample", s.NoOversample, fix)
}

// checkHeld bounds the tokens of a load that is in memory as a whole.
func checkHeld(bad *config.Faults, field string, v any, tokens float64) {
	bad.Refuse(tokens > maxHeld, field, v, "the load has %.0f tokens, which are all in memory: use %d at most", tokens, maxHeld)
}

// checkSeed holds a seed to what numpy.random.seed takes.
func checkSeed(s Spec, bad *config.Faults) { config.Between(bad, "Seed", s.Seed, 0, math.MaxUint32) }

func checkRequests(s Spec, bad *config.Faults) {
	bad.Refuse(s.Requests < 1, "Requests", s.Requests, "use 1 or more")
}

// checkFile checks what all loads of a file read.
func checkFile(s Spec, bad *config.Faults, fix string) {
	checkSeed(s, bad)
	bad.Refuse(s.File == "", "File", nil, "%s", fix)
}

// checkVocab wants a vocabulary where random tokens are drawn from it.
func checkVocab(s Spec, bad *config.Faults) {
	if s.Tokenizer == nil {
		config.Between(bad, "Vocab", s.Vocab, 1, 1<<30)
	} else if n := s.plain(); n < 1 {
		bad.Add("Tokenizer", n, "it has no tokens but special ones: use another")
	}
}

// checkOutput checks a number of tokens that stands for those of the file, 0 for the file's.
func checkOutput(bad *config.Faults, field string, n, least int) {
	if n != 0 {
		config.Between(bad, field, n, least, maxLen)
	}
}
