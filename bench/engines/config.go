package engines

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
	"kvferry/lab"
	"kvferry/lab/nics"
	"kvferry/lab/vllm"
)

// Config describes a run. The zero value of a field means its default.
type Config struct {
	Settings  []string      // by name; mono is always run; default all
	Prompts   int           // a setting, spread over Lengths; default 24
	Rounds    int           // over which the prompts are spread, each with new instances; default 2
	Model     string        // Tiny, SmolLM2 or a model's folder; default Tiny
	Cache     string        // of the environment, as kvferry lab vllm has it
	KVFerry   string        // a checkout, or a folder that the wheel is installed in; default: where this process is
	Link      int64         // bits a second of links of the NIC lab, which P and D are joined by; default: none, all is on this machine
	Checksums bool          // kvferry's connector has one for each block
	Faults    []string      // names, or AllFaults: what becomes of prompts that these befall, and no times
	Seed      uint64        // of faults; default 1
	Start     time.Duration // that an instance may take to be ready; default 5 m
	Timeout   time.Duration // that an instance may take for an answer; default 1 m, with Faults 30 s
	Out       string        // folder of results, required
	Stdout    io.Writer     // the tables
	Progress  io.Writer     // a line for each setting of each round
	Terminal  bool          // Progress is one

	settle time.Duration // how long P may take to have its blocks back; default 3 leases
}

// Models of the environment.
const (
	Tiny    = "tiny"
	SmolLM2 = "smollm2"
)

// Lengths are the prompts', in tokens: whole blocks of 128, vLLM's on a CPU.
var Lengths = []int{128, 512, 2048}

// output is how many tokens an answer has.
const output = 16

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	settings, err := choose(c.Settings, c.Link > 0)
	bad.Check("Settings", err)
	if c.Link != 0 || len(c.Faults) > 0 {
		bad.Refuse(c.Link != 0 && c.Link < 1e6 || c.Link > 1e11, "Link", lab.FormatRate(c.Link), "use 1mbit to 100gbit")
		bad.Check("Link", nics.Check())
	}
	if c.KVFerry != "" {
		_, err := findKVFerry(c.KVFerry)
		bad.Check("KVFerry", err)
	}
	faults, err := chooseFaults(c.Faults)
	bad.Check("Faults", err)
	if len(faults) > 0 && len(settings) > 0 && count(settings, faults) == 0 {
		bad.Add("Faults", strings.Join(c.Faults, ","), "name faults that come to the settings, which are those over tcp: of NIXL's to NIXL's, flip-unchecked to kvferry's connector")
	}
	if c.Rounds != 0 {
		config.Between(&bad, "Rounds", c.Rounds, 1, 99)
	}
	if n := len(Lengths) * c.withDefaults().Rounds; c.Prompts != 0 && c.Prompts < n {
		bad.Add("Prompts", c.Prompts, "use %d or more: each round has one of each length", n)
	}
	if !slices.Contains([]string{"", Tiny, SmolLM2}, c.Model) {
		if _, err := os.Stat(filepath.Join(c.Model, "config.json")); err != nil {
			bad.Add("Model", c.Model, "it is no folder of a model, with config.json in it: use %s, %s or such a folder", Tiny, SmolLM2)
		}
	}
	bad.Check("Out", document.CheckNew(c.Out))
	return bad.Err("bench/engines.Config")
}

// withDefaults returns the configuration with all fields set.
func (c Config) withDefaults() Config {
	config.Default(&c.Prompts, 24)
	config.Default(&c.Rounds, 2)
	config.Default(&c.Model, Tiny)
	config.Default(&c.Start, 5*time.Minute)
	if len(c.Faults) > 0 {
		config.Default(&c.Timeout, faultLimit)
		config.Default(&c.Link, faultLink)
		c.Checksums = true
	}
	config.Default(&c.Seed, 1)
	config.Default(&c.settle, 3*faultLease)
	config.Default(&c.Timeout, time.Minute)
	for _, w := range []*io.Writer{&c.Stdout, &c.Progress} {
		config.Default(w, io.Discard)
	}
	return c
}

// leases are how long a transfer may take, and how long P keeps blocks that nobody has taken.
func (c *Config) leases() (timeout, lease time.Duration) {
	if len(c.Faults) > 0 {
		return faultTimeout, faultLease
	}
	return 30 * time.Second, 30 * time.Second
}

// model is the folder of the model, and the type of its weights. In fp32 sums hardly depend on
// what is computed together; vLLM would make bf16 of the tiny model.
func (c *Config) model(f vllm.Folder) (folder, dtype string) {
	switch c.Model {
	case Tiny:
		return f.Tiny(), "float32"
	case SmolLM2:
		return f.SmolLM2(), "auto"
	}
	return c.Model, "auto"
}

// warmup is the number of a prompt of each length that is not counted.
const warmup = -1

// prompt are the tokens of a prompt, from those of a vocabulary that are not special: the same
// number and length are always the same prompt.
func prompt(number, length int, ready event) []int {
	draw := rand.New(rand.NewPCG(uint64(number+1), uint64(length)))
	tokens := make([]int, 0, length)
	for len(tokens) < length {
		if t := draw.IntN(ready.Vocabulary); !slices.Contains(ready.Special, t) {
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// length is that of a prompt, and of which round it is.
func (c *Config) length(number int) (length, round int) {
	return Lengths[number%len(Lengths)], 1 + number/len(Lengths)%c.Rounds
}
