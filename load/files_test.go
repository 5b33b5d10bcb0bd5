package load_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/load"
	"kvferry/load/loadtest"
)

// fromFile are the kinds that read a file of their own, with one of them.
var fromFile = map[string]func(t *testing.T) (load.Spec, loadtest.Bounds){
	"timed_trace": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{File: trace(t), Speed: 2, Vocab: vocab, TimedTrace: load.TimedTrace{ChunkSize: 512, SecMultiplier: 0.001}},
			loadtest.Bounds{Requests: requests, Prompt: 600, MaxTokens: 30, Vocab: vocab}
	},
	"mooncake": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{File: trace(t), Vocab: vocab, Mooncake: load.Mooncake{Slowdown: 1, Rounds: 2}},
			loadtest.Bounds{Requests: 2 * requests, MaxTokens: 30, Texts: true}
	},
	"azure": func(t *testing.T) (load.Spec, loadtest.Bounds) {
		return load.Spec{File: lines(t, "TIMESTAMP,ContextTokens,GeneratedTokens", func(i int) string {
			return fmt.Sprintf("%s,%d,%d", time.Date(2023, 11, 16, 18, 15, 46, 0, time.UTC).Add(time.Duration(i)*time.Second).Format(time.DateTime+".0000000"), 500+i, 1+i%30)
		}), Speed: 2, Vocab: vocab}, loadtest.Bounds{Requests: requests, Prompt: 1500, MaxTokens: 30, Vocab: vocab}
	},
}

// lines writes a file of as many lines as there are requests, below a first one.
func lines(t *testing.T, first string, line func(i int) string) string {
	t.Helper()
	all := []string{first}
	for i := range requests {
		all = append(all, line(i))
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(strings.Join(all, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
