package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/command"
	"kvferry/config"
	"kvferry/load"
)

// loadFlags say what is asked, and when. kvbench serve and kvbench simulate have them alike.
type loadFlags struct {
	spec       load.Spec
	numPrompts int
}

// register adds the flags, in the order in which help lists them.
func (f *loadFlags) register(fs *pflag.FlagSet) {
	l := &f.spec
	fs.StringVar(&l.Kind, "dataset-name", load.Random, "what is asked: "+strings.Join(load.Names(), ", "))
	fs.IntVar(&f.numPrompts, "num-prompts", 1000, "requests (default with --trace: all of it)")
	fs.Float64Var(&l.Rate, "request-rate", 4, "requests a second; inf sends all at once")
	fs.Float64Var(&l.Burstiness, "burstiness", 1, "shape of the gaps' gamma distribution: 1 is Poisson, less is burstier")
	fs.IntVar(&l.InFlight, "max-concurrency", 0, "requests under way at once; one that is due then waits for another's end (default: any number)")
	fs.IntVar(&l.InputLen, "random-input-len", 1024, "prompt tokens")
	fs.IntVar(&l.OutputLen, "random-output-len", 128, "output tokens")
	fs.Float64Var(&l.RangeRatio, "random-range-ratio", 0, "lengths are uniform in length x (1 -+ this)")
	fs.IntVar(&l.PrefixLen, "random-prefix-len", 0, "tokens that all prompts begin with, before the others")
	fs.Uint64Var(&l.Seed, "seed", 0, "of arrivals, lengths and tokens")
	fs.StringVar(&l.File, "trace", "", "replay this request trace instead")
	fs.Float64Var(&l.Speed, "speed", 1, "how many times as fast as it was recorded")
	command.Positive(fs, "num-prompts", "request-rate", "burstiness", "max-concurrency", "random-input-len", "random-output-len", "speed")
}

// loadNames are the flags that set the fields of a load.Spec.
var loadNames = map[string]string{
	"Requests": "--num-prompts", "Rate": "--request-rate", "Burstiness": "--burstiness", "InputLen": "--random-input-len", "OutputLen": "--random-output-len",
	"RangeRatio": "--random-range-ratio", "PrefixLen": "--random-prefix-len", "Seed": "--seed", "Vocab": "--profile",
	"Kind": "--dataset-name", "File": "--trace", "Speed": "--speed", "InFlight": "--max-concurrency",
}

// within are names for the same fields of a configuration that has the load in a field of its
// own.
func within(field string, names map[string]string) map[string]string {
	out := make(map[string]string, len(names))
	for k, v := range names {
		out[field+"."+k] = v
	}
	return out
}

// joined are several tables of names as one.
func joined(tables ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, t := range tables {
		maps.Copy(out, t)
	}
	return out
}

// settle decides what the flags mean together. Flags that the load does not read are refused:
// it has its own.
func (f *loadFlags) settle(changed func(string) bool, bad *config.Faults) {
	l := &f.spec
	l.Requests = f.numPrompts
	if l.File != "" {
		if changed("dataset-name") && l.Kind != load.Traced {
			bad.Add("--dataset-name", l.Kind, "--trace names what is replayed: leave one out")
		}
		l.Kind = load.Traced
	}
	which, choice := "a trace", "--trace"
	switch {
	case l.Kind != load.Traced:
		which, choice = l.Kind, "--dataset-name"
	case !changed("num-prompts"):
		l.Requests = 0 // all of it
	}
	if !slices.Contains(load.Names(), cmp.Or(l.Kind, load.Random)) {
		return // what it reads nobody knows; Validate says which there are
	}
	for _, field := range []string{"Rate", "Burstiness", "InputLen", "OutputLen", "RangeRatio", "PrefixLen", "Seed"} {
		if flag := loadNames[field]; changed(flag[2:]) && !l.Reads(field) {
			bad.Check(flag, fmt.Errorf("%s has its own: leave it or %s out", which, choice))
		}
	}
	if changed("speed") && !l.Reads("Speed") {
		bad.Check("--speed", errors.New("only a trace has a speed: use --request-rate, or name a --trace"))
	}
}

// texts reports whether prompts are texts: those of a tokenizer, or of a file.
func (f *loadFlags) texts() bool { return f.spec.Tokenizer != nil }

// turns reports whether some requests go on with the answers to others.
func (f *loadFlags) turns() bool { return false }

// scan looks through the file of a trace: how many requests it has, and how long the longest
// is. It may take a while.
func (f *loadFlags) scan(bad *config.Faults) (longest int) {
	l := &f.spec
	if l.Kind != load.Traced || l.File == "" || len(*bad) > 0 {
		return 0
	}
	var err error
	l.Requests, longest, err = load.ScanTraceFile(l.File, l.Requests)
	bad.Check("--trace", err)
	return longest
}
