package rail

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
)

// TestFilesAsTheyCome: the points that have ended are on disk before the next is begun.
func TestFilesAsTheyCome(t *testing.T) {
	cfg := quick("")
	cfg.Rails, cfg.Out, cfg.Iterations = []string{Mem}, t.TempDir(), 2
	lines := 0
	cfg.Progress = writer(func(b []byte) {
		lines += bytes.Count(b, []byte("\n"))
		var r Result
		text, err := os.ReadFile(filepath.Join(cfg.Out, resultsFile))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil || len(r.Points) != lines || !r.Interrupted {
			t.Errorf("after %d points: %d, interrupted %t, %v", lines, len(r.Points), r.Interrupted, err)
		}
	})
	r, err := Run(t.Context(), cfg)
	if err != nil || lines != 2 || r.Interrupted {
		t.Errorf("%d lines, interrupted %t, %v", lines, r.Interrupted, err)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// TestBadOutput: files that cannot be written keep nothing from being measured and
// printed, and the error comes once.
func TestBadOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(out *bytes.Buffer) error{
		"transfer": func(out *bytes.Buffer) error {
			cfg := quick("")
			cfg.Rails, cfg.Out, cfg.Iterations, cfg.Stdout = []string{Mem}, filepath.Join(file, "below"), 2, out
			_, err := Run(t.Context(), cfg)
			return err
		},
		"failover": func(out *bytes.Buffer) error {
			cfg := briefly(Mem, Mem)
			cfg.Out, cfg.Stdout = filepath.Join(file, "below"), out
			_, err := Failover(t.Context(), cfg)
			return err
		},
	} {
		var out bytes.Buffer
		err := run(&out)
		if lost := (*document.OutputError)(nil); !errors.As(err, &lost) || strings.Count(err.Error(), "not a directory") != 1 {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(out.String(), " GB") || strings.Contains(out.String(), "results:") {
			t.Errorf("%s printed:\n%s", name, out.String())
		}
	}
}
