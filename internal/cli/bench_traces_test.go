package cli

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/nullserver"

	"kvferry/internal/otlp/otlptest"
)

// TestServeTraces: the client's spans and those of the proxy that kvferry starts are of the same
// traces.
func TestServeTraces(t *testing.T) {
	collector := otlptest.New(t)
	rows, _, stderr := rowsOf(t, 0, strings.Fields("--profile zero --kv-warm-mib 0 --num-prompts 5 --request-rate 50 --random-input-len 64 --random-output-len 4 --otlp-traces-endpoint "+collector.URL)...)
	if rows[0].Metrics["successful_requests"] != 5.0 || strings.Contains(stderr, "spans") {
		t.Fatalf("%+v\n%s", rows, stderr)
	}
	ours := map[string]string{} // ids of spans by their trace
	for _, s := range collector.Spans() {
		if s.Service == "kvferry-bench" {
			ours[s.TraceID()] = s.ID()
		}
	}
	below := 0
	for _, s := range collector.Spans() {
		if s.Service == "kvferry" && s.Kind.String() == "SPAN_KIND_SERVER" && ours[s.TraceID()] != "" {
			if below++; s.Parent() != ours[s.TraceID()] {
				t.Errorf("%v is not below the client's span", s)
			}
		}
	}
	if len(ours) != 5 || below != 5 {
		t.Errorf("%d spans of the client, %d of the proxy below them", len(ours), below)
	}
}

// TestServeTracesLost: what a collector that is not there does not take is said, on stderr and in
// the report, and is no fault of the run.
func TestServeTracesLost(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + listener.Addr().String() + "/v1/traces"
	listener.Close()
	rows, stdout, stderr := rowsOf(t, 0, strings.Fields("--base-url "+served(t, nullserver.Config{})+" --num-prompts 5 --random-input-len 64 --random-output-len 4 --otlp-traces-endpoint "+gone)...)
	const want = "traces: 0 spans exported, 5 dropped: "
	for name, text := range map[string]string{"stderr": stderr, "stdout": stdout, "summary.json": strings.Join(rows[0].Notes, "\n")} {
		if !strings.Contains(text, want) || !strings.Contains(text, "connection refused") {
			t.Errorf("no %q in %s:\n%s", want, name, text)
		}
	}
}

// TestServeTracesRefused: an endpoint that cannot be one, and a clock that has no spans.
func TestServeTracesRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--otlp-traces-endpoint localhost:4317":                        `--otlp-traces-endpoint: "localhost:4317": write the collector's URL`,
		"--clock virtual --otlp-traces-endpoint http://127.0.0.1:4318": "--otlp-traces-endpoint: virtual time has no spans",
	} {
		code, _, stderr := command(t.Context(), append([]string{"bench", "--out", filepath.Join(t.TempDir(), "out")}, strings.Fields(args)...)...)
		if code != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", args, code, ExitUsage, want, stderr)
		}
	}
}
