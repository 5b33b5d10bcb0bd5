package validation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/contention"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/internal/progress"
)

// What kvferry reproduce validate says of itself.
const (
	Short = "How far modelled figures are from published ones, profile by profile"

	Long = `Compute in virtual time what was published, with each profile that ships, and print how far the
figures are off: median, 90th percentile and worst. In sample are figures that the profile was
fitted to; held back are those of profiles that were fitted to another run of the same server,
or to nothing, being made of a model's config.json and a GPU's datasheet. Beside it transfers
meet at one node, by the rules of other simulators too. docs/validation.md is table.md of this;
report.html has plots of the errors, in sample and held back apart, and of the transfers.

Exit status: 0 done; 1 a set is worse than its limit, or results could not be written; 2 bad
flags; 130 interrupted (what was done is kept).`

	Example = `  kvferry reproduce validate
  kvferry reproduce validate --fit fits     # makes the fits again (5 minutes)`
)

// Config is where the results go. Zero values take the defaults.
type Config struct {
	Out     string   // folder for the results; it is created
	FitTo   string   // folder for the profiles of the fits that are made again; then nothing else is done
	Command []string // the command line, for the record

	Stdout   io.Writer // the tables, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
}

// AddFlags adds a flag for each field that a user sets, but for Out.
func (cfg *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&cfg.FitTo, "fit", "", "make the fits again, of the held-back runs and of Qwen2.5-0.5B, write their profiles into this folder, and stop")
}

// FlagNames are the flags that set the fields of a Config.
var FlagNames = map[string]string{"Out": "--out", "FitTo": "--fit"}

// Results are summary.json.
type Results struct {
	Sets       []*Set             `json:"sets"`
	Contention *contention.Result `json:"contention"` // nil if ctx was done before
	Command    []string           `json:"command"`
	Started    time.Time          `json:"started"`
	Machine    observe.Machine    `json:"machine"`

	records []Record // of all sets
}

// ErrWorse is what Run's error unwraps to when a set is worse than its limit.
var ErrWorse = errors.New("worse than its limit")

// Run computes everything, prints the tables and writes the files. When ctx is done it keeps and
// prints what there is, and returns ctx's error.
func Run(ctx context.Context, cfg Config) (*Results, error) {
	config.Default(&cfg.Stdout, io.Discard)
	config.Default(&cfg.Progress, io.Discard)
	if cfg.FitTo != "" {
		return nil, fitAll(ctx, cfg.FitTo, evaluations, cfg.Stdout)
	}
	if err := document.CheckNew(cfg.Out); err != nil {
		return nil, &config.Fault{Field: "Out", Err: err}
	}
	r := &Results{Command: cfg.Command, Started: time.Now(), Machine: observe.Describe()}
	err := r.compute(ctx, cfg)
	if len(r.Sets) == 0 {
		return nil, err
	}
	if err = errors.Join(err, r.document().Keep(cfg.Stdout, cfg.Out)); err != nil {
		return r, err
	}
	return r, r.worse()
}

// worse is an error for each set that is worse than its limit.
func (r *Results) worse() (err error) {
	for _, s := range r.Sets {
		if why := s.fault(); why != "" {
			err = errors.Join(err, fmt.Errorf("%w: %s", ErrWorse, why))
		}
	}
	return err
}

// compute computes the sets and the transfers that meet.
func (r *Results) compute(ctx context.Context, cfg Config) error {
	all := checks()
	b := progress.New(cfg.Progress, cfg.Terminal)
	b.Start(progress.State{What: "computing", Total: int64(len(all)), Unit: "sets"})
	defer b.Stop()
	for i := range all {
		s, of, err := all[i].compute(ctx)
		if err != nil {
			return err
		}
		r.Sets, r.records = append(r.Sets, s), append(r.records, of...)
		b.Add(1)
	}
	meet := contention.Config{
		Profile: engine.DefaultProfile, Transfers: []int{1, 2, 4, 8}, Tokens: 8192, Link: "1GB/s", Oversubscription: []float64{1, 2}, Clock: contention.Virtual,
	}
	var err error
	r.Contention, err = meet.Meet(ctx)
	return err
}
