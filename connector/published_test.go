package connector

import (
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// This file replays the published load through the state machines in virtual
// time and compares with the published table: what the daemons run, without
// their noise.
//
// The parameters of the ten non-disaggregated and chunked cells are those of the
// calibration report. Those of the 15 disaggregated cells were fitted again, one
// set for all cells, to the form the machines have here: copies that a consumer
// asks for may hold back the producer's next launch for launch_gap, and a
// receive's fixed cost runs beside the wait for the producer, not after it.

// replay runs a row of the published load and returns each request's TTFT, TPOT
// and each ITL, sorted, in ms. The seed draws prompt lengths.
func replay(tb testing.TB, prof *engine.Profile, input, qps int, setting string, seed uint64) [3][]float64 {
	w := &world{tokens: map[uint64][]time.Duration{}, tb: tb}
	arrivals := publishedArrivals(float64(qps))
	mean, sd := 245.3, 6.6
	if input == 1024 {
		mean, sd = 1011.6, 15
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	prompts := make([][]kvcache.Token, len(arrivals))
	for i := range prompts {
		prompts[i] = make([]kvcache.Token, int(math.Round(mean+sd*rng.NormFloat64())))
		for j := range prompts[i] {
			prompts[i][j] = rng.Uint32N(uint32(prof.Vocab))
		}
	}
	c := newCluster(w, prof, setting, prompts)
	for i, t := range arrivals {
		w.at(t, func() { c.submit(i) })
	}
	w.run()
	for _, h := range c.hosts {
		if n, used := h.core.Requests(), h.core.cfg.Pool.Used(); n != 0 || used != 0 {
			tb.Fatalf("%s: %d requests and %d blocks left", setting, n, used)
		}
	}
	return latencies(tb, w, arrivals)
}

func latencies(tb testing.TB, w *world, arrivals []time.Duration) [3][]float64 {
	var ttft, tpot, itl []float64
	for i, a := range arrivals {
		t := w.tokens[uint64(i+1)]
		if len(t) != 6 {
			tb.Fatalf("request %d got %d tokens", i+1, len(t))
		}
		ttft = append(ttft, ms(t[0]-a))
		tpot = append(tpot, ms(t[5]-t[0])/5)
		for j := 1; j < 6; j++ {
			itl = append(itl, ms(t[j]-t[j-1]))
		}
	}
	slices.Sort(ttft)
	slices.Sort(tpot)
	slices.Sort(itl)
	return [3][]float64{ttft, tpot, itl}
}

// summary is mean, median and P99 of each, as the published tables have them.
func summary(l [3][]float64) (m [9]float64) {
	for i, x := range l {
		for _, v := range x {
			m[3*i] += v / float64(len(x))
		}
		m[3*i+1], m[3*i+2] = quantile(x, 0.5), quantile(x, 0.99)
	}
	return m
}

// quantile of sorted values, interpolated as numpy does.
func quantile(x []float64, p float64) float64 {
	r := p * float64(len(x)-1)
	lo := int(r)
	hi := min(lo+1, len(x)-1)
	return x[lo] + (r-float64(lo))*(x[hi]-x[lo])
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// publishedArrivals is the arrival sequence of the published runs: numpy's
// legacy generator, seed 0, with 1.2 ms of client drift a gap.
func publishedArrivals(qps float64) []time.Duration {
	var mt [624]uint32
	for i := 1; i < 624; i++ {
		mt[i] = 1812433253*(mt[i-1]^mt[i-1]>>30) + uint32(i)
	}
	pos := 624
	next := func() uint32 {
		if pos == 624 {
			for i := range mt {
				y := mt[i]&0x80000000 | mt[(i+1)%624]&0x7fffffff
				mt[i] = mt[(i+397)%624] ^ y>>1 ^ (y&1)*0x9908b0df
			}
			pos = 0
		}
		y := mt[pos]
		pos++
		y ^= y >> 11
		y ^= y << 7 & 0x9d2c5680
		y ^= y << 15 & 0xefc60000
		return y ^ y>>18
	}
	out := make([]time.Duration, 200)
	t := 0.0
	for i := 1; i < 200; i++ {
		a, b := next()>>5, next()>>6
		u := (float64(a)*67108864 + float64(b)) / 9007199254740992
		t += -math.Log(1-u)/qps*1e3 + 1.2
		out[i] = millis(t)
	}
	return out
}

func readPublished(tb testing.TB) map[string][9]float64 {
	f, err := os.Open("../bench/mooncake_a10.csv")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string][9]float64{}
	for _, r := range rows[1:] {
		var m [9]float64
		for i := range m {
			if m[i], err = strconv.ParseFloat(r[10+i], 64); err != nil {
				tb.Fatal(err)
			}
		}
		out[fmt.Sprintf("%s/q%s/%s", r[0], r[1], r[2])] = m
	}
	return out
}

// settings of the published table, and the two hand-offs of ours on its TCP link.
var settings = []string{"nondisagg", "chunked", "rdma", "rdma2", "tcp", "pull", "layerwise"}

// The nine latencies of a cell, in the order of the published file.
const (
	ttftMean = iota
	ttftMedian
	ttftP99
	tpotMean
	tpotMedian
	tpotP99
	itlMean
	itlMedian
	itlP99
)

var metricNames = [9]string{"TTFT mean", "TTFT median", "TTFT P99", "TPOT mean", "TPOT median", "TPOT P99", "ITL mean", "ITL median", "ITL P99"}

// limits say how far from the published figure a cell may be, in percent; 0 is
// not asserted. P99s are not: of 200 requests they are the second or third
// largest, and of the disaggregated rows the fit leaves them open by up to a
// factor of two.
func limits(row [2]int, setting string) (l [9]float64) {
	switch setting {
	case "nondisagg", "chunked":
		l = [9]float64{ttftMean: 8, ttftMedian: 8, tpotMean: 8, tpotMedian: 8, itlMean: 8, itlMedian: 8}
		if row[0] == 1024 {
			// About half of these requests meet another prompt while they decode, and
			// their TPOT is a multiple of the others': the median falls into the gap
			// between the two kinds, and which side it is on hangs on a few prompt
			// lengths, which were not published. See TestPublishedMedianIsInAGap.
			l[tpotMedian] = 0
		}
	case "rdma", "rdma2", "tcp":
		l = [9]float64{ttftMean: 10, ttftMedian: 12, tpotMean: 21}
		if row[0] == 1024 {
			l = [9]float64{ttftMean: 25, ttftMedian: 25, tpotMean: 35}
		}
	}
	return l
}

// TestPublished runs the published load through the state machines and compares
// the means over four draws of prompt lengths with the published table.
func TestPublished(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	pub := readPublished(t)
	for _, row := range [][2]int{{1024, 2}, {256, 2}, {256, 4}, {256, 6}, {256, 8}} {
		t.Run(fmt.Sprintf("%d-q%d", row[0], row[1]), func(t *testing.T) {
			t.Parallel()
			got, want := map[string][9]float64{}, map[string][9]float64{}
			for _, set := range settings {
				got[set] = average(t, prof, row, set)
				want[set] = pub[fmt.Sprintf("%d/q%d/%s", row[0], row[1], set)]
				compare(t, row, set, got[set], want[set])
			}
			order(t, row, got, want)
			l, plain := got["layerwise"], got["nondisagg"]
			if l[ttftMean] > plain[ttftMean] || l[tpotMean] > 13 || l[tpotP99] > 20 {
				t.Errorf("layerwise: TTFT mean %.1f ms beside %.1f, TPOT mean %.1f, P99 %.1f: want at most as much, 13, 20",
					l[ttftMean], plain[ttftMean], l[tpotMean], l[tpotP99])
			}
			if p := got["pull"]; p[tpotMean] > 13 || p[ttftMean] > want["rdma"][ttftMean] {
				t.Errorf("pull: TTFT mean %.1f ms, TPOT mean %.1f", p[ttftMean], p[tpotMean])
			}
		})
	}
}

// average is the mean of each latency over four draws of prompt lengths.
func average(tb testing.TB, prof *engine.Profile, row [2]int, set string) (m [9]float64) {
	const seeds = 4
	for seed := range uint64(seeds) {
		for i, v := range summary(replay(tb, prof, row[0], row[1], set, seed)) {
			m[i] += v / seeds
		}
	}
	return m
}

func compare(t *testing.T, row [2]int, set string, got, want [9]float64) {
	line := fmt.Sprintf("%-10s", set)
	for i, v := range got {
		if want[i] == 0 { // not published
			line += fmt.Sprintf(" %7.1f", v)
			continue
		}
		off := 100 * (v/want[i] - 1)
		line += fmt.Sprintf(" %+6.1f%%", off)
		if limit := limits(row, set)[i]; limit > 0 && math.Abs(off) > limit {
			t.Errorf("%s: %s is %.1f ms, %+.1f %% of the published %.1f: want within %.0f %%", set, metricNames[i], v, off, want[i], limit)
		}
	}
	t.Log(line)
}

// order compares each pair of published settings on mean TTFT and mean TPOT,
// where the published figures differ by more than 3 %.
func order(t *testing.T, row [2]int, got, want map[string][9]float64) {
	pairs := 0
	for _, metric := range []int{ttftMean, tpotMean} {
		for _, slow := range settings {
			for _, fast := range settings {
				a, b := want[slow][metric], want[fast][metric]
				if a == 0 || b == 0 || a < 1.03*b {
					continue
				}
				pairs++
				if x, y := got[slow][metric], got[fast][metric]; x <= y {
					t.Errorf("%d/q%d %s: %s > %s: published %.1f and %.1f ms, here %.1f and %.1f", row[0], row[1], metricNames[metric], slow, fast, a, b, x, y)
				}
			}
		}
	}
	t.Logf("order kept in %d pairs", pairs)
}

// TestPublishedMedianIsInAGap is why limits leaves out the median TPOT of two
// cells: 45 % of the requests have at most 13 ms, 45 % have more than 50, for any
// draw of prompt lengths.
func TestPublishedMedianIsInAGap(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"nondisagg", "chunked"} {
		for seed := range uint64(4) {
			tpot := replay(t, prof, 1024, 2, set, seed)[1]
			if below, above := quantile(tpot, 0.45), quantile(tpot, 0.55); below > 13 || above < 50 {
				t.Errorf("1024/q2/%s, draw %d: TPOT at 45 %% is %.1f ms, at 55 %% %.1f: no gap at the median", set, seed, below, above)
			}
		}
	}
}
