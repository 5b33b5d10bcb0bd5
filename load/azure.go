package load

import (
	"cmp"
	"fmt"
	"time"

	"kvferry/kvcache"
	"kvferry/load/records"
)

// azureKind is one of the traces of LLM inference that Azure published in 2023 and 2024.
var azureKind = Kind{
	Name:  "azure",
	About: "the requests of Azure's LLM inference traces, 2023 and 2024: times and lengths",
	Reads: []string{"File", "Speed", "Seed"},
	Times: Recorded,
	Check: checkTrace,
	Open: func(s Spec) (Load, error) {
		f, err := records.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		return Load{Source: newAzure(s, records.NewCSV(s.File, f, "TIMESTAMP", "ContextTokens", "GeneratedTokens"))}, nil
	},
}

// azure are the rows of a CSV in order of time,
//
//	TIMESTAMP,ContextTokens,GeneratedTokens
//	2023-11-16 18:15:46.6805900,374,44
//	2024-05-12 00:00:00.003934+00:00,2162,5
//
// whose times begin with the first row's. The prompts are not published: each has tokens of
// its own, by the seed and its number.
type azure struct {
	Spec
	rows        *records.CSV
	n           int
	first, last time.Time
	err         error // the first
}

// newAzure reads the rows, whose columns are in the order of the header.
func newAzure(s Spec, rows *records.CSV) *azure { return &azure{Spec: s, rows: rows} }

// Next parses the next row.
func (a *azure) Next() (Request, bool, error) {
	if a.err != nil || a.Requests > 0 && a.n == a.Requests {
		return Request{}, false, a.err
	}
	ok, err := a.rows.Next()
	if !ok || err != nil {
		a.err = err
		return Request{}, false, err
	}
	r, err := a.request()
	if err != nil {
		a.err = a.rows.Fault(err)
		return Request{}, false, a.err
	}
	a.n++
	return r, true, nil
}

// request is what a row asks for. The first row's time is the run's beginning: the traces have
// a date, and begin in the middle of a day.
func (a *azure) request() (r Request, err error) {
	at, err := parseTime(a.rows.Text(0))
	if err != nil {
		return r, fmt.Errorf("TIMESTAMP: %w", err)
	}
	if a.n == 0 {
		a.first, a.last = at, at
	}
	if at.Before(a.last) {
		return r, fmt.Errorf("TIMESTAMP: %s comes after %s: sort the rows by time", a.rows.Text(0), a.last.Format(time.DateTime+".0000000"))
	}
	a.last = at
	// A duration ends at 292 years, and Sub stays there.
	seconds := at.Sub(a.first).Seconds() / a.Speed
	if seconds > never.Seconds() {
		return r, fmt.Errorf("TIMESTAMP: %s: too long after the first", a.rows.Text(0))
	}
	r.At = time.Duration(seconds * 1e9)
	input, err := a.tokens(1, "ContextTokens")
	if err != nil {
		return r, err
	}
	if r.MaxTokens, err = a.tokens(2, "GeneratedTokens"); err != nil {
		return r, err
	}
	// The number of the row, not its length, decides the tokens: two prompts of one length share
	// nothing, as nobody knows what they shared.
	r.Prompt = fill(make([]kvcache.Token, 0, input), input, (uint64(a.n)+1)*0x9e6c63d0676a9a99^a.Seed, a.Vocab)
	return r, nil
}

// tokens is a number of tokens. Azure's traces have rows of 0, which nobody can ask for: 1
// is the least.
func (a *azure) tokens(column int, name string) (int, error) {
	n, err := a.rows.Float(column)
	if err != nil {
		return 0, err
	}
	n = cmp.Or(n, 1)
	return tokenCount(name, n)
}

// Close closes the file.
func (a *azure) Close() error { return a.rows.Close() }

// parseTime reads a date and a time of day with any number of fractional digits, in UTC or
// with an offset.
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil { // a fraction may follow the seconds
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: want a date and a time, like 2023-11-16 18:15:46.6805900", text)
}
