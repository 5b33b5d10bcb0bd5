package bench

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kvferry/bench/client"
	"kvferry/bench/stats"
	"kvferry/engine"
)

// mooncake_a10.csv holds the 25 tables of Mooncake's vLLM integration guide
// v0.1 (November 2024): Qwen2.5-7B-Instruct-GPTQ-Int4 on A10 GPUs, one GPU for
// nondisagg and chunked, a prefill and a decode GPU for the others.
//
//go:embed mooncake_a10.csv
var mooncakeA10 string

// published maps "256/q8" and "tcp" to that cell's figures.
var published = sync.OnceValue(func() map[[2]string]Published {
	cells, err := parsePublished(mooncakeA10)
	if err != nil {
		panic(err) // the file is part of the binary and a test parses it
	}
	return cells
})

// publishedGPU reports whether a profile of this fingerprint is of the published tables'
// GPU, model and engine: figures of another one are not compared with them.
func publishedGPU(fingerprint string) bool { return slices.Contains(fittedProfiles(), fingerprint) }

// fittedProfiles are the fingerprints of those that were fitted to the published tables.
var fittedProfiles = sync.OnceValue(func() []string {
	var of []string
	for _, name := range []string{engine.DefaultProfile, engine.AttentionProfile} {
		p, err := engine.LoadProfile(name)
		if err != nil {
			panic(fmt.Sprintf("bench: %v", err)) // it ships with the program
		}
		of = append(of, p.Fingerprint())
	}
	return of
})

// PublishedFigures returns what Mooncake published for a workload and a
// setting, or nil where nothing was published.
func PublishedFigures(workload, setting string) *Published {
	if p, ok := published()[[2]string{workload, setting}]; ok {
		return &p
	}
	return nil
}

func parsePublished(text string) (map[[2]string]Published, error) {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("published tables: %w", err)
	}
	if len(lines) < 2 {
		return nil, fmt.Errorf("published tables: %d lines, want a header and cells", len(lines))
	}
	cells := make(map[[2]string]Published, len(lines)-1)
	for i, line := range lines[1:] {
		var p Published
		field := map[string]*float64{}
		for _, f := range p.Figures.All() {
			field[f.Key] = f.Value
		}
		count := map[string]*int{
			"successful_requests":    &p.Successful,
			"total_input_tokens":     &p.InputTokens,
			"total_generated_tokens": &p.GeneratedTokens,
		}
		var key [3]string
		for col, name := range lines[0] {
			var err error
			switch {
			case col < len(key):
				key[col] = line[col]
			case field[name] != nil:
				*field[name], err = strconv.ParseFloat(line[col], 64)
			case count[name] != nil:
				*count[name], err = strconv.Atoi(line[col])
			default:
				err = fmt.Errorf("unknown column")
			}
			if err != nil {
				return nil, fmt.Errorf("published tables: cell %d, column %s: %w", i+1, name, err)
			}
		}
		cells[[2]string{key[0] + "/q" + key[1], key[2]}] = p
	}
	return cells, nil
}

// relErr is (measured-published)/published of every figure.
func relErr(measured, published client.Figures) *client.Figures {
	var out client.Figures
	m, p, o := measured.All(), published.All(), out.All()
	for i := range o {
		if *p[i].Value != 0 {
			*o[i].Value = stats.Round((*m[i].Value-*p[i].Value) / *p[i].Value, 4)
		}
	}
	return &out
}

// Published is one cell of the published tables.
type Published struct {
	client.Figures
	client.Counts
}
