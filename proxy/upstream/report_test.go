package upstream

import (
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"kvferry/internal/clock"
	"kvferry/proxy/openai"
)

// TestReportsTo: engines are told an address at which they reach this proxy, and none if they do not.
func TestReportsTo(t *testing.T) {
	for _, tc := range []struct{ listens, here, report, want string }{
		{"127.0.0.1:8000", "127.0.0.1", "", "http://127.0.0.1:8000"},
		{"127.0.0.1:8000", "10.0.0.1", "", ""}, // the engine is on another machine
		{"10.0.0.7:8000", "10.0.0.1", "", "http://10.0.0.7:8000"},
		{"0.0.0.0:8000", "10.0.0.1", "", "http://10.0.0.1:8000"},
		{"[::]:8000", "127.0.0.1", "", "http://127.0.0.1:8000"},
		{"[::]:8000", "fd00::1", "", "http://[fd00::1]:8000"},
		{"127.0.0.1:8000", "10.0.0.1", "gateway:80/kv/", "http://gateway:80/kv"},
	} {
		e := newUp(t, clock.Std(), URLs{Both: []string{"a:1"}, Report: tc.report})
		e.cfg.Listens = func() string { return tc.listens }
		e.all[0].here = netip.MustParseAddr(tc.here)
		if got := e.reportsTo(e.all[0]); got != tc.want {
			t.Errorf("%v: %q", tc, got)
		}
		if n := testing.AllocsPerRun(10, func() { e.reportsTo(e.all[0]) }); tc.report != "" && n > 0 {
			t.Errorf("%v: %v allocations a request: it is read again", tc, n)
		}
	}
}

// TestReports: one report is taken of who was asked for it, while it is waited for.
func TestReports(t *testing.T) {
	e := newUp(t, clock.Std(), URLs{Both: []string{"a:1"}, Report: "x:1"})
	post := func(r *Request, body string) int {
		w := httptest.NewRecorder()
		e.ServeReport(w, httptest.NewRequest("POST", ReportPath+r.word, strings.NewReader(body)))
		return w.Code
	}
	asked := func() *Request {
		r := parse(t, openai.Completion, `{"prompt":"x"}`)
		v := &visit{engine: e.all[0]}
		if got := string(e.wantReport(r, v, []byte(`{"a":1}`))); got != `{"a":1,"report_url":"http://x:1`+ReportPath+r.word+`"}` || len(r.word) != 32 {
			t.Fatal(got)
		}
		return r
	}
	r, other := asked(), asked()
	if r.word == other.word || post(&Request{word: "guess"}, `{}`) != 404 {
		t.Error("a word can be guessed")
	}
	if post(r, `{"wire_us":7,"request_id":"x"}`) != 200 || post(r, `{"wire_us":8}`) != 404 {
		t.Error("it is not taken once")
	}
	if r.awaitReport(t.Context()); r.took.Wire == nil || *r.took.Wire != 7 {
		t.Errorf("%+v", r.took)
	}
	if post(other, `{"wire_us":"`+strings.Repeat("x", maxReport)+`"}`) != 400 {
		t.Error("a report may be as long as it likes")
	}
	late := asked()
	if e.endReport(late); post(late, `{}`) != 404 {
		t.Error("it is taken when nobody waits")
	}
	before := asked()
	word := before.word
	if e.wantReport(before, &visit{engine: e.all[0]}, []byte(`{}`)); post(&Request{word: word}, `{}`) != 404 || post(before, `{}`) != 200 {
		t.Error("what an attempt before has transferred is taken for this one's")
	}
}

// TestRace: who comes first has won, and the other knows.
func TestRace(t *testing.T) {
	var r race
	if !r.wins(answered) || r.wins(lost) || !r.wins(answered) {
		t.Error("an answer that has begun is lost")
	}
	r = race{}
	if !r.wins(lost) || r.wins(answered) || !(*race)(nil).wins(answered) {
		t.Error("an answer that is given up goes on")
	}
}
