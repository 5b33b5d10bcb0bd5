// Package eos says after how many tokens a modelled model ends an answer by itself. A real
// model draws its end-of-sequence token (EOS) when it has said what it has to say; what the
// modelled one draws means nothing, so the length of its answers is drawn instead.
//
// The draw is a function of the prompt, of which of its answers this is, and of a seed:
// nothing else. Whoever asks gets the same length, so a node that takes a request over in
// mid-answer ends it where the first one would have, and the simulator ends it where a real
// cluster does. Lengths are in tokens, the last one included.
package eos

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"kvferry/internal/config"
	"kvferry/kvcache"
)

// Lengths are those of answers that are not told to ignore EOS: log-normal, as those of
// chats are. Median is the one in the middle, and Sigma the standard deviation of the
// logarithm: at 1, two thirds of the answers have between 0.37 and 2.7 times the median.
//
// The published LoRA runs on SGLang, with traces of Azure Functions, fit a median of 23.4, a
// sigma of 1.98 and a longest answer of 751.
type Lengths struct {
	Median float64 // tokens, at least 1; +Inf: the model never stops
	Sigma  float64 // 0: all answers have the median
	Max    int     // the longest; 0: only the request and the model's length bound it
	Seed   uint64
}

// Default is what a proxy and a simulation take for the zero Lengths. A request without
// max_tokens went to the end of a context of 10,000 tokens, 115 s on the shipped profile, when
// nothing ended it; with this it takes 2 s in the middle.
var Default = Lengths{Median: 180, Sigma: 1, Max: 2048}

// None is of a model that never stops: answers have what was asked for.
var None = Lengths{Median: math.Inf(1)}

// OrDefault is l, or Default for the zero value.
func (l Lengths) OrDefault() Lengths {
	config.Default(&l, Default)
	return l
}

// Draw is after how many tokens the answer to a prompt ends, at least 1. variant tells the
// answers to one prompt apart (see engine.Request); a limit, max_tokens, is the caller's to
// apply.
func (l Lengths) Draw(prompt []kvcache.Token, variant uint64) int {
	if math.IsInf(l.Median, 1) {
		return math.MaxInt
	}
	h := mix(l.Seed ^ mix(variant))
	for _, t := range prompt {
		h = (h ^ uint64(t)) * golden
		h ^= h >> 32
	}
	// 53 bits and a half more: never 0 or 1, where the quantile is infinite.
	u := (float64(mix(h)>>11) + 0.5) / (1 << 53)
	z := math.Sqrt2 * math.Erfinv(2*u-1)
	n := math.Max(1, math.Round(l.Median*math.Exp(l.Sigma*z)))
	if l.Max > 0 {
		n = math.Min(n, float64(l.Max))
	}
	return int(math.Min(n, math.MaxInt32)) // more tokens than any model has
}

// golden and mix are splitmix64's (Steele et al. 2014): every bit of the prompt's digest
// counts for the draw.
const golden = 0x9e3779b97f4a7c15

func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Validate lists every fault by its key in the text form, as a [config.Invalid]. The zero
// value is none: it is Default.
func (l Lengths) Validate() error {
	if l == (Lengths{}) {
		return nil
	}
	var bad config.Faults
	if !(l.Median >= 1) {
		bad.Add("median", l.Median, "use 1 token or more")
	}
	if !(l.Sigma >= 0 && l.Sigma <= 10) {
		bad.Add("sigma", l.Sigma, "use a number from 0 to 10: the standard deviation of the length's logarithm")
	}
	if l.Max < 0 {
		bad.Add("max", l.Max, "use a number of tokens, or 0 for no limit")
	}
	return bad.Err("")
}

// none is the text of None.
const none = "none"

// String is the form that Set reads: "median=180,sigma=1,max=2048,seed=0", or "none".
func (l Lengths) String() string {
	if math.IsInf(l.Median, 1) {
		return none
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return fmt.Sprintf("median=%s,sigma=%s,max=%d,seed=%d", number(l.Median), number(l.Sigma), l.Max, l.Seed)
}

// Set reads what String writes: it is a flag's value. Keys that are left out have Default's
// value.
func (l *Lengths) Set(text string) error {
	if text == none {
		*l = None
		return nil
	}
	const form = "write median=180,sigma=1,max=2048,seed=0, or none"
	read := Default
	seen := make(map[string]bool)
	for field := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if !ok {
			return fmt.Errorf("%q is not key=value: %s", field, form)
		}
		if seen[key] {
			return fmt.Errorf("%s is given twice: leave one out", key)
		}
		seen[key] = true
		var err error
		switch key {
		case "median":
			read.Median, err = strconv.ParseFloat(value, 64)
		case "sigma":
			read.Sigma, err = strconv.ParseFloat(value, 64)
		case "max":
			read.Max, err = strconv.Atoi(value)
		case "seed":
			read.Seed, err = strconv.ParseUint(value, 10, 64)
		default:
			return fmt.Errorf("there is no %q: %s", key, form)
		}
		if err != nil {
			return fmt.Errorf("%s: %q is no number that it takes: %s", key, value, form)
		}
	}
	if math.IsInf(read.Median, 1) {
		return fmt.Errorf("median: %v: for a model that never stops, write none", read.Median)
	}
	if err := read.Validate(); err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	*l = read
	return nil
}

// Type is what a flag's help calls the value.
func (l *Lengths) Type() string { return "lengths" }

// MarshalText writes String's form: a configuration may travel as JSON, which has no infinite
// numbers.
func (l Lengths) MarshalText() ([]byte, error) {
	if l == (Lengths{}) {
		return nil, nil
	}
	return []byte(l.String()), nil
}

// UnmarshalText reads it.
func (l *Lengths) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*l = Lengths{}
		return nil
	}
	return l.Set(string(text))
}
