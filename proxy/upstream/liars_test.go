package upstream_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/proxy/upstream"
)

// events is an engine's answer.
func events(events ...string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Join(events, ""))
	}
}

// text is an event with a token of choice 0.
func text(token, finish string) string {
	if finish = `"` + finish + `"`; finish == `""` {
		finish = "null"
	}
	return fmt.Sprintf(`data: {"id":"x","choices":[{"index":0,"text":%q,"finish_reason":%s}]}`+"\n\n", token, finish)
}

// TestWrongAnswers: answers in which tokens are missing, doubled or another request's are errors, whatever else the
// events that have them say, and however many choices were asked for.
func TestWrongAnswers(t *testing.T) {
	const done, one = "data: [DONE]\n\n", `{"prompt":"p","stream":true,"max_tokens":2}`
	whole := func(answer string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, _ string) { _, _ = io.WriteString(w, answer) }
	}
	for name, tc := range map[string]struct {
		body   string
		answer func(http.ResponseWriter, string)
	}{
		"another's behind a comment":  {one, events(text(" a", ""), ": ping\n"+strings.Replace(text(" b", "length"), `"x"`, `"other"`, 1), done)},
		"a token behind the end":      {one, events(text(" a", "length"), ": ping\n"+text(" b", ""), done)},
		"an error behind a comment":   {one, events(text(" a", ""), ": ping\ndata: {\"error\":{\"message\":\"boom\"}}\n\n", text(" b", "length"), done)},
		"the end behind a comment":    {one, events(text(" a", ""), ": x\n"+done, text(" b", "length"), done)},
		"JSON of two lines":           {one, events(text(" a", ""), strings.Replace(text(" b", "length"), ",", ",\n", 1), done)},
		"JSON with a carriage return": {one, events(text(" a", ""), strings.Replace(text(" b", "length"), ",", ",\r", 1), done)},
		"one choice of two":           {`{"prompt":"p","n":2,"max_tokens":2}`, whole(`{"id":"x","choices":[{"index":0,"text":" a b","finish_reason":"length"}]}`)},
		"one prompt of two":           {`{"prompt":["p","q"],"max_tokens":2}`, whole(`{"id":"x","choices":[{"index":0,"text":" a b","finish_reason":"length"}]}`)},
		"an unfinished choice":        {`{"prompt":"p","n":2,"stream":true,"max_tokens":2}`, events(text(" a", "length"), strings.Replace(text(" z", ""), `"index":0`, `"index":1`, 1), done)},
		"a third choice of two":       {`{"prompt":"p","n":2,"stream":true,"max_tokens":2}`, events(text(" a", "length"), strings.Replace(text(" z", "length"), `"index":0`, `"index":2`, 1), done)},
		"two choices for one":         {`{"prompt":"p","max_tokens":2}`, whole(`{"id":"x","choices":[{"index":0,"text":" a"},{"index":0,"text":" b","finish_reason":"length"}]}`)},
		"counts beyond all bounds":    {`{"prompt":"p","n":2,"max_tokens":2}`, whole(`{"id":"x","usage":{"prompt_tokens":4294967295},"choices":[{"index":0,"text":" a","finish_reason":"length"},{"index":1,"text":" b","finish_reason":"length"}]}`)},
	} {
		e := start(t, upstream.Config{Every: time.Hour, URLs: upstream.URLs{Both: []string{engine(t, nil, tc.answer)}}})
		if answer, err := serve(t, e, tc.body, 64<<20); err == nil {
			t.Errorf("%s: it ended well: %q", name, answer)
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, string){
		"comments":            events(": ping\n\n", ": ping\n"+text(" a", ""), "event: x\nid: 7\n"+text(" b", "length"), done),
		"lines end in CR, LF": events(strings.ReplaceAll(text(" a", "")+text(" b", "length")+done, "\n", "\r\n")),
	} {
		e := start(t, upstream.Config{Every: time.Hour, URLs: upstream.URLs{Both: []string{engine(t, nil, answer)}}})
		if got, err := serve(t, e, one, 64<<20); err != nil || !strings.Contains(got, " a") || !strings.Contains(got, " b") {
			t.Errorf("%s: %v, %q", name, err, got)
		}
	}
}

// TestSeveralChoices: as many choices come well as were asked for.
func TestSeveralChoices(t *testing.T) {
	for body, want := range map[string]int{
		`{"prompt":"p"}`: 1, `{"prompt":[1,2,3]}`: 1, `{"prompt":["p"]}`: 1, `{"prompt":["p","q"]}`: 2, `{"prompt":[[1,2],[3]],"n":2}`: 4, `{"prompt":"p","n":3}`: 3,
		`{"prompt_embeds":"AA=="}`: 1, `{"prompt_embeds":["AA==","AA=="]}`: 2, `{"prompt":["p"],"prompt_embeds":["AA==","AA=="]}`: 3,
	} {
		for given := 1; given <= want+1; given++ {
			var choices []string
			for i := range given {
				choices = append(choices, fmt.Sprintf(`{"index":%d,"text":" a","finish_reason":"length"}`, i))
			}
			answer := `{"id":"x","choices":[` + strings.Join(choices, ",") + `]}`
			e := start(t, upstream.Config{Every: time.Hour, URLs: upstream.URLs{Both: []string{engine(t, nil, func(w http.ResponseWriter, _ string) { _, _ = io.WriteString(w, answer) })}}})
			if _, err := serve(t, e, body, 64<<20); (err == nil) != (given == want) {
				t.Errorf("%s: %d choices: %v, want %d", body, given, err, want)
			}
		}
	}
}

// TestOfferedNonsense: what a prefill engine offers is read before another engine is given it.
func TestOfferedNonsense(t *testing.T) {
	for params, good := range map[string]bool{
		`"remote_port":5600,"tp_size":1,"remote_num_tokens":9,"remote_block_ids":[[1,2],[3]]`: true,
		`"remote_port":null,"remote_block_ids":[1,2]`:                                         true,
		`"remote_port":-1`: false, `"remote_port" : -1`: false, `"remote\u005fport":-1`: false, `"remote_port":65700`: false, `"remote_port":"evil"`: false,
		`"tp_size":0`: false, `"remote_num_tokens":9999999999`: false, `"remote_block_ids":[[1,2],[1e12]]`: false, `"remote_block_ids":[-1]`: false,
	} {
		prefill := engine(t, nil, func(w http.ResponseWriter, _ string) {
			fmt.Fprintf(w, `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":{%s}}`, params)
		})
		var taken atomic.Bool
		decode := engine(t, nil, func(w http.ResponseWriter, _ string) { taken.Store(true); fmt.Fprint(w, answered) })
		e := start(t, upstream.Config{URLs: upstream.URLs{Prefill: []string{prefill}, Decode: []string{decode}}, Every: time.Hour})
		if _, err := serve(t, e, `{"prompt":"x"}`, 1<<20); (err == nil) != good || taken.Load() != good {
			t.Errorf("%s: %v, and it was taken: %v", params, err, taken.Load())
		}
	}
}

// TestRefusedOffer: a decode engine that refuses a request may do so for what the prefill engine has offered: the request
// is tried with another's, and the first one is to blame. A refusal of both is the client's.
func TestRefusedOffer(t *testing.T) {
	prefill := func(name string) string {
		return engine(t, nil, func(w http.ResponseWriter, _ string) {
			fmt.Fprintf(w, `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":%q}}`, name)
		})
	}
	decode := engine(t, nil, func(w http.ResponseWriter, body string) {
		if strings.Contains(body, `"bad"`) || strings.Contains(body, "refuse") {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"no"}}`)
			return
		}
		fmt.Fprint(w, answered)
	})
	bad := prefill("bad")
	e := start(t, upstream.Config{URLs: upstream.URLs{Prefill: []string{bad, prefill("good")}, Decode: []string{decode}}, Every: time.Hour, MaxRetries: 2})
	for range 20 {
		if _, err := serve(t, e, `{"prompt":"x"}`, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(resting(e)); !strings.Contains(got, strings.TrimPrefix(bad, "http://")) || strings.Contains(got, strings.TrimPrefix(decode, "http://")) {
		t.Errorf("at rest are %s", got)
	}
	if _, err := serve(t, e, `{"prompt":"refuse"}`, 1<<20); err == nil || !strings.Contains(err.Error(), "400") && !strings.Contains(err.Error(), "no") {
		t.Errorf("a request that is refused for itself: %v", err)
	}
}
