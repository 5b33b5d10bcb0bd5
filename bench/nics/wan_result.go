package nics

import (
	"fmt"
	"slices"

	"kvferry/bench/document"
	"kvferry/bench/rail"
)

// kvferry is the name of the rails in a [WANPoint], where peers have theirs.
const kvferry = "kvferry"

// A WANResult is all rounds of the cases.
type WANResult struct {
	outcome
	Cases     []string      `json:"cases"`
	Points    []WANPoint    `json:"points"`
	Failovers []WANFailover `json:"-"` // failover.json of each round has them
	Rows      []Figure      `json:"rows"`
}

// A WANPoint is the rate of a case in one round.
type WANPoint struct {
	Case  string `json:"case"`
	By    string `json:"by"`
	Round int    `json:"round"`
	Rate
	Percent float64 `json:"percent_of_ideal"`
	Notice  Notice  `json:"machine"`
}

// A WANFailover is the run of a case with a schedule.
type WANFailover struct {
	Case   string
	Round  int
	Notice Notice
	*rail.FailoverResult
}

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

// behindPeers is by how many points the rails may be below the better of the others.
const behindPeers = 2.0

func (r *WANResult) rateRow(c *wanCase) Figure {
	by := func(name string) Figure {
		f := Figure{Case: c.name, What: c.what, Unit: ofIdeal, Least: c.least}
		return over(f, r.Points, func(p *WANPoint) (int, *Notice, float64, bool) {
			return p.Round, &p.Notice, p.Percent, p.Case == c.name && p.By == name
		})
	}
	row, least := by(kvferry), c.least
	for _, name := range r.peers() {
		if peer := by(name); peer.Kept > 0 {
			if row.Peers == nil {
				row.Peers = map[string]float64{}
			}
			row.Peers[name] = peer.Value
			least = max(least, peer.Value-behindPeers)
		}
	}
	row.judge(least > 0, row.Value >= least)
	return row
}

func (r *WANResult) stepRows(c *wanCase) (rows []Figure) {
	for _, limit := range c.limits {
		row := over(Figure{Case: c.name, What: limit.what, Unit: inMS, Most: limit.most}, r.Failovers, func(f *WANFailover) (int, *Notice, float64, bool) {
			value := float64(never)
			if steps := newSteps(c.schedule, []*rail.FailoverResult{f.FailoverResult}); f.Case == c.name && limit.step < len(steps) {
				value = limit.of(&steps[limit.step])
			}
			return f.Round, &f.Notice, value, f.Case == c.name
		})
		row.judge(true, row.Value <= limit.most)
		rows = append(rows, row)
	}
	return rows
}

// document returns the report of the result.
func (r *WANResult) document() *document.Document {
	r.settle()
	return r.report("kvferry lab nics wan", "wan.json", r, r.rates(), r.times())
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
