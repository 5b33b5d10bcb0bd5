package nics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/observe"
	"kvferry/internal/clock"
	lab "kvferry/lab/nics"
)

// ErrMissed: a figure is not what it must be.
var ErrMissed = errors.New("missed")

// ErrDisturbed: the machine was too busy to carry the links, and a figure says nothing.
var ErrDisturbed = errors.New("disturbed")

// inLab runs do in a lab of its own, and what do returned once it is known what the machine did
// meanwhile; spins says that it has the CPUs busy in any case. What the machine disturbed is measured once more.
func inLab(ctx context.Context, cfg lab.Config, spins bool, do func(context.Context, *lab.Lab) (func(Notice), error)) error {
	once := func() (why string, err error) {
		watch, err := observe.StartWatch(clock.Std(), nil)
		if err != nil {
			return "", err
		}
		l, err := lab.Start(ctx, cfg)
		if err != nil {
			_, _ = watch.End()
			return "", err
		}
		defer l.Close()
		keep, err := do(ctx, l)
		d, e := watch.End()
		if err = errors.Join(err, e); err != nil {
			return "", err
		}
		n, err := notice(l, d, spins)
		if err == nil {
			keep(n)
		}
		return n.Why, err
	}
	why, err := once()
	if err == nil && why != "" {
		_, err = once()
	}
	return err
}

// A Notice is what the machine did while a point was measured.
type Notice struct {
	IdlePct float64 `json:"idle_pct"` // of the CPUs; links, both ends and the kernel are in the rest
	Overrun int64   `json:"overrun"`  // packets that the links lost because the machine was busy
	Packets int64   `json:"packets"`  // of all that came
	observe.Disturbance
	Why string `json:"disturbed"` // empty if the links were carried
}

// leastIdle is the least idle share of the CPUs, in percent. With less, the CPUs are measured and not the links.
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

// A Figure is a value beside its limit: the median over the rounds that were not disturbed.
type Figure struct {
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

// over returns f with the median, the least and the greatest of its points' values. Points that the machine
// disturbed are left out, and a round that was measured again counts once. sample returns a point's round,
// notice and value, and reports whether the point belongs to f.
func over[P any](f Figure, points []P, sample func(*P) (round int, n *Notice, value float64, of bool)) Figure {
	var values, idle, lost []float64 // lost is the share of the CPUs that was idle in the other rounds, %
	rounds := map[int]bool{}
	for i := range points {
		round, n, v, of := sample(&points[i])
		switch {
		case !of:
			continue
		case n.Why != "":
			lost = append(lost, n.IdlePct)
		default:
			values, idle = append(values, v), append(idle, n.IdlePct)
		}
		rounds[round] = true
	}
	f.Kept, f.Taken, f.Idle = len(values), len(rounds), median(lost)
	if len(values) > 0 {
		f.Value, f.Low, f.High, f.Idle = median(values), slices.Min(values), slices.Max(values), median(idle)
	}
	return f
}

// judge sets the verdict. Without a limit it is empty, unless the row was not measured, or fewer than half
// of its rounds were kept.
func (row *Figure) judge(limited, within bool) {
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
func judged(rows []Figure) error {
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

// measured returns the cells of a row's value and its spread, empty if no round was kept.
func (row *Figure) measured(digits int) []string {
	if row.Kept == 0 {
		return []string{"", ""}
	}
	return []string{figure(row.Value, digits), cmp.Or(figure(row.Low, digits), "-") + ".." + cmp.Or(figure(row.High, digits), "-")}
}

// ending returns the cells of the share of CPUs that was idle, and of the verdict.
func (row *Figure) ending() []string {
	verdict := row.Verdict
	if row.Kept < row.Taken {
		verdict = strings.TrimSpace(fmt.Sprintf("%s (%d of %d rounds disturbed)", verdict, row.Taken-row.Kept, row.Taken))
	}
	return []string{strconv.FormatFloat(row.Idle, 'f', 0, 64), verdict}
}

// must returns the limit in words. The figure has one: a Least above 0, or else a Most.
func (row *Figure) must() string {
	if row.Least > 0 {
		return fmt.Sprintf("at least %g", row.Least)
	}
	return fmt.Sprintf("at most %g", row.Most)
}
