package serve

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/load/trace"
	"kvferry/proxy/serverinfo"
	"kvferry/tokenizer"
)

// Config is what to run. Targets and Out are required.
type Config struct {
	// Targets are who is asked: one, or two whose results are set side by side.
	Targets []Target
	// Load is what they are asked. Without a vocabulary and a tokenizer prompts have the
	// target's ids, or are words if nobody knows these.
	Load load.Spec
	// Warmups are sent before the load, one after another, and not counted: copies of its first
	// request, of at most WarmupLen tokens of output each (0: as many as it wants).
	Warmups, WarmupLen int
	// Setup is what the command line said, for the reports. What targets know better is
	// filled in.
	Setup  report.Setup
	Steady SteadyConfig // how the part of the run is found in which the load was steady
	// Search runs the load at rates or concurrencies until the highest is found at which
	// Setup.Goodput is kept.
	Search *RateConfig

	Layout  string   // what is printed: LayoutVLLM, LayoutSGLang
	Results []Result // files in the tools' formats
	// MaxFailures bounds the requests that may fail before Run returns an error. Answers that were only shorter
	// than was asked for are none of them.
	MaxFailures int
	// RetriesDisturbed is how many times a run that the machine disturbed is measured again, with
	// another seed. The least disturbed run is reported. A search does without.
	RetriesDisturbed int
	Out              string // folder for our own; it is created

	OpenTimeout time.Duration // how long a target may take to answer first; default 60 s
	Clock       clock.Clock   // of the watch on the machine; default clock.Precise()

	Stdout   io.Writer // the report; default none
	Progress io.Writer // bar or lines; default none
	Terminal bool      // Progress is a terminal

	watch func(pids []int) (func() (*observe.Disturbance, error), error) // tests: see Runner
}

// Layouts of what is printed.
const (
	LayoutVLLM   = "vllm"
	LayoutSGLang = "sglang"
)

// A Result is a file in the format of one of the tools.
type Result struct {
	Layout   string // LayoutVLLM or LayoutSGLang
	Dir      string // this one if it is empty
	Name     string // of the file; the tool's own name for it if it is empty
	Append   bool   // a line more of a file that may be there
	Detailed bool   // with what each request had
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	bad.Refuse(len(c.Targets) == 0 || len(c.Targets) > 2, "Targets", len(c.Targets), "name one, or two to compare")
	bad.Check("Out", document.CheckNew(c.Out))
	// What only the target knows is filled in on a copy, so that the rest of the load is checked
	// before any target is opened: a cluster takes seconds to start.
	spec := c.Load
	config.Default(&spec.Vocab, serverinfo.SafeVocabulary) // until the target says
	if spec.Tokenizer == nil && spec.Texts() {
		spec.Tokenizer = new(tokenizer.Tokenizer) // likewise
	}
	bad.Check("Load", spec.Validate())
	if again := len(c.Targets) > 1 || c.Warmups > 0 || c.Search != nil; again && trace.IsPipe(spec.File) {
		bad.Check("Load", fileFault(trace.ErrPipe))
	}
	config.Between(&bad, "Warmups", c.Warmups, 0, 1<<20)
	config.Between(&bad, "MaxFailures", c.MaxFailures, 0, 100_000_000)
	config.Between(&bad, "RetriesDisturbed", c.RetriesDisturbed, 0, 100)
	config.Between(&bad, "WarmupLen", c.WarmupLen, 0, 1<<20)
	bad.Check("Steady", c.Steady.Validate())
	if c.Search != nil {
		bad.Check("Search", c.Search.Validate())
		if len(c.Setup.Goodput) == 0 {
			bad.Check("Goodput", fmt.Errorf("it says what is kept or missed: name bounds, such as ttft:2000 tpot:50"))
		}
		if c.Search.Quantity == Rate && (!spec.Takes("request-rate") || spec.Takes("speed") && !spec.Untimed) {
			bad.Check("Search", errOwnTimes)
		}
		if len(c.Targets) > 1 {
			bad.Check("Search", fmt.Errorf("it searches one target: leave the other clock out"))
		}
	}
	bad.Refuse(c.Layout != LayoutVLLM && c.Layout != LayoutSGLang, "Layout", c.Layout, "use %s or %s", LayoutVLLM, LayoutSGLang)
	return bad.Err("serve.Config")
}

// errOwnTimes is why a rate cannot be searched with a load that says when its requests come.
var errOwnTimes = errors.New("the load has times of its own, which no rate changes: send its requests at the rate with --untimed, or search the concurrency")

// Writes reports whether a tool's layout is printed or written.
func (c *Config) Writes(layout string) bool {
	return c.Layout == layout || slices.ContainsFunc(c.Results, func(r Result) bool { return r.Layout == layout })
}

// defaults fills in what its user left out. Without a Progress there is no terminal either: a
// bar would be drawn for nobody.
func (c *Config) defaults() {
	config.Default(&c.OpenTimeout, time.Minute)
	config.Default(&c.Layout, LayoutVLLM)
	config.Default(&c.Clock, clock.Precise())
	if c.Stdout == nil {
		c.Stdout = io.Discard
	}
	config.Default(&c.Progress, io.Discard)
}
