package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"kvferry/bench/client"
)

// captured reads one of testdata. kvferry's are of a proxy of this tree with a prefill and a
// decode node, hand-off layerwise, before and after the 20 requests of
// kvferry_records.jsonl, without Go's own metrics. vLLM's and SGLang's are written by their
// library, prometheus_client 0.26.0, with their names, labels and buckets: 200 requests of
// known values lie between each pair.
func captured(t testing.TB, name string) *Snapshot {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := ReadMetrics(f)
	if err != nil {
		t.Fatal(err)
	}
	s.URL = "http://server/metrics"
	return s
}

func between(t testing.TB, server string) ServerFigures {
	return captured(t, server+"_after").Since(captured(t, server+"_before"))
}

// want fails the test for each count that is another; a negative one must not be known.
func want(t *testing.T, f ServerFigures, counts map[string]float64) {
	t.Helper()
	for key, n := range counts {
		if got, ok := f.Counts[key]; math.Abs(got-n) > 1e-6*n || !ok {
			t.Errorf("%s: %s is %v, want %v", f.Server, key, got, n)
		}
	}
}

func TestVLLM(t *testing.T) {
	f := between(t, "vllm")
	if f.Server != "vLLM" || len(f.Back) > 0 {
		t.Fatalf("%+v", f)
	}
	want(t, f, map[string]float64{
		requests: 200, inputTokens: 200000, outputTokens: 20000, preemptions: 3, prefixQueries: 200000, prefixHits: 50000,
		kvBytes: 200 * 57344 * 1000, kvSeconds: 4, kvTransfers: 200,
	})
	if rate, ok := f.HitRate(); !ok || rate != 0.25 {
		t.Errorf("hit rate %v", rate)
	}
	if _, ok := f.Counts[remoteHits]; ok {
		t.Error("a count that the page does not have")
	}
	// Drawn from 30 to 50 ms: half of them are in the bucket from 20 to 40 ms and half in that
	// up to 60 ms.
	ttft := f.Latencies[ttft]
	if ttft.Values != 200 || ttft.MeanMS < 38 || ttft.MeanMS > 42 || ttft.P99.FromMS != 40 || ttft.P99.AboutMS < 59 || ttft.P99.ToMS != 60 {
		t.Errorf("%+v", ttft)
	}
	if e2el := f.Latencies[e2EL]; math.Abs(e2el.MeanMS-1200) > 1e-6 || e2el.Median != (quantile{1000, 1500, 1250}) {
		t.Errorf("%+v", e2el)
	}
}

// TestPromptsOnce: a prompt that two nodes have looked up in their prefix caches is one prompt.
func TestPromptsOnce(t *testing.T) {
	page := func(requests int) *Snapshot {
		s, err := ReadMetrics(strings.NewReader(fmt.Sprintf(`# TYPE kvferry:kv_bytes_total counter
kvferry:kv_bytes_total{engine="decode-0"} 0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} %d
# TYPE vllm:prompt_tokens_cached_total counter
vllm:prompt_tokens_cached_total{engine="0"} %d
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="prefill-0"} %d
vllm:prefix_cache_queries_total{engine="decode-0"} %d
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="prefill-0"} %d
vllm:prefix_cache_hits_total{engine="decode-0"} %d
`, requests*320, requests*192, requests*320, requests*288, requests*192, requests*184)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	f := page(41).Since(page(1))
	want(t, f, map[string]float64{prefixQueries: 12800, prefixHits: 7680})
	if rate, ok := f.HitRate(); !ok || rate != 0.6 {
		t.Errorf("hit rate %v", rate)
	}
}

func TestSGLang(t *testing.T) {
	f := between(t, "sglang")
	want(t, f, map[string]float64{
		requests: 200, inputTokens: 12800, outputTokens: 3200, prefixQueries: 12800, prefixHits: 6400,
		kvBytes: 200 * 40e6, kvSeconds: 1.6, kvTransfers: 200, // of one of four ranks
	})
	if f.Server != "SGLang" || math.Abs(f.Latencies[itl].MeanMS-7) > 1e-6 || math.Abs(f.Latencies[e2EL].MeanMS-1000) > 1e-6 {
		t.Errorf("%+v", f)
	}
}

// records are those of the captured run.
func records(t testing.TB) (all []*client.Record) {
	t.Helper()
	f, err := os.Open("testdata/kvferry_records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		r := new(client.Record)
		if err := d.Decode(r); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

// TestKvferry: the two accounts of a real run agree, and the server's are within the
// client's.
func TestKvferry(t *testing.T) {
	f, c := between(t, "kvferry"), ClientFiguresOf(slices.Values(records(t)))
	want(t, f, map[string]float64{
		requests: 20, inputTokens: 20 * 512, outputTokens: 20 * 16, kvTransfers: 20, kvBytes: float64(c.KVBytes),
	})
	if f.Server != "kvferry" || c.Sent != 20 || c.Answered != 20 || c.KVBytes != 20*512*57344 || c.CountedBy != client.CountUsage {
		t.Errorf("%+v\n%+v", f, c)
	}
	if s, o := f.Latencies[ttft].MeanMS, c.TTFTMS; s > o || s < 0.8*o {
		t.Errorf("mean TTFT %v ms at the server, %v at the client", s, o)
	}
	if s, o := f.Latencies[itl].MeanMS, c.ITLMS; math.Abs(s-o) > 0.1*o {
		t.Errorf("mean ITL %v ms at the server, %v at the client", s, o)
	}
	if words := JudgeServer(f, c); len(words) > 0 {
		t.Errorf("said of a run in order: %+v", words)
	}
}

// TestLlamaAndTGI: of pages as small as theirs.
func TestLlamaAndTGI(t *testing.T) {
	page := func(text string) *Snapshot {
		s, err := ReadMetrics(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	llama := "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total %d\nllamacpp:prompt_seconds_total %d\nllamacpp:tokens_predicted_total %d\n"
	f := page(fmt.Sprintf(llama, 150, 3, 40)).Since(page(fmt.Sprintf(llama, 50, 1, 8)))
	want(t, f, map[string]float64{computedTokens: 100, computeSeconds: 2, outputTokens: 32})
	if _, ok := f.Counts[inputTokens]; ok || f.Server != "llama.cpp" {
		t.Errorf("%+v", f)
	}
	tgi := "# TYPE tgi_request_count counter\ntgi_request_count %d\n# TYPE tgi_request_input_length histogram\ntgi_request_input_length_bucket{le=\"+Inf\"} 1\n" +
		"tgi_request_input_length_sum %d\ntgi_request_input_length_count 1\n# TYPE tgi_request_duration histogram\n" +
		"tgi_request_duration_bucket{le=\"0.1\"} 0\ntgi_request_duration_bucket{le=\"+Inf\"} %d\ntgi_request_duration_sum %d\ntgi_request_duration_count %d\n"
	f = page(fmt.Sprintf(tgi, 30, 700, 30, 60, 30)).Since(page(fmt.Sprintf(tgi, 10, 100, 10, 20, 10)))
	want(t, f, map[string]float64{requests: 20, inputTokens: 600})
	if e := f.Latencies[e2EL]; f.Server != "TGI" || e.Values != 20 || e.MeanMS != 2000 || e.P99 != (quantile{FromMS: 100, AboutMS: 100}) {
		t.Errorf("%+v", f)
	}
}

// TestWentBack: a restarted server's counters are left out and said.
func TestWentBack(t *testing.T) {
	f := captured(t, "vllm_before").Since(captured(t, "vllm_after"))
	if _, ok := f.Counts[requests]; ok || !slices.Contains(f.Back, "vllm:request_success_total") || f.Latencies[ttft].Values != 0 {
		t.Errorf("%+v", f)
	}
	if _, ok := f.Counts[kvFailures]; ok {
		t.Error("a count that neither page has")
	}
}

func TestQuantile(t *testing.T) {
	h := histogram{count: 10, bounds: []float64{1, 2, 4, math.Inf(1)}, below: []float64{0, 5, 9, 10}}
	for share, want := range map[float64]quantile{
		0.25: {100, 200, 150}, 0.5: {100, 200, 200}, 0.7: {200, 400, 300}, 0.9: {200, 400, 400}, 0.99: {FromMS: 400, AboutMS: 400},
	} {
		if q := h.quantile(share, 100); math.Abs(q.AboutMS-want.AboutMS) > 1e-9 || q.FromMS != want.FromMS || q.ToMS != want.ToMS {
			t.Errorf("%v: %+v, want %+v", share, q, want)
		}
	}
	if l := (histogram{}).latency(1); l != (latency{}) {
		t.Errorf("of nothing: %+v", l)
	}
	if q := (histogram{count: 3}).quantile(0.5, 1); q != (quantile{}) {
		t.Errorf("without buckets: %+v", q)
	}
	// An engine that came later has buckets of its own.
	d, ok := histogram{count: 7, sum: 9, bounds: []float64{1, 2, math.Inf(1)}, below: []float64{2, 6, 7}}.since(
		histogram{count: 3, sum: 4, bounds: []float64{2, math.Inf(1)}, below: []float64{3, 3}})
	if !ok || d.count != 4 || d.sum != 5 || !slices.Equal(d.below, []float64{2, 3, 4}) {
		t.Errorf("%+v", d)
	}
}

// TestServersThatDoNotPlay: no page, an error, nonsense and an endless page are said, and
// fail nothing.
func TestServersThatDoNotPlay(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"none":      {http.NotFound, "answers 404"},
		"broken":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "answers 500"},
		"html":      {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>hello</html>") }, "not Prometheus"},
		"empty":     {func(http.ResponseWriter, *http.Request) {}, "no metrics in it"},
		"strangers": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "go_goroutines 3\n") }, "none of a server that is known"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "vllm:prompt_tokens_total 3\n")
		}, "unexpected EOF"},
	} {
		server := httptest.NewServer(c.answer)
		run := StartScrape(t.Context(), server.Client(), []MetricsPage{{URL: server.URL + "/metrics"}})
		r := run.After(t.Context(), ClientFigures{Sent: 10, Answered: 10})
		if len(r.Missing) != 1 || !strings.Contains(r.Missing[0], c.want) || !strings.Contains(r.Missing[0], "/metrics") || len(r.Tables()) != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		server.Close()
	}
	// What answers say needs no page.
	r := StartScrape(t.Context(), http.DefaultClient, nil).After(t.Context(), ClientFigures{WholeMS: 9, Timed: timed{Answers: 3, BusyMS: 10, Longer: 3}})
	if len(r.Words) != 1 || len(r.Missing) != 0 || len(r.Tables()) != 1 || !strings.Contains(r.Tables()[0].Text(), "Timings in 3 answers") {
		t.Errorf("%+v", r)
	}
	// Nobody listens any more.
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	if r := StartScrape(t.Context(), http.DefaultClient, []MetricsPage{{URL: server.URL}}).After(t.Context(), ClientFigures{}); len(r.Missing) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestRun: the header goes with each fetch, and a server that counts late is asked again.
func TestRun(t *testing.T) {
	before, _ := os.ReadFile("testdata/vllm_before.txt")
	after, _ := os.ReadFile("testdata/vllm_after.txt")
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if asked.Add(1) <= 3 {
			w.Write(before)
			return
		}
		w.Write(after)
	}))
	defer server.Close()
	run := StartScrape(context.Background(), server.Client(), []MetricsPage{{server.URL, http.Header{"Authorization": {"Bearer key"}}}})
	r := run.After(context.Background(), ClientFigures{
		Sent: 200, Answered: 200, InputTokens: 200000, OutputTokens: 20000, CountedBy: client.CountUsage,
		TTFTMS: 45, ITLMS: 12.1, E2ELMS: 1250, WholeMS: 1251, WantedHitRate: 0.25,
	})
	if asked.Load() != 4 || len(r.Server) != 1 || len(r.Words) != 0 || len(r.Missing) != 0 {
		t.Fatalf("asked %d times: %+v", asked.Load(), r)
	}
	text := r.Tables()[0].Text()
	for _, want := range []string{"vLLM's own figures", "Mean TTFT (ms)", "25.0 wanted", "KV moved", "Preemptions"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	t.Log("\n" + text)
	if text, err := json.Marshal(r); err != nil || !bytes.Contains(text, []byte(`"mean_ttft_ms"`)) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestEndlessPage: a page that does not end is left, whatever is in it.
func TestEndlessPage(t *testing.T) {
	_, err := read(io.MultiReader(strings.NewReader("# "), endless{}), 1<<20)
	if err == nil || !strings.Contains(err.Error(), "more than 1 MiB") {
		t.Error(err)
	}
}

// endless has any number of letters.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

func TestNICs(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }
	tree := fstest.MapFS{
		"net/eth0/statistics/rx_bytes":                       file("1000"),
		"net/eth0/statistics/tx_bytes":                       file("500"),
		"net/bad/statistics/rx_bytes":                        file("many"),
		"net/bad/statistics/tx_bytes":                        file("1"),
		"infiniband/mlx5_0/ports/1/counters/port_rcv_data":   file("250"),
		"infiniband/mlx5_0/ports/1/counters/port_xmit_data":  file("100"),
		"infiniband/mlx5_1/ports/1/counters/unlike_the_rest": file("1"),
	}
	before := readNICs(tree)
	if len(before) != 2 || before["eth0"] != (traffic{1000, 500}) || before["mlx5_0/1"] != (traffic{1000, 400}) {
		t.Fatalf("%+v", before)
	}
	tree["net/eth0/statistics/rx_bytes"] = file("1100")
	tree["net/eth0/statistics/tx_bytes"] = file("5500")
	tree["net/eth1/statistics/rx_bytes"] = file("7") // came up in the run
	tree["net/eth1/statistics/tx_bytes"] = file("7")
	d := readNICs(tree).Since(before)
	if len(d) != 2 || d["eth0"] != (traffic{100, 5000}) || d.Most() != 5000 {
		t.Errorf("%+v", d)
	}
	if readNICs(fstest.MapFS{}).Most() != 0 {
		t.Error("bytes of no NIC")
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"vllm_after", "sglang_after", "kvferry_after"} {
		text, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text[:2000])
	}
	f.Add([]byte("vllm:nixl_bytes_transferred_sum NaN\n"))
	f.Add([]byte("# TYPE vllm:time_to_first_token_seconds histogram\nvllm:time_to_first_token_seconds_bucket{le=\"NaN\"} -1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ReadMetrics(bytes.NewReader(text))
		if err != nil {
			return
		}
		empty := &Snapshot{}
		figures := s.Since(empty)
		JudgeServer(figures, ClientFigures{Sent: 3, Answered: 3, WantedHitRate: 0.5})
		r := ServerReport{Server: []ServerFigures{figures, s.Since(s)}}
		for _, table := range r.Tables() {
			table.Text()
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("not for JSON: %v", err)
		}
	})
}

// TestImpossibleFigures: a page may say any float. What is made of it is finite, or left out, and can be
// written as JSON.
func TestImpossibleFigures(t *testing.T) {
	for _, n := range []string{"1e308", "-1e308", "NaN", "+Inf", "-Inf"} {
		page := fmt.Sprintf(`# TYPE sglang:kv_transfer_total_mb histogram
sglang:kv_transfer_total_mb_bucket{le="%[1]s"} 1
sglang:kv_transfer_total_mb_bucket{le="+Inf"} 1
sglang:kv_transfer_total_mb_sum %[1]s
sglang:kv_transfer_total_mb_count 1
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="%[1]s"} 1
sglang:time_to_first_token_seconds_bucket{le="+Inf"} 2
sglang:time_to_first_token_seconds_sum 1
sglang:time_to_first_token_seconds_count 2
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total %[1]s
`, n)
		after, err := ReadMetrics(strings.NewReader(page))
		if err != nil {
			continue // it is no page then
		}
		before, err := ReadMetrics(strings.NewReader("# TYPE sglang:x counter\nsglang:x 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(after.Since(before)); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
}
