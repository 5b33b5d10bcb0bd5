package cli

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/nullserver"
)

// TestOutHasResults: every command that writes results refuses a folder that has some, of its
// own or of another command, in the same words, and leaves it as it is. Only a matrix goes on
// with its own.
func TestOutHasResults(t *testing.T) {
	dir := t.TempDir()
	pairs := filepath.Join(dir, "pairs.yaml")
	if err := os.WriteFile(pairs, []byte("servers: [{name: a, url: '"+served(t, nullserver.Config{})+"'}]\nclients: [{name: x, command: [sh, -c, exit]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	small := []string{"--num-prompts", "5", "--request-rate", "8", "--random-input-len", "32", "--random-output-len", "4", "--out"}
	for _, out := range []string{first, second} {
		if code, _, stderr := command(t.Context(), append([]string{"sim"}, append(small, out)...)...); code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
	}
	before := listed(t, first)
	for _, args := range [][]string{
		append([]string{"sim"}, append(small, first)...),
		append([]string{"sim", "--save-detailed=false"}, append(small, first)...),
		append([]string{"sim", "--sweep", "rate=1,2", "--num-prompts", "5", "--out"}, first),
		append([]string{"bench", "--clock", "virtual"}, append(small, first)...),
		{"reproduce", "mooncake", "--clock", "virtual", "--num-prompts", "5", "--out", first},
		{"compare", first, second, "--out", first},
		{"lab", "matrix", pairs, "--out", first},
		{"lab", "connectors", "--out", first},
	} {
		code, _, stderr := command(t.Context(), args...)
		want := `kvferry: --out: "` + first + `": it has results already (results.jsonl): name another folder, or remove them`
		if code != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d: %s", args, code, stderr)
		}
		if after := listed(t, first); after != before {
			t.Errorf("%q: the folder had %s, and has %s", args, before, after)
		}
	}
	for range 2 { // what is done of a matrix is kept, and not run again
		if code, _, stderr := command(t.Context(), "lab", "matrix", pairs, "--out", filepath.Join(dir, "matrix")); code != 0 {
			t.Errorf("exit %d: %s", code, stderr)
		}
	}
}

// TestOutAfterFailedStart: a run that failed before it measured anything leaves no results, so that
// the corrected line may have the same folder.
func TestOutAfterFailedStart(t *testing.T) {
	null := served(t, nullserver.Config{Key: "k"})
	noModel, _ := before(t, null, map[string]http.HandlerFunc{"/v1/completions": http.NotFound})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	starting, _ := before(t, null, map[string]http.HandlerFunc{"/health": func(w http.ResponseWriter, _ *http.Request) {
		interrupt()
		w.WriteHeader(http.StatusServiceUnavailable)
	}})
	out := filepath.Join(t.TempDir(), "out")
	serve := func(ctx context.Context, args string) (int, string) {
		code, _, stderr := command(ctx, strings.Fields("bench --num-prompts 2 --random-input-len 8 --random-output-len 4 --out "+out+" "+args)...)
		return code, stderr
	}
	for _, c := range []struct {
		ctx  context.Context
		args string
		code int
	}{
		{t.Context(), "--api-key wrong --base-url " + null, ExitFailed},
		{t.Context(), "--api-key k --base-url " + noModel, ExitFailed},
		{t.Context(), "--api-key k --base-url http://127.0.0.1:1 --ready-check-timeout-sec 0", ExitFailed},
		{t.Context(), "--api-key k --flush-cache --base-url " + null, ExitFailed},
		{ctx, "--api-key k --base-url " + starting, ExitInterrupted},
	} {
		if code, stderr := serve(c.ctx, c.args); code != c.code {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, c.code, stderr)
		}
		if files := listed(t, out); files != "" {
			t.Fatalf("%s: it left %s", c.args, files)
		}
	}
	if code, stderr := serve(t.Context(), "--api-key k --base-url "+null); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// listed are the files of a folder, with their sizes and times.
func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Name()+" "+info.ModTime().String())
	}
	return strings.Join(all, ", ")
}

// TestResultsFolder: two runs of one second do not have one folder.
func TestResultsFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	seen := map[string]bool{}
	for range 3 {
		dir := resultsFolder("")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if seen[dir] || filepath.Dir(dir) != "kvferry-out" {
			t.Errorf("%s again: %v", dir, seen)
		}
		seen[dir] = true
	}
	if dir := resultsFolder("mine"); dir != "mine" {
		t.Error(dir)
	}
}
