package cli

import (
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/spf13/pflag"

	"kvferry/bench/simulation"
	"kvferry/engine"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/load"
	"kvferry/load/trace"
)

// loadFlags say what is asked, and when. kvferry bench and kvferry sim have them alike.
type loadFlags struct {
	spec       load.Spec
	trace      string
	numPrompts int
	ignoreEOS  bool // --ignore-eos, and SGLang's flag that says the contrary
	heedEOS    bool
	modules    []string // --lora-modules, and how they are assigned
	assignment string
	names      []string // --lora-name, and how they are distributed
	picks      string
	input      int // --input-len and --output-len, of any dataset
	output     int
}

// groups returns the flags, in the order in which help lists them: those of the load's knobs, and those that say
// something of several fields at once.
func (f *loadFlags) groups() []knob.Group {
	f.spec = load.New()
	knobs := load.AllKnobs()
	groups := knobs.Flags(&f.spec, 0)
	for i := range groups {
		g := &groups[i]
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		switch g.Title {
		case load.AskedGroup:
			g.Topic = "datasets"
			fs.AddFlag(g.Flags.Lookup("dataset-name"))
			fs.StringVar(&f.trace, "trace", "", "replay this request trace: --dataset-name trace with this --dataset-path")
			fs.IntVar(&f.input, "input-len", 0, "prompt tokens, of any dataset that has an option for them")
			fs.IntVar(&f.output, "output-len", 0, "output tokens, of any dataset that has an option for them")
			fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "have answers go on to the tokens that are wanted (default where the dataset draws lengths, and with --compat sglang)")
			fs.BoolVar(&f.heedEOS, "disable-ignore-eos", false, "have answers end where the model ends them")
			fs.Bool("gsp-fast-prepare", false, "nothing: lengths are counted as requests are sent")
			_ = fs.MarkHidden("gsp-fast-prepare")
			Signed(g.Flags, "custom-output-len")
		case load.ArrivalsGroup:
			g.Topic = "arrivals"
			fs.IntVar(&f.numPrompts, "num-prompts", 1000, "requests; 0: all of a file's (default with a trace)")
			alias(fs, "num-prompt", "num-prompts") // argparse takes beginnings of names, and SGLang's documents have this one
		case load.AdaptersGroup:
			g.Topic = "lora"
			f.registerAdapters(fs)
		}
		fs.AddFlagSet(g.Flags)
		for _, k := range knobs {
			for _, name := range k.Aliases {
				if k.Group == g.Title && name != "input-len" && name != "output-len" {
					alias(fs, name, k.Name)
				}
			}
		}
		g.Flags = fs
	}
	return groups
}

// registerAdapters adds the flags by which vLLM's and SGLang's clients name adapters.
func (f *loadFlags) registerAdapters(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.modules, "lora-modules", nil, "LoRA adapters to ask for, as vLLM's client has them; may be given several times")
	fs.StringVar(&f.assignment, "lora-assignment", load.AdapterRandom, "which of --lora-modules a request is for: random or round-robin")
	fs.StringArrayVar(&f.names, "lora-name", nil, "LoRA adapters to ask for, as SGLang's client has them; may be given several times")
	fs.StringVar(&f.picks, "lora-request-distribution", "uniform", "which of --lora-name a request is for: uniform, distinct (in turn), skewed (the n-th in proportion to alpha^-n) or zipf (to n^-alpha)")
}

// ofDataset returns groups without the flags of other datasets than the one of that name. The short help lists those
// that are left of the load's.
func ofDataset(groups []knob.Group, name string) []knob.Group {
	kinds, knobs := load.Kinds(), load.AllKnobs()
	n := slices.IndexFunc(kinds, func(k load.Kind) bool { return k.Name == load.NameOf(name) })
	if n < 0 {
		return groups
	}
	kind := load.Spec{Kind: name}
	groups = slices.Clone(groups)
	for i := range groups {
		g := &groups[i]
		if g.Title == load.AskedGroup {
			g.Title += ": " + kinds[n].About
		}
		left := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		left.SortFlags = false
		g.Flags.VisitAll(func(f *pflag.Flag) {
			switch {
			case kind.Offers(f.Name):
				f.Annotations = joined(f.Annotations, map[string][]string{knob.First: {}})
			case knobs.Lookup(f.Name) != nil:
				return
			}
			left.AddFlag(f)
		})
		g.Flags = left
	}
	return groups
}

// loadNames are the flags that set the fields of a load.Spec.
var loadNames = joined(load.AllKnobs().Names(), map[string]string{
	"Requests": "--num-prompts", "EOS": "--ignore-eos", "Vocab": "--profile", "Compat": "--compat", "Tokenizer": "--tokenizer", "TokenIDs": "--tokenize-prompt", "Chat": "--backend",
	"Adapters.Names": "--lora-name", "Adapters.Choice": "--lora-request-distribution", "Workers.Count": "--worker-urls",
})

// within are names for the same fields of a configuration that has the load in a field of its
// own.
func within(field string, names map[string]string) map[string]string {
	out := make(map[string]string, len(names))
	for k, v := range names {
		out[field+"."+k] = v
	}
	return out
}

// joined are several tables as one.
func joined[V any](tables ...map[string]V) map[string]V {
	out := map[string]V{}
	for _, t := range tables {
		maps.Copy(out, t)
	}
	return out
}

// endless is more requests than a run of a --duration sends, of a load that needs a number.
const endless = 1 << 20

// settle decides what the flags mean together. Flags that the load does not read are refused:
// it has its own.
func (f *loadFlags) settle(changed func(string) bool, bad *config.Faults) {
	l := &f.spec
	l.Kind = load.NameOf(l.Kind)
	l.Requests = f.numPrompts
	if l.Custom.OutputLen == -1 {
		l.Custom.OutputLen = 0 // as the line says
	}
	if changed("duration") && !changed("num-prompts") && l.Takes("random-input-len") {
		l.Requests = endless
		if !math.IsInf(l.Rate, 1) && l.Rate > 0 {
			l.Requests = max(1, int(math.Round(min(l.Rate*l.Duration.Seconds(), endless))))
		}
	}
	switch {
	case f.ignoreEOS && f.heedEOS:
		bad.Check("--ignore-eos", errors.New("--disable-ignore-eos says the contrary: leave one out"))
	case f.ignoreEOS:
		l.EOS = load.IgnoreEOS
	case f.heedEOS:
		l.EOS = load.HeedEOS
	}
	if l.RampUp.Strategy != "" && !changed("request-rate") {
		l.Rate = math.Inf(1) // it grows instead
	}
	f.settleAdapters(changed, bad)
	if f.trace != "" {
		bad.Refuse(changed("dataset-name") && l.Kind != load.Traced, "--dataset-name", l.Kind, "--trace names what is replayed: leave one out")
		refuse(bad, changed, "--trace names the file: leave one out", "dataset-path")
		l.Kind, l.File = load.Traced, f.trace
	}
	if changed("input-len") {
		bad.Check("--input-len", l.SetLen("input-len", f.input))
	}
	if changed("output-len") {
		bad.Check("--output-len", l.SetLen("output-len", f.output))
	}
	if l.Compat == load.CompatSGLang && l.Kind == load.ShareGPTName && l.File == "" && !changed("dataset-name") {
		bad.Check("--dataset-path", errors.New("none given: sglang.bench_serving asks sharegpt unless it is told, and downloads it: name that file, or another dataset, such as --dataset-name random"))
	}
	if l.Takes("speed") && !changed("num-prompts") {
		l.Requests = 0 // all of it
	}
	*bad = append(*bad, load.AllKnobs().Check(l, changed)...)
}

// picks are SGLang's names for the ways to choose an adapter, and one of ours.
var picks = map[string]string{"uniform": load.AdapterRandom, "distinct": load.AdapterRoundRobin, "skewed": load.AdapterSkewed, "zipf": load.AdapterZipf}

// settleAdapters takes adapters from the flags of one of the tools.
func (f *loadFlags) settleAdapters(changed func(string) bool, bad *config.Faults) {
	a := &f.spec.Adapters
	switch {
	case changed("lora-modules") && changed("lora-name"):
		bad.Check("--lora-name", errors.New("--lora-modules names the adapters too: leave one out"))
	case changed("lora-modules"):
		a.Names, a.Choice = f.modules, f.assignment
		if f.assignment != load.AdapterRandom && f.assignment != load.AdapterRoundRobin {
			bad.Add("--lora-assignment", f.assignment, "use %s or %s", load.AdapterRandom, load.AdapterRoundRobin)
		}
	case changed("lora-name"):
		choice, ok := picks[f.picks]
		bad.Refuse(!ok, "--lora-request-distribution", f.picks, "use uniform, distinct, skewed or zipf")
		a.Names, a.Choice = f.names, choice
	default:
		refuse(bad, changed, "it chooses among adapters: name them with --lora-modules or --lora-name", "lora-assignment", "lora-request-distribution", "lora-zipf-alpha")
	}
	if f.spec.Functions.File != "" && !changed("lora-request-distribution") && !changed("lora-assignment") {
		a.Choice = "" // the trace says which
	}
}

// texts reports whether prompts are texts: those of a tokenizer, or of a file.
func (f *loadFlags) texts() bool { return f.spec.Tokenizer != nil || f.spec.Texts() }

// turns reports whether some requests go on with the answers to others.
func (f *loadFlags) turns() bool { return f.spec.Takes("max-delay") || f.spec.SharedPrefix.Turns > 1 }

// scan goes through a load from a file: how many requests it has, and how long the longest is,
// where prompts that are texts are counted by the cluster's own tokenizer. It may take a while.
func (f *loadFlags) scan(p *engine.Profile, bad *config.Faults) (longest int) {
	l := &f.spec
	if l.File == "" || len(*bad) > 0 {
		return 0
	}
	scanned, err := simulation.InTokens(*l, p)
	bad.Check("--profile", err)
	if scanned.Validate() != nil {
		return 0 // whoever validates the configuration says why
	}
	flag := "--dataset-path"
	if f.trace != "" {
		flag = "--trace"
	}
	if trace.IsPipe(l.File) {
		bad.Check(flag, trace.ErrPipe)
		return 0
	}
	requests, longest, err := scanned.Scan()
	bad.Check(flag, err)
	if l.Kind == load.Traced {
		l.Requests = requests
	}
	return longest
}
