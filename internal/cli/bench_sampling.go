package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/bench/client"
)

// samplingFlags are vLLM's: what is not given is not sent, and is as the server has it.
type samplingFlags map[string]*numberFlag // by client.Parameters

// samplingHelp is what each is, by client.Parameters.
var samplingHelp = map[string]string{
	"top_p":              "sampling: only tokens that make up this share of the probability",
	"top_k":              "sampling: only this many tokens; -1 all",
	"min_p":              "sampling: only tokens of at least this share of the likeliest one's probability",
	"temperature":        "of sampling; 0 takes the likeliest token (default 0 with --compat sglang)",
	"frequency_penalty":  "sampling: against tokens by how often they were generated",
	"presence_penalty":   "sampling: against tokens that were generated",
	"repetition_penalty": "sampling: against tokens of prompt and answer; 1 is none",
}

// samplingFlag is the flag of a parameter.
func samplingFlag(name string) string { return strings.ReplaceAll(name, "_", "-") }

// samplingNames are the flags that set the fields of client.Config.Sampling.
var samplingNames = func() map[string]string {
	names := map[string]string{}
	for _, name := range client.Parameters {
		names["Sampling."+name] = "--" + samplingFlag(name)
	}
	return names
}()

func (f *samplingFlags) register(fs *pflag.FlagSet) {
	*f = samplingFlags{}
	for _, name := range client.Parameters {
		n := new(numberFlag)
		(*f)[name] = n
		fs.Var(n, samplingFlag(name), samplingHelp[name])
		Signed(fs, samplingFlag(name))
	}
}

// parameters are those that were given.
func (f samplingFlags) parameters() (list []client.Parameter) {
	for _, name := range client.Parameters {
		if n := f[name]; n.given {
			list = append(list, client.Parameter{Name: name, Value: n.value})
		}
	}
	return list
}

// A numberFlag is a number that need not be given.
type numberFlag struct {
	value float64
	given bool
}

func (n *numberFlag) String() string {
	if !n.given {
		return ""
	}
	return strconv.FormatFloat(n.value, 'g', -1, 64)
}

func (n *numberFlag) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%q: write a number", text)
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return errors.New("write a finite number")
	}
	n.value, n.given = v, true
	return nil
}

func (n *numberFlag) Type() string { return "number" }
