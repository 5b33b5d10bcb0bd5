package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
	"kvferry/internal/proc"
)

// This binary is a server and a client too: {kvferry} of the files here.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "fake-server":
			fakeServer(os.Args[2], os.Args[3:])
		case "ask":
			ask(os.Args[2])
		}
	}
	// Under the race detector each process would stay for a second more, and these are many.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

// ask prints what a server answers; it waits for one that does not listen yet.
func ask(url string) {
	tick := time.NewTicker(10 * time.Millisecond)
	for range 1000 {
		answer, err := http.Get(url)
		if err == nil {
			_, _ = io.Copy(os.Stdout, answer.Body)
			os.Exit(0)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break // it died
		}
		<-tick.C
	}
	os.Exit(1)
}

// fakeServer answers 200 at an address, counts its requests, and dies when it is asked for
// /die. "says" is what it prints when it listens.
func fakeServer(addr string, says []string) {
	asked := 0
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		asked++
		fmt.Fprintf(w, "%d", asked)
	})
	http.HandleFunc("/die", func(http.ResponseWriter, *http.Request) { os.Exit(9) })
	fmt.Println(strings.Join(says, " "))
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, nil))
	os.Exit(1)
}

// patience bounds every wait of a test. It is no measure of speed.
const patience = time.Minute

// A server and a client of the files here. The client reports the count that the server answers.
const (
	oneServer = `{name: a, command: "exec {kvferry} fake-server {host}:{port} listening", ready: {line: "^listening$", url: "{url}/", within: 1m}}`
	oneClient = `{name: x, command: "{kvferry} ask {url}/ > {out}/count; echo '== Serving Benchmark Result =='; echo \"Mean TTFT (ms): $(cat {out}/count) \""}`
)

func file(t *testing.T, servers, clients string) *File {
	t.Helper()
	f, err := parse(filepath.Join(t.TempDir(), "m.yaml"), []byte("servers:\n"+servers+"\nclients:\n"+clients+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs a file and returns what it printed.
func run(ctx context.Context, f *File, out string, force bool) (stdout, progress string, err error) {
	var o, p bytes.Buffer
	err = Run(ctx, Config{File: f, Out: out, Force: force, Resume: "the same", Stdout: &o, Progress: &p})
	return o.String(), p.String(), err
}

// pairOf reads the pair.json of a pair.
func pairOf(t *testing.T, out, server, client string) *Pair {
	t.Helper()
	p, err := readPair(filepath.Join(out, server, client))
	if err != nil || p.Status == "" {
		t.Fatalf("%s/%s: %v, %v", server, client, p, err)
	}
	return p
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestRun: pairs that go well, a server that does not come up, a client that fails, one that
// hangs and one that has no program: each fails what is its own and nothing else.
func TestRun(t *testing.T) {
	out := t.TempDir()
	f := file(t, "- "+oneServer+`
- {name: broken, command: "echo no weights; echo >> tries; exit 3", ready: {line: x}}
- {name: slow, command: "sleep 100", ready: {line: x, within: 50ms}}
- {name: missing, command: [/no/such/program], ready: {line: x}}`, "- "+oneClient+`
- {name: fails, command: "echo bad flag >&2; exit 7"}
- {name: hangs, command: [sleep, "100"], within: 100ms}
- {name: missing, command: [/no/such/program]}`)
	stdout, progress, err := run(t.Context(), f, out, false)
	if err == nil || err.Error() != "15 of 16 pairs failed; their folders say why" {
		t.Fatalf("%v\n%s", err, progress)
	}
	for pair, want := range map[string]string{
		"a/x": "", "a/fails": "the client: exit status 7; the last line of its stderr: bad flag", "a/hangs": "the client did not end within 100ms",
		"a/missing": "/no/such/program", "broken/x": "exit status 3; the last line of " + filepath.Join(out, "broken", "x", "server.log") + ": no weights",
		"broken/fails": "the server is not there: ended by itself", "slow/x": `it is not ready within 50ms: no line of its output has "x"`, "missing/hangs": "/no/such/program",
	} {
		s, c, _ := strings.Cut(pair, "/")
		p := pairOf(t, out, s, c)
		if (want == "") != (p.Status == StatusDone) || !strings.Contains(p.Error, want) {
			t.Errorf("%s: %s: %s, want %q", pair, p.Status, p.Error, want)
		}
	}
	if tries, err := os.ReadFile(filepath.Join(f.dir, "tries")); string(tries) != "\n" {
		t.Errorf("a server that does not come up was tried again: %q, %v", tries, err)
	}
	// What is kept: the server's output, the client's, what was run, and figures.
	p := pairOf(t, out, "a", "x")
	if log, err := os.ReadFile(filepath.Join(out, "a", "x", serverFile)); err != nil || string(log) != "listening\n" {
		t.Errorf("%s: %q, %v", serverFile, log, err)
	}
	if len(p.Figures) != 1 || p.Figures[0].Values["mean_ttft_ms"] != 2 || p.ServerStop != "" || !strings.Contains(p.ClientCommand[2], p.URL) {
		t.Errorf("%+v", p)
	}
	for _, want := range []string{"4 servers x 4 clients", "mean TTFT ms", "results: " + out} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if n := strings.Count(progress, "pair "); n != 16 || !strings.Contains(progress, "pair 1/16 a/x: done") || !strings.Contains(progress, " left") {
		t.Errorf("%d pairs in\n%s", n, progress)
	}
	var matrix struct{ Pairs []*Pair }
	text, err := os.ReadFile(filepath.Join(out, matrixFile))
	if err != nil || json.Unmarshal(text, &matrix) != nil || len(matrix.Pairs) != 16 {
		t.Errorf("%s: %v: %s", matrixFile, err, text)
	}
	for _, name := range []string{document.TableFile, document.ReportFile} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || !strings.Contains(string(text), "bad flag") {
			t.Errorf("%s: %v: %s", name, err, text)
		}
	}
}

// TestResume: what is done is not run again, unless its command line has changed or it is
// forced; what failed is.
func TestResume(t *testing.T) {
	out := t.TempDir()
	mark := filepath.Join(t.TempDir(), "mark")
	again := fmt.Sprintf(`{name: again, command: "test -e %s"}`, mark)
	servers := "- " + oneServer
	ran := func(f *File, force bool, want string) {
		t.Helper()
		_, progress, err := run(t.Context(), f, out, force)
		var names []string
		for line := range strings.Lines(progress) {
			if _, rest, ok := strings.Cut(line, "pair "); ok && !strings.Contains(line, "already") {
				name, status, _ := strings.Cut(rest, ": ")
				_, name, _ = strings.Cut(name, " a/")
				names = append(names, name+" "+strings.Fields(strings.TrimRight(strings.ReplaceAll(status, ",", " "), "\n"))[0])
			}
		}
		if got := strings.Join(names, "; "); got != want || (err == nil) == strings.Contains(want, "failed") {
			t.Errorf("%q, want %q: %v\n%s", got, want, err, progress)
		}
	}
	f := file(t, servers, "- "+oneClient+"\n- "+again)
	ran(f, false, "x done; again failed")
	writeFile(t, filepath.Join(out, "a", "again", "result", "stale.json"), `{"completed": 1, "duration": 1, "total_token_throughput": 1}`)
	writeFile(t, mark, "")
	ran(f, false, "again done")
	if got := pairOf(t, out, "a", "again").Figures; len(got) != 0 {
		t.Errorf("figures of the run before: %+v", got)
	}
	ran(f, false, "")
	ran(f, true, "x done; again done")
	ran(file(t, servers, "- "+strings.Replace(oneClient, "ask {url}", "ask  {url}", 1)+"\n- "+again), false, "x done")

	// A folder of something else is left alone.
	other := filepath.Join(t.TempDir(), "out")
	writeFile(t, filepath.Join(other, "a", "x", "thesis.tex"), "years of work")
	_, _, err := run(t.Context(), f, other, false)
	if text, _ := os.ReadFile(filepath.Join(other, "a", "x", "thesis.tex")); err == nil || string(text) != "years of work" {
		t.Errorf("%v: %q", err, text)
	}
}

// TestShare: one process serves all clients, and its log is kept once; by default each client
// has a server that has served nobody else. A shared one that dies is started again.
func TestShare(t *testing.T) {
	counts := func(share string) (counts []float64, out string) {
		out = t.TempDir()
		s := strings.Replace(oneServer, "{name: a,", "{name: a, share: "+share+",", 1)
		f := file(t, "- "+s, "- "+oneClient+"\n- "+strings.Replace(oneClient, "name: x", "name: y", 1))
		if _, progress, err := run(t.Context(), f, out, false); err != nil {
			t.Fatal(err, progress)
		}
		if err := answers(t.Context(), pairOf(t, out, "a", "y").URL, ""); err == nil {
			t.Errorf("share %s: the server is left", share)
		}
		for _, c := range []string{"x", "y"} {
			counts = append(counts, pairOf(t, out, "a", c).Figures[0].Values["mean_ttft_ms"])
		}
		return counts, out
	}
	if got, _ := counts("false"); got[0] != 2 || got[1] != 2 { // the first is the ready URL's
		t.Errorf("servers of their own answer %v", got)
	}
	got, out := counts("true")
	if got[0] != 2 || got[1] != 3 {
		t.Errorf("a shared server answers %v", got)
	}
	if _, err := os.Stat(filepath.Join(out, "a", serverFile)); err != nil {
		t.Error(err)
	}

	out = t.TempDir()
	s := strings.Replace(oneServer, "{name: a,", "{name: a, share: true,", 1)
	f := file(t, "- "+s, `- {name: kills, command: "{kvferry} ask {url}/die; exec sleep 100"}`+"\n- "+oneClient)
	_, progress, err := run(t.Context(), f, out, false)
	if err == nil || !strings.HasPrefix(err.Error(), "1 of 2 pairs failed") {
		t.Fatalf("%v\n%s", err, progress)
	}
	if p := pairOf(t, out, "a", "kills"); !strings.Contains(p.Error, "the server ended by itself: exit status 9 meanwhile") {
		t.Errorf("%+v", p)
	}
	if p := pairOf(t, out, "a", "x"); p.Status != StatusDone {
		t.Errorf("%+v", p)
	}
}

// TestRunning: a server that runs already is asked and left alone.
func TestRunning(t *testing.T) {
	port, err := config.FreePort(DefaultHost)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Start(t.Context(), proc.Cmd{Args: []string{os.Args[0], "fake-server", fmt.Sprintf("%s:%d", DefaultHost, port)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	out := t.TempDir()
	f := file(t, fmt.Sprintf(`- {name: a, url: "http://127.0.0.1:%d"}`, port), "- "+oneClient+
		"\n"+`- {name: parts, command: "echo {host} {port} $U", env: {U: "{url}"}}`)
	if _, progress, err := run(t.Context(), f, out, false); err != nil {
		t.Fatal(err, progress)
	}
	if got := pairOf(t, out, "a", "x").Figures[0].Values["mean_ttft_ms"]; got != 1 {
		t.Errorf("the %v-th answer", got)
	}
	if text, _ := os.ReadFile(filepath.Join(out, "a", "parts", stdoutFile)); string(text) != fmt.Sprintf("127.0.0.1 %d http://127.0.0.1:%d\n", port, port) {
		t.Errorf("%q", text)
	}
	select {
	case <-p.Done():
		t.Error("the server was stopped")
	default:
	}
}

// TestRunningGone: a server of others that is not there is waited for once, and no client is.
func TestRunningGone(t *testing.T) {
	port, err := config.FreePort(DefaultHost)
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	f := file(t, fmt.Sprintf(`- {name: a, url: "http://127.0.0.1:%d", ready: {within: 50ms}}`, port), `- {name: x, command: "true"}
- {name: y, command: "true"}`)
	if _, progress, err := run(t.Context(), f, out, false); err == nil || !strings.HasPrefix(err.Error(), "2 of 2 pairs failed") {
		t.Fatalf("%v\n%s", err, progress)
	}
	for _, client := range []string{"x", "y"} {
		p := pairOf(t, out, "a", client)
		if !strings.Contains(p.Error, "the server is not there: it is not ready within 50ms: ") || p.ClientCommand != nil {
			t.Errorf("%s: %s, client %v", client, p.Error, p.ClientCommand)
		}
	}
}

// TestInterrupted: what is done is kept, the error says how to go on, and the same command does.
func TestInterrupted(t *testing.T) {
	out := t.TempDir()
	mark := filepath.Join(t.TempDir(), "mark")
	f := file(t, "- "+oneServer, "- "+oneClient+fmt.Sprintf("\n- {name: long, command: \"test -e %s || { echo begun; exec sleep 100; }\"}\n- {name: last, command: \"true\"}", mark))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, _, err := run(ctx, f, out, false)
		stopped <- err
	}()
	eventually(t, "the second client", func() bool {
		text, _ := os.ReadFile(filepath.Join(out, "a", "long", stdoutFile))
		return string(text) == "begun\n"
	})
	// A second run in the same folder would mix with it.
	if _, _, err := run(t.Context(), f, out, false); err == nil || !strings.Contains(err.Error(), "another kvferry lab matrix is at work there") {
		t.Errorf("a second run: %v", err)
	}
	cancel()
	var how *Interrupted
	if err := <-stopped; !errors.As(err, &how) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 of 3 pairs are done and kept; go on with: the same") {
		t.Errorf("%v", err)
	}
	if p := pairOf(t, out, "a", "long"); p.Status != StatusInterrupted || p.Error != "" {
		t.Errorf("%+v", p)
	}
	writeFile(t, mark, "")
	stdout, progress, err := run(t.Context(), f, out, false)
	if err != nil || strings.Count(progress, "done") != 3 || strings.Count(stdout, " done") != 3 {
		t.Errorf("%v\n%s%s", err, progress, stdout)
	}
	// Interrupted before anything: nothing is touched.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := run(over, f, out, true); !errors.As(err, &how) {
		t.Error(err)
	}
	empty := t.TempDir()
	_, _, err = run(over, f, empty, false)
	if _, missing := os.Stat(filepath.Join(empty, matrixFile)); !errors.As(err, &how) || missing != nil {
		t.Errorf("%v, %v", err, missing)
	}
	if p := pairOf(t, out, "a", "x"); p.Status != StatusDone {
		t.Errorf("%+v", p)
	}
}

// TestDescribe: a dry run says what would be run, and makes nothing.
func TestDescribe(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	f := file(t, "- "+oneServer+"\n"+`- {name: b, url: "http://h:1", ready: {url: "{url}/health"}}`, "- "+oneClient+"\n- {name: s, bench: --num-prompts 3, env: {U: \"{url}\"}}")
	var b bytes.Buffer
	if err := Describe(&b, f, out, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"pair 1/4 a/x: to run", "fake-server 127.0.0.1:PORT listening",
		"U=http://h:1 exec " + os.Args[0] + " bench --base-url http://h:1 --out " + filepath.Join(out, "b", "s", "result") + " --num-prompts 3", "http://h:1, which runs already",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
}

// TestLost: where results cannot be kept, the error says so.
func TestLost(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	writeFile(t, blocked, "")
	_, _, err := run(t.Context(), file(t, "- "+oneServer, "- "+oneClient), filepath.Join(blocked, "out"), false)
	if lost := (*document.OutputError)(nil); !errors.As(err, &lost) {
		t.Error(err)
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s does not come", what)
		}
	}
}
