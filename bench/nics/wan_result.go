package nics

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/rail"
	lab "kvferry/lab/nics"
)

// ErrDisturbed: the machine was too busy to carry the links, and a figure says nothing.
var ErrDisturbed = errors.New("disturbed")

// kvferry is who measures, beside others.
const kvferry = "kvferry"

// A WANResult is all rounds of the cases.
type WANResult struct {
	Started   time.Time       `json:"started"`
	Seconds   float64         `json:"seconds"`
	Machine   observe.Machine `json:"machine"`
	Rounds    int             `json:"rounds"`
	Cases     []string        `json:"cases"`
	Points    []WANPoint      `json:"points"`
	Failovers []WANFailover   `json:"-"` // failover.json of each round has them
	Rows      []WANRow        `json:"rows"`
	Notes     []string        `json:"notes,omitempty"`
}

// A WANPoint is the rate of a case in one round.
type WANPoint struct {
	Case     string    `json:"case"`
	By       string    `json:"by"`
	Round    int       `json:"round"`
	Ideal    float64   `json:"ideal_bytes_per_s"`
	GBps     float64   `json:"gb_per_s"`
	Percent  float64   `json:"percent_of_ideal"`
	CPUPerGB float64   `json:"cpu_s_per_gb,omitempty"`
	Shares   []float64 `json:"shares,omitempty"` // of each rail, 0 to 1
	Notice   Notice    `json:"machine"`
}

// A WANFailover is the run of a case with a schedule.
type WANFailover struct {
	Case   string
	Round  int
	Notice Notice
	*rail.FailoverResult
}

func newWANPoint(c *wanCase, by string, p Point) WANPoint {
	return WANPoint{Case: c.name, By: by, Ideal: p.Ideal, GBps: p.GBps, Percent: 100 * p.GBps * 1e9 / p.Ideal, CPUPerGB: p.CPUPerGB, Shares: p.Shares}
}

// A Notice is what the machine did while a point was measured.
type Notice struct {
	IdlePct float64 `json:"idle_pct"` // of the CPUs; links, both ends and the kernel are in the rest
	Overrun int64   `json:"overrun"`  // packets that the links lost because the machine was busy
	Packets int64   `json:"packets"`  // of all that came
	observe.Disturbance
	Why string `json:"disturbed"` // empty if the links were carried
}

// leastIdle is how much of the CPUs must be left: where less is, it is they that are measured.
const leastIdle = 3.0

// mostOverrun is the share of packets that a link may lose by itself: a hundredth of the least loss
// of the cases. Ten pulled cables cost some packets, that were just handed over.
const mostOverrun = 1e-5

// notice judges what the machine did for a lab. That no CPU is idle says nothing of a program that spins.
func notice(l *lab.Lab, d *observe.Disturbance, spins bool) (n Notice, err error) {
	n.Disturbance, n.IdlePct = *d, 100
	if d.CPU != nil {
		n.IdlePct = max(0, 100-d.CPU.OwnPct-d.CPU.OthersPct-d.CPU.StealPct)
	}
	if n.Overrun, n.Packets, err = l.Overrun(); err != nil {
		return n, err
	}
	n.Why = n.why(spins)
	return n, nil
}

func (n *Notice) why(spins bool) string {
	var why []string
	if float64(n.Overrun) > mostOverrun*float64(n.Packets) {
		why = append(why, fmt.Sprintf("the links lost %d packets of %d more than they should", n.Overrun, n.Packets))
	}
	if n.IdlePct < leastIdle && !spins {
		why = append(why, fmt.Sprintf("only %.1f %% of the CPUs were idle (limit %g)", n.IdlePct, leastIdle))
	}
	if c := n.CPU; c != nil && c.StealPct > observe.MaxSteal {
		why = append(why, fmt.Sprintf("the hypervisor took %.1f %% of the CPUs (limit %g)", c.StealPct, observe.MaxSteal))
	}
	return strings.Join(why, ", ")
}

// String is "idle 45 %".
func (n Notice) String() string {
	text := fmt.Sprintf("%.0f %% of the CPUs idle, timers %.2f ms late", n.IdlePct, n.LateMeanMS)
	if n.Why != "" {
		text += ", disturbed: " + n.Why
	}
	return text
}

// A WANRow is a figure: medians over the rounds that were not disturbed.
type WANRow struct {
	Case  string             `json:"case"`
	What  string             `json:"what"`
	Unit  string             `json:"unit"`
	Value float64            `json:"value"`
	Low   float64            `json:"low"`
	High  float64            `json:"high"`
	Peers map[string]float64 `json:"peers,omitempty"`
	Least float64            `json:"least,omitempty"`
	Most  float64            `json:"most,omitempty"`
	Idle  float64            `json:"idle_pct"`
	Kept  int                `json:"rounds_kept"`
	Taken int                `json:"rounds_taken"`
	// Verdict is ok, missed or disturbed, or nothing if there is no limit.
	Verdict string `json:"verdict"`
}

// Units of rows.
const (
	ofIdeal = "% of ideal"
	inMS    = "ms"
)

// Verdicts of a row.
const (
	isOK         = "ok"
	isMissed     = "MISSED"
	isDisturbed  = "disturbed"
	isUnmeasured = "not measured" // the run ended before
)

// settle makes the rows of what there is.
func (r *WANResult) settle() {
	r.Rows = nil
	for i := range wanCases {
		c := &wanCases[i]
		switch {
		case !slices.Contains(r.Cases, c.name):
		case c.schedule == nil:
			r.Rows = append(r.Rows, r.rateRow(c))
		default:
			r.Rows = append(r.Rows, r.stepRows(c)...)
		}
	}
}

// undisturbed are the values that count: those of rounds of which the machine could carry the links.
// A round that was measured again counts once.
type undisturbed struct {
	values, idle []float64
	lost         []float64 // the share of the CPUs that was idle in the others, %
	rounds       map[int]bool
}

func (u *undisturbed) add(round int, n *Notice, value float64) {
	if u.rounds == nil {
		u.rounds = map[int]bool{}
	}
	u.rounds[round] = u.rounds[round] || n.Why == ""
	if n.Why != "" {
		u.lost = append(u.lost, n.IdlePct)
		return
	}
	u.values, u.idle = append(u.values, value), append(u.idle, n.IdlePct)
}

func (u *undisturbed) fill(row *WANRow) {
	row.Kept, row.Taken, row.Idle = len(u.values), len(u.rounds), median(u.lost)
	if len(u.values) > 0 {
		row.Idle = median(u.idle)
		row.Value, row.Low, row.High = median(u.values), slices.Min(u.values), slices.Max(u.values)
	}
}

// behindPeers is by how many points the rails may be below the better of the others.
const behindPeers = 2.0

func (r *WANResult) rateRow(c *wanCase) WANRow {
	row := WANRow{Case: c.name, What: c.what, Unit: ofIdeal, Least: c.least}
	by := map[string]*undisturbed{}
	for i := range r.Points {
		if p := &r.Points[i]; p.Case == c.name {
			if by[p.By] == nil {
				by[p.By] = &undisturbed{}
			}
			by[p.By].add(p.Round, &p.Notice, p.Percent)
		}
	}
	least := row.Least
	for name, u := range by {
		if name != kvferry && len(u.values) > 0 {
			if row.Peers == nil {
				row.Peers = map[string]float64{}
			}
			row.Peers[name] = median(u.values)
			least = max(least, row.Peers[name]-behindPeers)
		}
	}
	cmp.Or(by[kvferry], &undisturbed{}).fill(&row)
	row.judge(least > 0, row.Value >= least)
	return row
}

func (r *WANResult) stepRows(c *wanCase) (rows []WANRow) {
	all := make([]undisturbed, len(c.limits))
	for i := range r.Failovers {
		f := &r.Failovers[i]
		if f.Case != c.name {
			continue
		}
		steps := newSteps(c.schedule, []*rail.FailoverResult{f.FailoverResult})
		for k, limit := range c.limits {
			value := float64(never)
			if limit.step < len(steps) {
				value = limit.of(&steps[limit.step])
			}
			all[k].add(f.Round, &f.Notice, value)
		}
	}
	for k, limit := range c.limits {
		row := WANRow{Case: c.name, What: limit.what, Unit: inMS, Most: limit.most}
		all[k].fill(&row)
		row.judge(true, row.Value <= limit.most)
		rows = append(rows, row)
	}
	return rows
}

// judge says how the row stands, if it has a limit: fewer than half of its rounds say nothing.
func (row *WANRow) judge(limited, within bool) {
	switch {
	case row.Taken == 0:
		row.Verdict = isUnmeasured
	case 2*row.Kept < row.Taken:
		row.Verdict = isDisturbed
	case !limited:
	case within:
		row.Verdict = isOK
	default:
		row.Verdict = isMissed
	}
}

// judged returns an error if one of the rows has missed its limit, was disturbed or was not measured.
func judged(rows []WANRow) error {
	count := map[string]int{}
	for i := range rows {
		count[rows[i].Verdict]++
	}
	var errs []error
	if n := count[isMissed] + count[isUnmeasured]; n > 0 {
		errs = append(errs, fmt.Errorf("%w: %d of %d figures", ErrMissed, n, len(rows)))
	}
	if n := count[isDisturbed]; n > 0 {
		errs = append(errs, fmt.Errorf("%w: %d of %d figures say nothing of the rails: this machine could not carry the links", ErrDisturbed, n, len(rows)))
	}
	return errors.Join(errs...)
}

// document returns the report of the result.
func (r *WANResult) document() *document.Document {
	r.settle()
	d := &document.Document{
		Title: "kvferry lab nics wan", Made: document.When("Measured", r.Started), Head: labHead(r.Machine, r.Seconds), Data: r, DataName: "wan.json",
		Sections: []document.Section{{Tables: []document.Table{r.rates(), r.times()}}},
	}
	d.Notes.Add(document.Fault, r.Notes...)
	return d
}

// peers are the others that were measured, in order.
func (r *WANResult) peers() (names []string) {
	for i := range r.Points {
		if by := r.Points[i].By; by != kvferry && !slices.Contains(names, by) {
			names = append(names, by)
		}
	}
	return names
}

// rates is the table of what is a share of the ideal.
func (r *WANResult) rates() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("four links, of 500 Mbit/s if nothing else is said, %s x %s blocks, %s batches under way, in %% of ideal, which is 1448/1514 of the links' rates;\nmedians of %d", wanBlock, wanBatch, wanDepth, r.Rounds), Left: 2,
		Head: []string{"case", "links", kvferry, "low..high", "must be"},
	}
	peers := r.peers()
	t.Head = append(append(t.Head, peers...), "CPUs idle %", "")
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Unit != ofIdeal {
			continue
		}
		want := ""
		if row.Least > 0 {
			want = fmt.Sprintf("%g", row.Least)
		}
		cells := append([]string{row.Case, row.What}, append(row.measured(1), want)...)
		for _, name := range peers {
			text := ""
			if v, found := row.Peers[name]; found {
				text = figure(v, 1)
			}
			cells = append(cells, text)
		}
		t.Add(append(cells, row.ending()...)...)
	}
	return t
}

// times is the table of how soon faults are found and links carry their share again.
func (r *WANResult) times() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("links that fall silent or flap, in ms; medians of %d", r.Rounds), Left: 2,
		Head: []string{"case", "what", kvferry, "low..high", "at most", "CPUs idle %", ""},
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Unit == inMS {
			cells := append([]string{row.Case, row.What}, append(row.measured(0), fmt.Sprintf("%g", row.Most))...)
			t.Add(append(cells, row.ending()...)...)
		}
	}
	return t
}

// measured is a row's figure, and its spread.
func (row *WANRow) measured(digits int) []string {
	if row.Kept == 0 {
		return []string{"", ""}
	}
	return []string{figure(row.Value, digits), cmp.Or(figure(row.Low, digits), "-") + ".." + cmp.Or(figure(row.High, digits), "-")}
}

// ending is what the machine did, and the verdict.
func (row *WANRow) ending() []string {
	verdict := row.Verdict
	if row.Kept < row.Taken {
		verdict = strings.TrimSpace(fmt.Sprintf("%s (%d of %d rounds disturbed)", verdict, row.Taken-row.Kept, row.Taken))
	}
	return []string{strconv.FormatFloat(row.Idle, 'f', 0, 64), verdict}
}
