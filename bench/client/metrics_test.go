package client

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Two requests worked out by hand, one of a single token (no TPOT, no ITL) and
// one that failed and must count nowhere but in Failed and the send delay.
func TestMeasure(t *testing.T) {
	records := []Record{
		{
			Intended: 0, Sent: 0.001, FirstToken: 0.101, TokenTimes: []float64{0.101, 0.121, 0.151},
			Usage:     &Usage{PromptTokens: 100, CompletionTokens: 3},
			Breakdown: &Breakdown{ProxyUS: 1000, PrefillUS: 40000, WireUS: 2000, KVBytes: 500, KVBlocksChecked: 7},
		},
		{
			Intended: 1, Sent: 1, FirstToken: 1.3, TokenTimes: []float64{1.3},
			Usage:     &Usage{PromptTokens: 50, CompletionTokens: 1},
			Breakdown: &Breakdown{ProxyUS: 3000, PrefillUS: 60000, KVBytes: 250, KVBlocksChecked: 3, KVBlocksBad: 1, Retries: 1},
		},
		{
			Intended: 1.5, Sent: 1.51, FirstToken: 1.6, TokenTimes: []float64{1.6}, Error: "stream ended",
			Usage: nil,
		},
	}
	m := measure(records, 2)
	want := Metrics{
		Figures: Figures{
			DurationS: 2, RequestThroughput: 1, OutputThroughput: 2, TotalThroughput: 77,
			MeanTTFTMS: 200, MedianTTFTMS: 200, P99TTFTMS: 298,
			MeanTPOTMS: 25, MedianTPOTMS: 25, P99TPOTMS: 25,
			MeanITLMS: 25, MedianITLMS: 25, P99ITLMS: 29.9,
		},
		Counts:  Counts{Successful: 2, InputTokens: 150, GeneratedTokens: 4},
		Failed:  1,
		KVBytes: 750, KVBlocksChecked: 10, KVBlocksBad: 1, Retries: 1,
		P99SendDelayMS: 9.82, MaxSendDelayMS: 10,
	}
	stages := m.Stages
	m.Stages = nil
	if !reflect.DeepEqual(m, want) {
		t.Errorf("metrics = %+v\nwant      %+v", m, want)
	}
	if stages == nil || *stages != (Stages{Proxy: 2, Prefill: 50, Wire: 1}) {
		t.Errorf("stages = %+v", stages)
	}
}

// A record may come from a file: one without usage or without tokens is none of a
// request that was served.
func TestMeasureIncompleteRecords(t *testing.T) {
	m := measure([]Record{
		{TokenTimes: []float64{1}},
		{Usage: &Usage{PromptTokens: 1, CompletionTokens: 2}},
		{},
		{TokenTimes: []float64{1, 2}, FirstToken: 1, Usage: &Usage{PromptTokens: 1, CompletionTokens: 2}},
	}, 1)
	if m.Failed != 3 || m.Successful != 1 || m.MeanTPOTMS != 1000 {
		t.Errorf("metrics = %+v", m)
	}
}

func TestMeasureNothing(t *testing.T) {
	if m := measure(nil, 0); !reflect.DeepEqual(m, Metrics{}) {
		t.Errorf("metrics of no records = %+v", m)
	}
}

// TestUnknownParts: what a server does not know of a request is null in files, and in no mean.
func TestUnknownParts(t *testing.T) {
	var m Meter
	for _, breakdown := range []string{
		`{"proxy_us":1000,"queue_us":null,"prefill_us":5000,"wire_us":null,"kv_bytes":null,"kv_blocks_checked":null}`,
		`{"proxy_us":3000,"queue_us":null,"prefill_us":null,"wire_us":4000,"kv_bytes":7,"kv_blocks_checked":2}`,
	} {
		r := Record{Status: StatusOK, Usage: &Usage{PromptTokens: 1, CompletionTokens: 1}, TokenTimes: []float64{1}, FirstToken: 1, CountedBy: CountUsage, InputTokens: 1, OutputTokens: 1}
		if err := json.Unmarshal([]byte(breakdown), &r.Breakdown); err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(r.Breakdown); err != nil || !strings.Contains(string(text), `"queue_us":null`) {
			t.Errorf("%s, %v", text, err)
		}
		m.Add(&r)
	}
	got := m.Metrics(1)
	if got.KVBytes != 7 || got.KVBlocksChecked != 2 || got.KVUnknown != 1 || got.Stages == nil {
		t.Fatalf("%+v", got)
	}
	text, err := json.Marshal(got.Stages)
	if want := `{"proxy":2,"queue":null,"prefill":5,"post":0,"wire":4,"land":0,"first_decode":0}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}
