package cli

import (
	"errors"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
)

// toolFlags are flags of vllm bench serve and sglang.bench_serving that mean nothing here, or
// something that kvferry bench says otherwise. Help does not show them.
type toolFlags struct {
	served    string // --served-model-name
	mode      string // --tokenizer-mode
	workload  string // --mooncake-workload
	selfTimed bool   // --self-timed, and SGLang's name for it
}

// register adds them; help lists none.
func (f *toolFlags) register(to *pflag.FlagSet) {
	fs := pflag.NewFlagSet("of the tools", pflag.ContinueOnError)
	fs.StringVar(&f.served, "served-model-name", "", "the model to ask for, where --model is another")
	fs.StringVar(&f.mode, "tokenizer-mode", "auto", "auto or hf")
	fs.StringVar(&f.workload, "mooncake-workload", "", "of the traces that SGLang downloads")
	fs.BoolVar(&f.selfTimed, "self-timed", false, "send a trace's requests at its own times")
	alias(fs, "use-trace-timestamps", "self-timed")
	fs.Bool("skip-tokenizer-init", false, "nothing: there is no tokenizer without --tokenizer")
	fs.Bool("no-stream", false, "nothing: a file is read here, not streamed from a hub")
	fs.Bool("rust-client", false, "nothing: there is one client here")
	fs.Int("rust-worker-threads", 0, "nothing: there is one client here")
	fs.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
	to.AddFlagSet(fs)
}

// settle applies the flags, and refuses values that have no meaning here.
func (f *toolFlags) settle(s *benchFlags, changed func(string) bool, bad *config.Faults) {
	if f.served != "" {
		s.server.client.Model = f.served
	}
	bad.Refuse(f.mode != "auto" && f.mode != "hf", "--tokenizer-mode", f.mode, "use auto or hf: a tokenizer is a tokenizer.json here")
	if f.workload != "" && s.load.spec.File == "" {
		bad.Add("--mooncake-workload", f.workload, "nothing is downloaded here: name the trace's file with --dataset-path")
	}
	switch l := &s.load.spec; {
	case !f.selfTimed:
	case l.Untimed:
		bad.Check("--self-timed", errors.New("--untimed says the contrary: leave one out"))
	case !l.Takes("untimed"):
		bad.Check("--self-timed", errors.New("the load has no times of its own: name a trace, or use --request-rate"))
	}
}
