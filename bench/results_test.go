package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/client/clienttest"
	"kvferry/bench/document"
	"kvferry/load"
)

// TestRunInterrupted: what had ended is kept as it was, what was in flight is
// interrupted and no failure.
func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	f := &clienttest.Server{}
	var n atomic.Int32
	f.Behave = func(w http.ResponseWriter, r *http.Request, req *clienttest.Completion) bool {
		if n.Add(1) <= 1+12 || !strings.HasSuffix(req.ID, "-3") {
			return false
		}
		// The fourth of the second cell answers two tokens and no more.
		f.Stream(w, &clienttest.Completion{}, 2)
		w.(http.Flusher).Flush()
		if err := client.Poll(r.Context(), func() error {
			if n := len(readAll(t, dir)); n < 12+3 {
				return fmt.Errorf("%d records", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		cancel()
		<-r.Context().Done()
		return true
	}
	clienttest.NewServer(t, f)
	var stdout bytes.Buffer
	var closed atomic.Int32
	slow := scaled
	slow.QPS = 200
	r, err := Run(ctx, Config{
		Workloads: []load.Workload{slow}, Settings: settings(t, "nondisagg,chunked,rdma"), NumPrompts: 12, Out: dir, Stdout: &stdout,
		Start: serving(map[string]*clienttest.Server{"nondisagg": f, "chunked": f, "rdma": f}, &closed),
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want context.Canceled", err)
	}
	if len(r.Cells) != 2 || closed.Load() != 2 || r.Cells[0].Interrupted || !r.Cells[1].Interrupted || len(r.Cells[1].Faults) > 0 {
		t.Fatalf("%d cells, %d closed: %+v", len(r.Cells), closed.Load(), r.Summary().Rows)
	}
	s := readSummary(t, dir)
	status := map[string]int{}
	for _, r := range readAll(t, dir) {
		status[r.Status]++
		if r.Status == client.StatusInterrupted && (!strings.Contains(r.Error, "interrupted") || r.Finish == 0 || r.Sent == 0) {
			t.Errorf("record in flight: %+v", r)
		}
	}
	m := s.Rows[1].Metrics
	if len(s.Rows) != 2 || status[client.StatusOK] != 12+m.Successful || m.Successful < 3 || status[client.StatusInterrupted] != m.Interrupted || m.Interrupted < 1 || status[client.StatusFailed]+m.Failed > 0 {
		t.Errorf("records %v, %d rows, metrics %+v", status, len(s.Rows), m)
	}
	for _, want := range []string{
		"chunked *", fmt.Sprintf("interrupted after %d requests, %d of them in flight", m.Successful+m.Interrupted, m.Interrupted),
		fmt.Sprintf("Interrupted requests:                    %d", m.Interrupted),
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("stdout does not say %q:\n%s", want, stdout.String())
		}
	}
}

// TestRunKeepsEarlierResults: a folder with results of another run is refused before anything
// is run, and left as it is.
func TestRunKeepsEarlierResults(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, document.RecordsFile), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), Config{Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg"), NumPrompts: 2, Out: dir, Start: serving(nil, nil)})
	if err == nil || !strings.Contains(err.Error(), "Out: ") || !strings.Contains(err.Error(), "it has results already (results.jsonl): name another folder, or remove them") {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 || len(readAll(t, dir)) != 1 {
		t.Errorf("the folder has %v", left)
	}
}

// TestRecordsAsTheyCome: a record is in the file when its request is over, while
// others of its cell are under way.
func TestRecordsAsTheyCome(t *testing.T) {
	dir := t.TempDir()
	seen := make(chan []Record, 1)
	f := &clienttest.Server{}
	f.Behave = func(_ http.ResponseWriter, r *http.Request, req *clienttest.Completion) bool {
		if strings.HasSuffix(req.ID, "-4") { // the last one waits for the records of the others
			if err := client.Poll(r.Context(), func() error {
				records := readAll(t, dir)
				if len(records) < 4 {
					return fmt.Errorf("%d records", len(records))
				}
				seen <- records
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		return false
	}
	clienttest.NewServer(t, f)
	_, err := Run(t.Context(), Config{
		Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg"), NumPrompts: 5, Out: dir,
		Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range <-seen {
		if r.Workload != "256/q8" || r.Setting != "nondisagg" || r.Clock != ClockReal || r.Status != client.StatusOK || r.Usage == nil || r.Finish == 0 || len(r.TokenTimes) != 6 {
			t.Errorf("record %+v", r)
		}
	}
	if n := len(readAll(t, dir)); n != 5 {
		t.Errorf("%d records in the end, want 5", n)
	}
}

// TestBadOutput: results that cannot be kept are printed all the same, and the error
// comes once.
func TestBadOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(err error, stdout, progress, table string) {
		t.Helper()
		if lost := (*document.OutputError)(nil); !errors.As(err, &lost) || strings.Count(err.Error(), "not a directory") != 1 {
			t.Errorf("err = %v, want one that the folder cannot be made", err)
		}
		if !strings.Contains(stdout, table) || strings.Contains(stdout, "results:") || strings.Contains(stdout, "not a directory") {
			t.Errorf("stdout has no table, or says where nothing is:\n%s", stdout)
		}
		if strings.Count(progress, "cannot be kept") != 1 || strings.Contains(progress, "not a directory") {
			t.Errorf("progress:\n%s", progress)
		}
	}
	for _, terminal := range []bool{false, true} {
		f := clienttest.NewServer(t, &clienttest.Server{})
		var stdout, progress bytes.Buffer
		_, err := Run(t.Context(), Config{
			Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg,chunked"), NumPrompts: 5, Out: filepath.Join(file, "below"),
			Start: serving(map[string]*clienttest.Server{"nondisagg": f, "chunked": f}, nil), Stdout: &stdout, Progress: &progress, Terminal: terminal,
		})
		check(err, stdout.String(), progress.String(), "256/q8 TTFT (ms)")
	}
}

// TestReadRecords: a last line that was cut off is left out, other bad lines are errors.
func TestReadRecords(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "{}\n": 1, "{\"index\":1}\n{\"index\":2}": 2, "{\"index\":1}\n{\"index\":2,\"err": 1, "{\"index\":1}\n\n{}\n": 2, "\x00\x00": 0,
	} {
		got, err := ReadRecords(strings.NewReader(text))
		if err != nil || len(got) != want {
			t.Errorf("%q: %d records, %v; want %d", text, len(got), err, want)
		}
	}
	for text, want := range map[string]string{"{}\n{\"ind\n{}\n": "line 2", "{\"index\":\"x\"}\n": "line 1", "{}{}\n": "line 1"} {
		if _, err := ReadRecords(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// FuzzReadRecords: whatever stands in a file, what is read can be measured.
func FuzzReadRecords(f *testing.F) {
	f.Add([]byte("{\"index\":1,\"status\":\"ok\",\"token_times\":[1,2],\"usage\":{\"completion_tokens\":2}}\n{\"usage\":null}\n{\"ind"))
	f.Add([]byte("{\"status\":\"interrupted\",\"breakdown\":{\"kv_bytes\":-1}}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, _ := ReadRecords(bytes.NewReader(text))
		if m := measured(records, 1); m.Successful+m.Failed+m.Interrupted != len(records) {
			t.Errorf("%d records are %d ok, %d failed, %d interrupted", len(records), m.Successful, m.Failed, m.Interrupted)
		}
	})
}
