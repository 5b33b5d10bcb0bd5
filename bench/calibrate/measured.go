package calibrate

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load"
)

// Measuring is what is asked of a server that runs.
type Measuring struct {
	From    string // its URL; "": a profile is estimated, from a datasheet
	Check   bool
	Profile string    // that is checked, in place of one that is fitted
	Rounds  int       // of the series
	Held    load.Spec // the load that is held back
	Blocks  int       // of the KV pool; 0: as the server says
}

func (m *Measuring) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&m.From, "from", "", "URL of a server to measure instead")
	fs.IntVar(&m.Rounds, "rounds", 5, "of --from: how often each point of the series is measured")
	fs.IntVar(&m.Blocks, "kv-blocks", 0, "of --from: blocks of the server's KV pool (default: as it says)")
	fs.BoolVar(&m.Check, "check", false, "of --from: set a held-back load's figures beside the prediction")
	fs.StringVar(&m.Profile, "profile", "", "of --check: check this one, and fit none")
	fs.IntVar(&m.Held.Requests, "num-prompts", 100, "of --check: requests")
	fs.Float64Var(&m.Held.Rate, "request-rate", 0, "of --check: requests a second (default: half of what the profile can do)")
	fs.IntVar(&m.Held.InputLen, "random-input-len", 128, "of --check: mean tokens of a prompt")
	fs.IntVar(&m.Held.OutputLen, "random-output-len", 24, "of --check: mean tokens of an answer")
	fs.Uint64Var(&m.Held.Seed, "seed", 1, "of --check: seed of lengths and arrivals")
}

// ProfileNeeds maps each flag that has no effect alone to the flag that it needs, for cli.Needs.
var ProfileNeeds = map[string]string{
	"known-itl-context": "known-itl", "known-ttft-tokens": "known-ttft",
	"rounds": "from", "kv-blocks": "from", "check": "from", "profile": "check",
	"num-prompts": "check", "request-rate": "check", "random-input-len": "check", "random-output-len": "check", "seed": "check",
}

// FittingFlags lists the flags that configure a fit. They have no effect on a profile that --profile checks.
var FittingFlags = []string{"rounds", "kv-blocks", "out", "model", "gpu", "engine", "quantization", "kv-bytes", "max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size"}

// Waits of the series: for a point, before each, and for the server.
const (
	patience = 4 * time.Second
	pause    = 300 * time.Millisecond
	ready    = time.Minute
)

// minSeriesTokens is about the number of tokens of a request in the series in which one sequence decodes.
const minSeriesTokens = 64

// measure fits a profile to a server that runs, or checks one.
func measure(ctx context.Context, c *ProfileConfig) error {
	m := &c.Measuring
	var bad config.Faults
	config.Between(&bad, "Rounds", m.Rounds, 1, 1000)
	if c.Server.TensorParallel != 1 {
		bad.Add("TensorParallel", c.Server.TensorParallel, "what is measured are all GPUs of the server together: leave it out")
	}
	const all = "what is known is for a profile of a datasheet, and here all is measured: leave it out"
	bad.Refuse(c.Server.Known.ITL != 0, "KnownITL", c.Server.Known.ITL, all)
	bad.Refuse(c.Server.Known.TTFT != 0, "KnownTTFT", c.Server.Known.TTFT, all)
	bad.Refuse(m.Profile != "" && !m.Check, "Profile", m.Profile, "a profile that is there can be checked: add --check")
	if rate := m.Held.Rate; m.Check && !(rate >= 0) {
		bad.Add("Rate", rate, "use more than 0 requests a second, or leave it out")
	}
	if c.Out != "" { // it is written in some minutes
		folder := filepath.Dir(c.Out)
		_, err := os.Stat(folder)
		bad.Check("Out", config.FileError(folder, err))
	}
	var err error
	m.From, err = config.BaseURL(m.From)
	bad.Check("From", err)
	public, user := config.Credentials(m.From)
	m.From = public
	asking := client.Config{URL: public, Model: c.Server.Name}
	if user != "" {
		asking.Header = http.Header{"Authorization": {user}}
	}
	base := c.base(&bad)
	if err := bad.Err("bench/calibrate.ProfileConfig"); err != nil {
		return err
	}
	asker := client.New(asking)
	defer asker.Close()
	limited, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("it did not answer within %v", ready))
	defer cancel()
	fmt.Fprintf(c.Progress, "waiting for %s to answer, %v at most\n", m.From, ready)
	name, err := asker.Ready(limited)
	if err != nil {
		return fmt.Errorf("%s: %w", m.From, err)
	}
	if m.Profile == "" {
		if err := c.limit(limited, asker, base, name); err != nil {
			return err
		}
	}
	return Run(ctx, Config{
		Target: serve.Server(serve.Asking{Config: asking}), Base: base, Fixed: m.Profile != "",
		Rounds: m.Rounds, Pause: pause, Patience: patience, Check: m.Check, Held: m.Held,
		Seed: uint64(time.Now().UnixNano()), Out: c.Out, Stdout: c.Stdout, Progress: c.Progress, Terminal: c.Terminal,
	})
}

// base is what the command line says of the server. Faults are in bad.
func (c *ProfileConfig) base(bad *config.Faults) *engine.Profile {
	if c.Profile != "" {
		p, err := engine.LoadProfile(c.Profile)
		bad.Check("Profile", err)
		return p
	}
	model, err := c.model()
	bad.Check("Model", err)
	if err != nil {
		return nil
	}
	s, err := model.Shape()
	bad.Check("Model", err)
	seqs, _ := c.Server.Batch()
	return &engine.Profile{
		GPU: c.GPU, Vocab: s.Vocab, MaxModelLen: c.Server.MaxModelLen, MaxNumSeqs: seqs, ChunkTokens: 512,
		KVGeometry: kvcache.Geometry{Layers: s.Layers, KVHeads: s.KVHeads, HeadDim: s.KVElem / 2, ElemBytes: c.Server.KVElemBytes, BlockTokens: c.Server.BlockTokens, HiddenSize: s.Hidden},
		Engine:     engine.Options{Scheduler: c.Server.Engine},
		Costs:      engine.Costs{Experts: engine.Experts{Count: s.Experts, PerToken: s.PerToken}},
	}
}

// limit fills in what the server says of itself.
func (c *ProfileConfig) limit(ctx context.Context, asker *client.Client, p *engine.Profile, name string) error {
	l, err := AskLimits(ctx, asker)
	if err != nil {
		return err
	}
	if c.Blocks != 0 {
		l.Blocks = c.Blocks
	}
	if l.BlockTokens != 0 {
		p.KVGeometry.BlockTokens = l.BlockTokens
	}
	config.Default(&p.MaxModelLen, l.MaxModelLen)
	var bad config.Faults
	switch {
	case p.MaxModelLen == 0:
		bad.Add("MaxModelLen", 0, "the server does not say: name the tokens that a prompt and its output may have")
	case p.MaxModelLen < minSeriesTokens:
		bad.Add("MaxModelLen", p.MaxModelLen, "a server is measured with requests of %d tokens at least", minSeriesTokens)
	}
	switch {
	case l.Blocks == 0:
		bad.Add("Blocks", 0, "the server does not say: its log has how many blocks of KV it has room for")
	case l.Blocks < (minSeriesTokens+p.KVGeometry.BlockTokens-1)/max(p.KVGeometry.BlockTokens, 1):
		bad.Add("Blocks", l.Blocks, "of %d tokens: a server is measured with requests of %d tokens at least", p.KVGeometry.BlockTokens, minSeriesTokens)
	}
	if err := bad.Err("bench/calibrate.ProfileConfig"); err != nil {
		return err
	}
	p.Model, p.Name = name, fmt.Sprintf("%s at %s, measured", name, c.From)
	p.KVBytes = int64(l.Blocks) * int64(p.KVGeometry.BlockBytes())
	if p.Scheduler() == engine.VLLMV0 {
		p.MaxBatchedTokens = p.MaxModelLen
	}
	p.SetBatch(0, c.Server.MaxBatchedTokens)
	return p.Validate()
}
