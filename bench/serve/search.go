package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"kvferry/bench/report"
	"kvferry/load"
)

// lateSend voids a point of a search: where the client itself sent so late, the server was
// asked something else than the point says.
const lateSend = 50.0 // ms, P99

// search runs the load at the rates, or concurrencies, that the search asks for. Each repeat of a
// value has a seed of its own: the same load again would tell nothing new. The report is of the last
// run of the answer, the highest value that kept the SLO over all its runs, with the table of all
// values; records of all runs are in results.jsonl, by Point and Repeat.
func (x *run) search(ctx context.Context, t Target, f *Facts, spec load.Spec) error {
	s, err := NewRateSearch(*x.Search)
	if err != nil {
		return err
	}
	runs := map[float64]*report.Run{} // the last that counts of each value: repeats may turn any verdict
	var cut *report.Run
	var failed error
	for {
		try, more := s.Next()
		if !more {
			break
		}
		at := spec
		at.Seed += uint64(try.Repeat)
		name := fmt.Sprintf("at %.4g requests/s", try.Value)
		if x.Search.Quantity == Concurrency {
			at.InFlight = int(try.Value)
			name = fmt.Sprintf("with %d requests in flight", at.InFlight)
		} else {
			at.Rate = try.Value
		}
		r, err := x.once(ctx, t, f, at, name, try)
		if err != nil {
			cut, failed = r, err
			break
		}
		point := RateRun{Value: try.Value, Requests: len(r.Records)}
		for i := range r.Records {
			if r.Keeps(&r.Records[i]) {
				point.Attained++
			}
		}
		if p99 := r.Late(99); p99 > lateSend && f.Clock == report.ClockReal {
			point.Void = fmt.Sprintf("the client sent %.0f ms late (P99)", p99)
		}
		if err := s.Add(point); err != nil {
			return err
		}
		x.bar.Say(fmt.Sprintf("%s: %d of %d requests kept the SLO%s", name, point.Attained, point.Requests, voided(point.Void)))
		if point.Void == "" {
			runs[try.Value] = r
		}
	}
	result := s.Result()
	x.found = &result
	best := runs[result.Value]
	best = cmp.Or(best, cut) // what was done
	if best != nil {
		best.Tables = slices.Insert(best.Tables, 0, result.Table())
		for _, note := range result.Notes {
			best.Notes = append(best.Notes, fmt.Sprintf("highest %s: %s", result.Quantity, note))
		}
		x.reports = append(x.reports, report.New(best))
	}
	x.save()
	return errors.Join(failed, ctx.Err())
}

// voided says why a point is not counted, behind what it came to.
func voided(why string) string {
	if why == "" {
		return ""
	}
	return "; it does not count: " + why
}
