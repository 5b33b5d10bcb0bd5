package matrix

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"kvferry/bench/document"
)

// matrixFile has all pairs of a run.
const matrixFile = "matrix.json"

// A column is a figure of the table: its name in Figures, its head and its digits.
type column struct {
	key, head string
	digits    int
}

// columns are in the order of vLLM's and SGLang's reports.
var columns = []column{
	{"successful_requests", "ok", 0},
	{"failed_requests", "failed", 0},
	{"duration_s", "duration s", 2},
	{"total_input_tokens", "tokens in", 0},
	{"total_generated_tokens", "tokens out", 0},
	{"request_throughput", "req/s", 2},
	{"output_token_throughput", "out tok/s", 1},
	{"mean_ttft_ms", "mean TTFT ms", 1},
	{"p99_ttft_ms", "P99 TTFT ms", 1},
	{"mean_tpot_ms", "mean TPOT ms", 2},
	{"mean_itl_ms", "mean ITL ms", 2},
	{"p99_itl_ms", "P99 ITL ms", 2},
	{"mean_e2el_ms", "mean E2E ms", 1},
}

// table returns a row for each run that a pair's client has reported, and one for each other
// pair. It leaves out columns that no client reports.
func (r *runner) table() document.Table {
	reported := map[string]bool{}
	for _, p := range r.pairs {
		for _, f := range p.Figures {
			for key := range f.Values {
				reported[key] = true
			}
		}
	}
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return !reported[c.key] })
	title := fmt.Sprintf("%d servers x %d clients", len(r.File.Servers), len(r.File.Clients))
	t := document.Table{Title: title, Left: 3, Head: []string{"server", "client", "status"}}
	for _, c := range shown {
		t.Head = append(t.Head, c.head)
	}
	for _, p := range r.pairs {
		figures := p.Figures
		if len(figures) == 0 {
			figures = []Figures{{}}
		}
		for _, f := range figures {
			row := []string{p.Server, p.Client, cmp.Or(p.Status, "not run")}
			for _, c := range shown {
				text := "" // a dash
				if v, ok := f.Values[c.key]; ok {
					text = document.Fixed(v, c.digits)
				}
				row = append(row, text)
			}
			t.Add(row...)
		}
	}
	return t
}

// document returns the report of all pairs.
func (r *runner) document() *document.Document {
	d := &document.Document{
		Title: "kvferry lab matrix", Head: []string{"File: " + r.File.path, "Each figure is what the client reports, by its own definition."},
		Sections: []document.Section{{Tables: []document.Table{r.table()}}}, DataName: matrixFile,
		Data: map[string]any{"file": r.File.path, "pairs": r.pairs},
	}
	for _, p := range r.pairs {
		if p.Error != "" {
			d.Notes.Addf(document.Fault, "%s/%s: %s", p.Server, p.Client, strings.Join(strings.Fields(p.Error), " "))
		}
	}
	return d
}

// Describe prints what a run would run, pair by pair, and runs nothing. A port that is chosen
// when the server starts is PORT there.
func Describe(w io.Writer, f *File, out string, force bool) error {
	pairs, err := f.pairs(out, force)
	for i, p := range pairs {
		v := f.values(p, "PORT")
		typed := func(c Command, env map[string]string) string {
			words := append(environment(env, v), c.argv(v)...)
			return strings.Replace(strings.Join(words, " "), "/bin/sh -c ", "", 1)
		}
		server := typed(p.server.Command, p.server.Env)
		if p.server.Command.empty() {
			server = v["url"] + ", which runs already"
		}
		fmt.Fprintf(w, "pair %d/%d %s/%s: %s\n  server  %s\n  client  %s\n",
			i+1, len(pairs), p.Server, p.Client, cmp.Or(p.Status, "to run"), server, typed(p.client.command(), p.client.Env))
	}
	return err
}
