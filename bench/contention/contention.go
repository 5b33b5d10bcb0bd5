package contention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// Config is which transfers meet, and where.
type Config struct {
	Profile          string    // whose KV it is: a shipped one's name, or a JSON file
	Transfers        []int     // at once
	Handoff          []string  // pull, of transfers that the decode node begins, and push, of those that the others do; pull alone if empty
	Tokens           int       // of each prompt
	Link             string    // rate of a NIC, "1GB/s"
	Oversubscription []float64 // of the switches, in virtual time
	Clock            string    // virtual, real or both
	Rail             string    // that the bytes go over, in real time
	Out              string    // folder for Result as contention.json, none if empty

	profile *engine.Profile // as settle has read them
	rate    float64         // bytes/s
}

// What kvferry lab contention says of itself.
const (
	Short = "Transfers into one decode node at once: both clocks, and other simulators"

	Long = `Have n requests at once hand their KV to one decode node, and say what that adds to
the first token that it decodes: in virtual time, in real time (the nodes' transfer halves
move real bytes over modelled NICs, and all are compared), and by the rules of other simulators.

Exit status: 0 done; 1 a transfer failed, or the file could not be written; 2 bad flags;
130 interrupted (what was done is kept).`
)

// Clocks.
const (
	Virtual = "virtual"
	real    = "real"
	both    = "both"
)

// AddFlags adds a flag for each field. The defaults are eight transfers of 470 MB
// into one node at 1 GB/s, and fewer.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.IntSliceVar(&c.Transfers, "transfers", []int{1, 2, 4, 8}, "at once, each from a prefill node of its own into the decode node")
	fs.StringSliceVar(&c.Handoff, "handoff", []string{handoff.Pull.Name, handoff.Push.Name}, "pull: the decode node reads, push: each prefill node writes")
	fs.IntVar(&c.Tokens, "tokens", 8192, "of each prompt; 8192 are 470 MB of KV with the shipped profile's model")
	fs.Float64SliceVar(&c.Oversubscription, "oversubscription", []float64{1, 2}, "of the switches between prefill and decode nodes, in virtual time")
	fs.StringVar(&c.Clock, "clock", both, "virtual, real (nodes' transfer halves move the bytes, paced to the modelled NICs) or both")
	fs.StringVar(&c.Rail, "rail", rails.CMA, "what the bytes go over in real time: a rail as the daemons have it")
	fs.StringVar(&c.Link, "link", "1GB/s", "rate of every node's NIC")
	fs.StringVar(&c.Profile, "profile", engine.DefaultProfile, "whose KV it is: a shipped profile or a JSON file")
	fs.StringVar(&c.Out, "out", "", "folder for contention.json and the report (default none)")
}

// FlagNames are the flags that set the fields of a Config.
var FlagNames = map[string]string{
	"Profile": "--profile", "Transfers": "--transfers", "Handoff": "--handoff", "Tokens": "--tokens", "Link": "--link", "Oversubscription": "--oversubscription", "Clock": "--clock", "Rail": "--rail", "Out": "--out",
}

// most is more transfers than any node's NIC was ever shared by here.
const most = 1024

// settle reads the profile and the rate, and lists every fault by its field, as a [config.Invalid].
func (c *Config) settle() (err error) {
	var bad config.Faults
	c.profile, err = engine.LoadProfile(c.Profile)
	bad.Check("Profile", err)
	c.rate, err = pacing.ParseRate(c.Link)
	bad.Check("Link", err)
	if err == nil && !(c.rate >= 1) {
		bad.Add("Link", c.Link, "use 1 B/s or more, like 1GB/s")
	}
	if len(c.Transfers) == 0 {
		bad.Add("Transfers", nil, "name how many there are at once, such as 1,8")
	}
	for _, n := range c.Transfers {
		config.Between(&bad, "Transfers", n, 1, most)
	}
	if len(c.Handoff) == 0 {
		c.Handoff = []string{handoff.Pull.Name}
	}
	for _, h := range c.Handoff {
		bad.Refuse(h != handoff.Pull.Name && h != handoff.Push.Name, "Handoff", h, "use pull, push or both")
	}
	config.Between(&bad, "Tokens", c.Tokens, 1, 1<<20)
	bad.Refuse(len(c.Oversubscription) == 0, "Oversubscription", nil, "use 1 for switches that hold nothing back")
	for _, r := range c.Oversubscription {
		bad.Refuse(!(r >= 1 && r <= 1000), "Oversubscription", r, "use 1 to 1000")
	}
	bad.Refuse(!slices.Contains([]string{Virtual, real, both}, c.Clock), "Clock", c.Clock, "use virtual, real or both")
	if c.Clock != Virtual {
		rails.Check(&bad, []string{c.Rail})
	}
	if c.Out != "" {
		bad.Check("Out", document.CheckNew(c.Out))
	}
	return bad.Err("contention.Config")
}

// Added is what moving the KV adds to the time of the requests' first decoded token, in ms. It is
// their first one under pull, and their second under push.
type Added struct {
	First float64 `json:"first_ms"`
	Mean  float64 `json:"mean_ms"`
	Last  float64 `json:"last_ms"`
}

func addedOf(all []time.Duration) *Added {
	slices.Sort(all)
	sum := time.Duration(0)
	for _, d := range all {
		sum += d
	}
	ms := func(d time.Duration) float64 { return stats.Round(float64(d)/1e6, 3) }
	return &Added{First: ms(all[0]), Mean: ms(sum / time.Duration(len(all))), Last: ms(all[len(all)-1])}
}

// A Row is one meeting of transfers.
type Row struct {
	Handoff          string             `json:"handoff"`
	Transfers        int                `json:"transfers"`
	Oversubscription float64            `json:"oversubscription"`
	Virtual          *Added             `json:"virtual,omitempty"`
	Real             *Added             `json:"real,omitempty"`
	Compared         int64              `json:"bytes_compared,omitempty"` // in real time; all were right
	Others           map[string]float64 `json:"others_ms"`                // by the rule of each simulator
	// Disturbance is what else the machine did in real time; nil in virtual time.
	Disturbance *observe.Disturbance `json:"disturbance,omitempty"`
}

// Result is contention.json.
type Result struct {
	Profile  string  `json:"profile"`
	Tokens   int     `json:"tokens"`
	Bytes    int64   `json:"bytes"` // of a transfer
	Rate     float64 `json:"bytes_per_second"`
	Rail     string  `json:"rail,omitempty"`
	Measured string  `json:"others_measured"`
	Rows     []*Row  `json:"rows"`
}

// Run has them meet, prints a table and writes the file. When ctx is done it prints and writes the
// rows that there are, and returns ctx's error.
func Run(ctx context.Context, cfg Config, to io.Writer) error {
	r, err := cfg.Meet(ctx)
	if r == nil {
		return err
	}
	return errors.Join(err, r.document().Keep(to, cfg.Out))
}

// Meet measures and computes every row. With an error it returns those before, nil for none.
func (c *Config) Meet(ctx context.Context) (*Result, error) {
	if err := c.settle(); err != nil {
		return nil, err
	}
	cfg := *c
	r := &Result{
		Profile: cfg.profile.Name, Tokens: cfg.Tokens, Bytes: int64(cfg.Tokens * cfg.profile.KVGeometry.TokenBytes()), Rate: cfg.rate, Measured: others.Measured,
	}
	var nodes *nodes
	if cfg.Clock != Virtual {
		var err error
		if nodes, err = open(ctx, cfg, slices.Max(cfg.Transfers)); err != nil {
			return nil, err
		}
		defer nodes.close()
		r.Rail = cfg.Rail
	}
	for _, h := range cfg.Handoff {
		without := map[int][]time.Duration{}
		for _, ratio := range cfg.Oversubscription {
			for _, n := range cfg.Transfers {
				row := &Row{Handoff: h, Transfers: n, Oversubscription: ratio, Others: others.rules(n, ratio, float64(r.Bytes)/cfg.rate*1e3)}
				var err error
				if cfg.Clock != real {
					row.Virtual, err = simulated(ctx, cfg, h, n, ratio, without)
				}
				if err == nil && nodes != nil && ratio == 1 {
					err = row.measure(ctx, nodes)
				}
				if err != nil {
					if len(r.Rows) == 0 {
						r = nil
					}
					return r, fmt.Errorf("%d transfers, %s: %w", n, h, err)
				}
				r.Rows = append(r.Rows, row)
			}
		}
	}
	return r, nil
}

// measure has the row's transfers meet in real time, and watches the machine.
func (row *Row) measure(ctx context.Context, on *nodes) error {
	watch, err := observe.StartWatch(on.clk, []int{}) // all of it is this process
	if err != nil {
		return err
	}
	row.Real, row.Compared, err = on.move(ctx, row.Handoff == handoff.Push.Name, row.Transfers)
	var failed error
	row.Disturbance, failed = watch.End()
	return errors.Join(err, failed)
}

// Table has a line a row.
func (r *Result) Table() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("what moving the KV adds to the first decoded token (ms): %d tokens, %.1f MB each, into one decode node at %.4g GB/s", r.Tokens, float64(r.Bytes)/1e6, r.Rate/1e9),
		Head:  []string{"hand-off", "transfers", "switches", "virtual mean", "last", "real mean", "last", "difference"},
	}
	for _, o := range others.Simulators {
		t.Head = append(t.Head, o.Short)
	}
	for _, row := range r.Rows {
		line := []string{row.Handoff, fmt.Sprint(row.Transfers), fmt.Sprintf("%g:1", row.Oversubscription)}
		for _, a := range []*Added{row.Virtual, row.Real} {
			line = append(line, document.Known(a, func(a Added) string { return document.Fixed(a.Mean, 1) }), document.Known(a, func(a Added) string { return document.Fixed(a.Last, 1) }))
		}
		difference := ""
		if row.Virtual != nil && row.Real != nil {
			difference = fmt.Sprintf("%+.1f %%", 100*(row.Real.Mean/row.Virtual.Mean-1)) + row.Disturbance.Mark()
		}
		line = append(line, difference)
		for _, o := range others.Simulators {
			cell := ""
			if ms, ok := row.Others[o.Short]; ok {
				cell = document.Fixed(ms, 1)
			}
			line = append(line, cell)
		}
		t.Add(line...)
	}
	return t
}

// document returns the report of the result.
func (r *Result) document() *document.Document {
	d := &document.Document{Title: "kvferry lab contention", Data: r, DataName: "contention.json", Sections: []document.Section{{Tables: []document.Table{r.Table()}, Plots: r.Plots()}}}
	for _, row := range r.Rows {
		if row.Disturbance.Disturbed() {
			d.Notes.Addf(document.Doubt, "%s, %d transfers, in real time: the machine did other things too: %v", row.Handoff, row.Transfers, row.Disturbance)
		}
	}
	d.Notes.Add(document.Info, Others()...)
	return d
}
