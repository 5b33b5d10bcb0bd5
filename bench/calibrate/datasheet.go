package calibrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/engine/datasheet"
	"kvferry/internal/config"
	"kvferry/internal/model"
)

// What kvferry profile says of itself.
var ProfileLong = `Estimate what a GPU costs with a model that nobody has measured there: --model is
the model's config.json, its folder, or its name if the Hugging Face cache has it;
--gpu one of
  ` + strings.Join(datasheet.Names(), ", ") + `
or a JSON file with the fields of engine/datasheet/data.json. Each parameter is
printed with where it comes from. --out writes the profile, which --profile of all
other commands takes. Nothing in it is measured: expect errors of tens of percent. If
you know what one request alone takes, --known-itl and --known-ttft set by it what no
datasheet says: what the engine's kernels take besides reading and arithmetic.

--from measures instead: a server that runs, of any engine that streams tokens, is
asked a short series of loads, and the costs are fitted with which the simulator
gives the same times. That takes some minutes, in which nobody else should ask it.
--model and --engine say what it is, --gpu only what to call it. --check then asks it
a load that nothing was fitted to, and sets its figures beside the prediction.

Exit status: 0 done; 1 the file could not be written; 2 bad flags.`

const (
	Short   = "A profile of any model on any GPU, from its datasheet or a server that runs"
	Example = `  kvferry profile --model config.json --gpu L40S
  kvferry profile --model Qwen/Qwen3-32B-FP8 --gpu H100-SXM --tensor-parallel-size 2
  kvferry profile --model config.json --gpu H200 --tensor-parallel-size 8 --out h200.json
  kvferry profile --model config.json --gpu B200 --tensor-parallel-size 8 --known-itl 21.4ms --known-itl-context 768
  kvferry profile --from http://127.0.0.1:8000 --model config.json --check --out mine.json
  kvferry profile --from http://127.0.0.1:8000 --check --profile mine.json
  kvferry sim --profile h200.json --request-rate 4`
)

// ProfileConfig configures RunProfile: a profile estimated from a datasheet, or measured on a server.
type ProfileConfig struct {
	Model        string // name of a config.json
	GPU          string // of the table, or name of a JSON file
	Quantization string // instead of what config.json says
	Server       datasheet.Server
	Out          string // file for the profile; "" for none
	Stdout       io.Writer
	Progress     io.Writer // of Measuring: bar or lines
	Terminal     bool      // Progress is a terminal
	Measuring
}

// ProfileFlagNames are the flags that set the fields of a ProfileConfig and of its Server.
var ProfileFlagNames = map[string]string{
	"Model": "--model", "GPU": "--gpu", "Quantization": "--quantization", "Out": "--out", "Engine": "--engine",
	"TensorParallel": "--tensor-parallel-size", "MemoryUtilization": "--gpu-memory-utilization", "KVElemBytes": "--kv-bytes",
	"KnownITL": "--known-itl", "KnownContext": "--known-itl-context", "KnownTTFT": "--known-ttft", "KnownPrompt": "--known-ttft-tokens",
	"MaxModelLen": "--max-model-len", "MaxNumSeqs": "--max-num-seqs", "BlockTokens": "--block-size",
	"URL": "--from", "From": "--from", "Profile": "--profile", "Rounds": "--rounds", "MaxBatchedTokens": "--max-num-batched-tokens", "Blocks": "--kv-blocks",
	"Requests": "--num-prompts", "Rate": "--request-rate", "InputLen": "--random-input-len", "OutputLen": "--random-output-len",
}

// AddFlags adds a flag for each field.
func (c *ProfileConfig) AddFlags(fs *pflag.FlagSet) {
	s := &c.Server
	fs.StringVar(&c.Model, "model", "config.json", "the model's config.json, its folder, or a model that is in the Hugging Face cache, such as Qwen/Qwen3-8B")
	fs.StringVar(&c.GPU, "gpu", "", "a GPU of the table, or a JSON file")
	fs.IntVar(&s.TensorParallel, "tensor-parallel-size", 1, "GPUs that compute each layer together")
	fs.StringVar(&c.Quantization, "quantization", "", strings.Join(model.QuantizationNames(), ", ")+" (default: what config.json says)")
	fs.Float64Var(&s.MemoryUtilization, "gpu-memory-utilization", 0.9, "share of the GPU's memory, as vLLM has it")
	fs.IntVar(&s.KVElemBytes, "kv-bytes", 2, "bytes an element of KV; 1 is fp8")
	fs.IntVar(&s.MaxModelLen, "max-model-len", 0, "tokens of prompt and output (default: the model's, at most 32768)")
	fs.IntVar(&s.MaxNumSeqs, "max-num-seqs", 0, "sequences in a batch (default: the engine's, of vllm-v1 on this GPU)")
	fs.IntVar(&s.MaxBatchedTokens, "max-num-batched-tokens", 0, "tokens of a step (default: likewise)")
	fs.IntVar(&s.BlockTokens, "block-size", 16, "tokens a block")
	fs.StringVar(&s.Engine, "engine", engine.VLLMV1, "whose scheduler it has, as --scheduler of other commands names it: "+strings.Join(engine.Schedulers(), ", "))
	fs.DurationVar(&s.Known.ITL, "known-itl", 0, "time from token to token of one request alone, measured or published: the profile gives it")
	fs.IntVar(&s.Known.Context, "known-itl-context", 1024, "tokens of context that it was measured with")
	fs.DurationVar(&s.Known.TTFT, "known-ttft", 0, "TTFT of one prompt alone, measured or published: the profile gives it")
	fs.IntVar(&s.Known.Prompt, "known-ttft-tokens", 1024, "tokens of that prompt")
	fs.StringVar(&s.Name, "served-model-name", "", "what clients ask for (default: the folder of config.json, or the name in the cache)")
	fs.StringVar(&c.Out, "out", "", "file for the profile, which must not be there yet (default: none, only print)")
	c.addFlags(fs)
}

// model reads the model's config.json.
func (c *ProfileConfig) model() (model.Config, error) {
	file, err := model.Find(c.Model)
	if err != nil {
		return model.Config{}, err
	}
	model, err := model.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: name the model's config.json, its folder, or a model that is in the Hugging Face cache", err)
	}
	return model, err
}

// name is what clients ask for: the folder of the model's config.json, or what the Hugging Face hub calls it.
func (c *ProfileConfig) name() (string, error) {
	info, err := os.Stat(c.Model)
	if err != nil { // it has been read, and there is no such file: the cache has it
		return c.Model, nil
	}
	path, err := filepath.Abs(c.Model)
	if err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	return filepath.Base(path), err
}

// RunProfile prints and writes the profile.
func RunProfile(ctx context.Context, c ProfileConfig) error {
	if c.Out != "" {
		if _, err := os.Lstat(c.Out); err == nil {
			return &config.Fault{Field: "Out", Err: fmt.Errorf("%q: it is there already: name another file, or remove it", c.Out)}
		}
	}
	if c.From != "" {
		return measure(ctx, &c)
	}
	var bad config.Faults
	shape, err := c.model()
	if err == nil {
		c.Server.Model, err = shape.Shape()
	}
	bad.Check("Model", err)
	c.Server.GPU, err = datasheet.ReadGPU(c.GPU)
	bad.Check("GPU", err)
	if c.Quantization != "" {
		if c.Server.Model.Quantization, err = model.ParseQuantization(c.Quantization); err != nil {
			bad.Add("Quantization", c.Quantization, "%w", err)
		}
	}
	if err := bad.Err("bench/calibrate.ProfileConfig"); err != nil {
		return err
	}
	if c.Server.Name == "" {
		if c.Server.Name, err = c.name(); err != nil {
			return err
		}
	}
	e, err := c.Server.Estimate()
	if err != nil {
		return err
	}
	fmt.Fprint(c.Stdout, e)
	return Save(&e.Profile, c.Out, c.Stdout)
}
