package serve

import (
	"fmt"
	"strconv"

	"kvferry/bench/document"
)

// A RateLimit is the reason why a search ended.
type RateLimit string

// Limits.
const (
	bySLO      RateLimit = "slo"        // Above missed the SLO
	byClient   RateLimit = "client"     // the client could not keep up at Above
	byBound    RateLimit = "bound"      // kept at RateConfig.Max
	none       RateLimit = "none"       // missed even at RateConfig.Min
	unfinished RateLimit = "unfinished" // more runs were wanted
)

// A RateResult is the answer of a search, or how far it is: by the shares as they were drawn,
// the limit lies from Value to Above, and that is as narrow as the precision wants. By what
// is sure of them, it lies from From to To, which is wider where runs have few requests.
type RateResult struct {
	Quantity   RateQuantity `json:"quantity"`
	Attainment float64      `json:"attainment"` // wanted
	Precision  float64      `json:"precision"`  // wanted
	Limit      RateLimit    `json:"limit"`
	Value      float64      `json:"value"` // the highest that kept the SLO; 0 is none
	Above      float64      `json:"above"` // the lowest that did not, or could not be measured; 0 is none
	From       float64      `json:"from"`  // the highest value up to Value that is sure to be kept; 0 is none
	To         float64      `json:"to"`    // the lowest from Above that is sure to be missed; 0 is none
	// Of the requests at Value, Share kept the SLO; 95 % interval.
	Share     float64     `json:"share"`
	ShareLow  float64     `json:"share_low"`
	ShareHigh float64     `json:"share_high"`
	Points    []RatePoint `json:"points"` // every value that was run, in ascending order
	// Notes say what makes the answer less than certain.
	Notes []string `json:"notes,omitempty"`
}

// Result returns the answer, once Next has no more; before that it is [unfinished].
func (s *RateSearch) Result() RateResult {
	c := &s.cfg
	r := RateResult{Quantity: c.Quantity, Attainment: c.Attainment, Precision: c.Precision}
	kept, above := s.bracket()
	for _, p := range s.points {
		r.Points = append(r.Points, *p)
		switch sure := !p.void() && p.sure(c.Attainment); {
		case sure && kept != nil && p.Value <= kept.Value:
			r.From = p.Value
		case sure && above != nil && p.Value >= above.Value && r.To == 0 && !p.kept(c.Attainment):
			r.To = p.Value
		}
	}
	if kept != nil {
		r.Value, r.Share = kept.Value, kept.Share()
		r.ShareLow, r.ShareHigh = wilson(kept.Attained, kept.Requests)
	}
	if above != nil {
		r.Above = above.Value
	}
	_, more := s.next()
	switch {
	case more:
		r.Limit = unfinished
	case above == nil:
		r.Limit = byBound
	case above.void():
		r.Limit = byClient
	case kept == nil:
		r.Limit = none
	default:
		r.Limit = bySLO
	}
	s.note(&r, kept, above)
	return r
}

// note says what makes the answer less than certain.
func (s *RateSearch) note(r *RateResult, kept, above *RatePoint) {
	add := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if r.Limit == unfinished && s.runs >= s.cfg.Runs {
		add("ended after %d runs, the most that were allowed", s.runs)
	}
	if r.Limit == bySLO && (r.From != r.Value || r.To != r.Above) {
		add("sure is only that the limit lies from %s to %s: more requests a run tell nearer values apart", bound(r.From, "the lowest"), bound(r.To, "no bound"))
	}
	if need := RequestsFor(r.Attainment); kept != nil && kept.Requests < need {
		add("no value can be sure of %s with less than %d requests", percent(r.Attainment), need)
	}
	if above == nil {
		return
	}
	for _, p := range s.points {
		if p.Value > above.Value && !p.void() && p.kept(r.Attainment) {
			add("%s kept the SLO though %s, which is less, did not", number(p.Value), number(above.Value))
		}
	}
}

// String is the answer in words, a line.
func (r RateResult) String() string {
	unit := r.Quantity.unit()
	at := func() string {
		return fmt.Sprintf("%s %s: %s of the requests keep the SLO (95 %%: %s to %s)",
			number(r.Value), unit, percent(r.Share), percent(r.ShareLow), percent(r.ShareHigh))
	}
	switch r.Limit {
	case bySLO:
		return fmt.Sprintf("%s; at %s they are less than %s", at(), number(r.Above), percent(r.Attainment))
	case byBound:
		return fmt.Sprintf("%s; no more was tried", at())
	case byClient:
		if r.Value == 0 {
			return fmt.Sprintf("unknown: the client cannot keep up with %s %s, the least that was tried", number(r.Above), unit)
		}
		return fmt.Sprintf("%s; at %s the client itself cannot keep up", at(), number(r.Above))
	case none:
		return fmt.Sprintf("none: at %s %s, the least that was tried, less than %s of the requests keep the SLO", number(r.Above), unit, percent(r.Attainment))
	}
	switch {
	case r.Value == 0 && r.Above == 0:
		return "unknown: nothing was run to its end"
	case r.Value == 0:
		return fmt.Sprintf("unfinished: less than %s %s", number(r.Above), unit)
	case r.Above == 0:
		return fmt.Sprintf("unfinished: at least %s %s", number(r.Value), unit)
	}
	return fmt.Sprintf("unfinished: from %s to %s %s", number(r.Value), number(r.Above), unit)
}

// Table has a row for each value that was run.
func (r RateResult) Table() document.Table {
	t := document.Table{
		Title: "Highest " + string(r.Quantity) + ": " + r.String(),
		Head:  []string{r.Quantity.unit(), "verdict", "runs", "requests", "attained", "share", "95 % from", "to"},
	}
	for _, p := range r.Points {
		verdict := "missed"
		switch {
		case p.void():
			t.Add(number(p.Value), "client late", strconv.Itoa(p.Runs))
			continue
		case p.kept(r.Attainment):
			verdict = "kept"
		}
		if !p.sure(r.Attainment) {
			verdict += "?"
		}
		low, high := wilson(p.Attained, p.Requests)
		t.Add(
			number(p.Value), verdict, strconv.Itoa(p.Runs), strconv.Itoa(p.Requests), strconv.Itoa(p.Attained),
			percent(p.Share()), percent(low), percent(high),
		)
	}
	return t
}

// Text is the table and the notes, for a terminal.
func (r RateResult) Text() string {
	var notes document.Notes
	notes.Add(document.Info, r.Notes...)
	return r.Table().Text() + notes.InWords()
}

// bound is an end of an interval, or what it is called where there is none.
func bound(v float64, none string) string {
	if v == 0 {
		return none
	}
	return number(v)
}

// number is a value as one would give it to a flag.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// percent is a share with a digit that tells 99.9 % from all.
func percent(share float64) string { return fmt.Sprintf("%.2f %%", share*100) }
