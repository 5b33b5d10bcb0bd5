package load

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/internal/config"
	"kvferry/load/trace"
)

var longBenchKind = Kind{
	Name:  LongBenchName,
	About: "documents and questions of LongBench v2 (JSON)",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, shareGPTKnobs),
	Texts: true,
	Times: Arriving,
	Check: checkLongBench,
	Open:  sglangLongBench,
}

// longBenchOutput is how many tokens are wanted where nobody says so: a letter and a few words.
const longBenchOutput = 10

// sglangLongBench is LongBenchV2Dataset: a document of 8,000 to 2 million words and a question
// of four choices each,
//
//	{"context": "...", "question": "...", "choice_A": "...", "choice_B": "...", "choice_C": "...", "choice_D": "..."}
//
// all shuffled, those left out that are longer than --sharegpt-context-len.
func sglangLongBench(s Spec) (Load, error) {
	all, err := readLongBench(s.File)
	if err != nil {
		return Load{}, err
	}
	if len(all) == 0 {
		return Load{}, fmt.Errorf("%q: it has no questions", s.File)
	}
	g := newGenerators(s.Seed)
	g.Python.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	output := s.ShareGPT.OutputLen
	config.Default(&output, longBenchOutput)
	var rows []row
	for _, text := range all {
		if len(rows) == s.Requests {
			break
		}
		if s.ShareGPT.ContextLen == 0 || s.length(text)+output <= s.ShareGPT.ContextLen {
			rows = append(rows, row{text: text, max: output})
		}
	}
	if len(rows) == 0 {
		return Load{}, fmt.Errorf("%q: of %d questions none is short enough for --sharegpt-context-len", s.File, len(all))
	}
	l := Load{Source: &texts{rows: rows, tokenizer: s.Tokenizer}, Count: len(rows), Generators: &g}
	if s.ShareGPT.ContextLen > 0 {
		l.Notes = s.inWords()
	}
	if n := len(rows); n < s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%s has %d questions that are not too long, so there are %d requests and not %d, as with sglang.bench_serving", s.File, n, n, s.Requests))
	}
	return l, nil
}

func readLongBench(name string) (all []string, err error) {
	f, err := trace.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := trace.NewJSON(name, f, "")
	for {
		var r map[string]any
		ok, err := from.Next(&r)
		if !ok || err != nil {
			return all, err
		}
		var b strings.Builder
		for _, part := range longBenchParts {
			text, ok := r[part.field].(string)
			if !ok {
				return nil, from.Fault(fmt.Errorf("%s is missing: give it as a text", part.field))
			}
			b.WriteString(part.before + text)
		}
		all = append(all, b.String()+"\nAnswer:")
	}
}

// longBenchParts are a prompt, each with what stands before it.
var longBenchParts = []struct{ before, field string }{
	{"", "context"}, {"\n\nQuestion: ", "question"}, {"\nA. ", "choice_A"}, {"\nB. ", "choice_B"}, {"\nC. ", "choice_C"}, {"\nD. ", "choice_D"},
}

func checkLongBench(s Spec, bad *config.Faults) {
	checkRequests(s, bad)
	checkFile(s, bad, "name LongBench v2's file, of JSON (--dataset-path)")
	if strings.HasSuffix(s.File, ".parquet") {
		bad.Add("File", s.File, "Parquet is not read here: write the rows as JSON lines, as pandas' to_json(orient=\"records\", lines=True) does")
	}
	checkOutput(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, 1)
	config.Between(bad, "ShareGPT.ContextLen", s.ShareGPT.ContextLen, 0, maxLen)
}
