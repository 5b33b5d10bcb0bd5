package validation

import (
	"context"
	"embed"
	"fmt"
	"math"
	"strings"

	"kvferry/bench/calibrate"
	"kvferry/bench/stats"
	"kvferry/engine"
)

// profiles has those of sets that are held back, a file each.
//
//go:embed profiles
var profiles embed.FS

// loadProfile is a profile that ships, or one of profiles.
func loadProfile(name string) (*engine.Profile, error) {
	text, err := profiles.ReadFile("profiles/" + name + ".json")
	if err != nil {
		return engine.LoadProfile(name)
	}
	p, err := engine.ParseProfile(text)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}

// A Sample says what a profile knows of the figures that it stands beside.
type Sample string

// What it knows.
const (
	InSample  Sample = "in sample" // it was fitted to them
	OtherRun  Sample = "held back" // it was fitted to another run of the same server
	Datasheet Sample = "datasheet" // it was fitted to nothing
	Anchored  Sample = "anchored"  // it was made of a datasheet and one figure that is known of another run
)

// A Limit is how bad a set may be: errors as shares, and how many figures are within 10 % at least.
type Limit struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Within int     `json:"within_10_percent,omitzero"`
}

func (l Limit) String() string {
	text := fmt.Sprintf("%g %%, %g %%", stats.Round(100*l.Median, 1), stats.Round(100*l.P90, 1))
	if l.Within > 0 {
		text += fmt.Sprintf(", %d", l.Within)
	}
	return text
}

// A check is a set to be computed.
type check struct {
	source  string // what was published
	table   string // and what of it
	profile string
	sample  Sample
	limit   Limit
	// figures computes them with the profile.
	figures func(context.Context, *engine.Profile) ([]calibrate.Figure, error)
}

// A Set is figures of a published table beside the same computed with one profile. Errors are
// shares, whatever their direction.
type Set struct {
	Source  string  `json:"source"`
	Table   string  `json:"table"`
	Profile string  `json:"profile"`
	Sample  Sample  `json:"sample"`
	Figures int     `json:"figures"`
	Median  float64 `json:"median"`
	P90     float64 `json:"p90"`
	Worst   float64 `json:"worst"` // with its sign
	Which   string  `json:"worst_figure"`
	Within  int     `json:"within_10_percent"`
	Limit   Limit   `json:"limit"`
}

// A Record is one figure of a set: a line of results.jsonl.
type Record struct {
	Source    string  `json:"source"`
	Table     string  `json:"table"`
	Profile   string  `json:"profile"`
	Sample    Sample  `json:"sample"`
	Figure    string  `json:"figure"`
	Computed  float64 `json:"computed"`
	Published float64 `json:"published"`
	RelErr    float64 `json:"rel_err"` // (computed - published) / published
}

// compute computes a set, and its records.
func (c *check) compute(ctx context.Context) (*Set, []Record, error) {
	prof, err := loadProfile(c.profile)
	if err != nil {
		return nil, nil, err
	}
	figures, err := c.figures(ctx, prof)
	if err != nil {
		return nil, nil, fmt.Errorf("%s, %s: %w", c.table, c.profile, err)
	}
	e := calibrate.ErrorsOf(figures)
	s := &Set{
		Source: c.source, Table: c.table, Profile: c.profile, Sample: c.sample, Figures: e.Count, Median: stats.Round(e.Median, 4), P90: stats.Round(e.P90, 4), Limit: c.limit,
	}
	var records []Record
	for _, f := range figures {
		r := Record{
			Source: c.source, Table: c.table, Profile: c.profile, Sample: c.sample,
			Figure: f.Name, Computed: stats.Round(f.Got, 4), Published: f.Want, RelErr: stats.Round(f.Off(), 4),
		}
		records = append(records, r)
		if math.Abs(r.RelErr) > math.Abs(s.Worst) {
			s.Worst, s.Which = r.RelErr, r.Figure
		}
		if math.Abs(r.RelErr) <= closeBy {
			s.Within++
		}
	}
	return s, records, nil
}

// closeBy is the error up to which a figure counts as met.
const closeBy = 0.10

// fault says in what a set is worse than its limit; "" if it is not.
func (s *Set) fault() string {
	var worse []string
	if s.Median > s.Limit.Median {
		worse = append(worse, fmt.Sprintf("the median error is %.1f %%, and may be %.1f", 100*s.Median, 100*s.Limit.Median))
	}
	if s.P90 > s.Limit.P90 {
		worse = append(worse, fmt.Sprintf("the 90th percentile is %.1f %%, and may be %.1f", 100*s.P90, 100*s.Limit.P90))
	}
	if s.Within < s.Limit.Within {
		worse = append(worse, fmt.Sprintf("%d figures are within 10 %%, and must be %d", s.Within, s.Limit.Within))
	}
	if len(worse) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, %s: %s", s.Table, s.Profile, strings.Join(worse, "; "))
}
