package load

import (
	"fmt"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
	"kvferry/load/trace"
)

var burstGPTKind = Kind{
	Name:  BurstGPTName,
	About: "lengths drawn from the GPT-4 rows of the BurstGPT trace (CSV)",
	Knobs: Knobs{fileKnob, seedKnob},
	Times: Arriving,
	Check: checkBurstGPT,
	Open:  vllmBurstGPT,
}

// burstColumns are those that are read of the trace, whose Timestamp is not among them.
var burstColumns = []string{"Model", "Request tokens", "Response tokens"}

// A burstRow is a row of the trace: tokens, and where it stands.
type burstRow struct{ prompt, output, line int32 }

// vllmBurstGPT is BurstGPTDataset: rows of GPT-4 that had an
// answer, drawn without replacement if there are enough, and tokens that count up from the
// request's number. The trace's times are not read. A row in memory takes 12 bytes.
func vllmBurstGPT(s Spec) (Load, error) {
	f, err := trace.Open(s.File)
	if err != nil {
		return Load{}, err
	}
	defer f.Close()
	rows, err := readBurstGPT(trace.NewCSV(s.File, f, burstColumns...))
	if err != nil {
		return Load{}, err
	}
	if len(rows) == 0 {
		return Load{}, fmt.Errorf("%q: it has no row of model GPT-4 with response tokens", s.File)
	}
	b := &burst{vocab: s.vocab(), tokenizer: s.Tokenizer}
	g := newGenerators(s.Seed)
	l := Load{Source: b, Count: s.Requests, Generators: &g}
	// pandas draws from a generator of its own (random_state=seed): the tool's global one is not
	// touched.
	if own := tooldraws.NewRandomState(uint32(s.Seed)); s.Requests <= len(rows) {
		for _, i := range own.Sample(len(rows), s.Requests) {
			b.rows = append(b.rows, rows[i])
		}
	} else {
		for range s.Requests {
			b.rows = append(b.rows, rows[own.Randint(0, int64(len(rows)))])
		}
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d rows to draw from, so some are asked more than once", s.File, len(rows)))
	}
	for _, r := range b.rows {
		if r.prompt < 1 {
			return Load{}, trace.Fault(s.File, int(r.line), fmt.Errorf("%s: %d: a prompt has 1 or more", burstColumns[1], r.prompt))
		}
	}
	return l, nil
}

// readBurstGPT are the rows that the tool keeps. It reads all of them: which are drawn depends on
// how many there are.
func readBurstGPT(from *trace.CSV) (rows []burstRow, err error) {
	for {
		ok, err := from.Next()
		if !ok || err != nil {
			return rows, err
		}
		if from.Text(0) != "GPT-4" {
			continue
		}
		var lengths [2]int32
		for i := range lengths {
			n, err := from.Int(i + 1)
			if err == nil && n > maxLen {
				err = fmt.Errorf("%s: %d: use %d at most", burstColumns[i+1], n, maxLen)
			}
			if err != nil {
				return nil, from.Fault(err)
			}
			lengths[i] = int32(n)
		}
		if lengths[1] > 0 {
			rows = append(rows, burstRow{lengths[0], lengths[1], int32(from.Line())})
		}
	}
}

// burst are rows to come, whose prompts are made when they are asked for.
type burst struct {
	rows      []burstRow
	vocab     int
	tokenizer Tokenizer // nil: no text
	n         int
}

func (b *burst) Next() (Request, bool, error) {
	if b.n == len(b.rows) {
		return Request{}, false, nil
	}
	prompt := make([]kvcache.Token, b.rows[b.n].prompt)
	for i := range prompt {
		prompt[i] = kvcache.Token((b.n + i) % b.vocab) // so no two requests begin alike, until vocab is through
	}
	r := Request{Prompt: prompt, MaxTokens: int(b.rows[b.n].output), MayStop: true}
	if b.tokenizer != nil {
		r.Text = b.tokenizer.Decode(prompt, false)
	}
	b.n++
	return r, true, nil
}

func checkBurstGPT(s Spec, bad *config.Faults) {
	checkFile(s, bad, "name the trace's CSV file (--dataset-path)")
	checkRequests(s, bad)
	checkVocab(s, bad)
}
