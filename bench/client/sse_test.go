package client

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// events are those of a stream in pieces. Before the data of one that is named error stands a CR, which
// is no part of any data.
func events(t testing.TB, pieces ...string) ([]string, error) {
	t.Helper()
	var p eventParser
	var got []string
	for _, piece := range pieces {
		if err := p.feed([]byte(piece), func(data []byte) error {
			name := ""
			if p.failure {
				name = "\r"
			}
			got = append(got, name+string(data))
			return nil
		}); err != nil {
			return got, err
		}
	}
	return got, nil
}

func TestEventParser(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         []string
	}{
		{"vLLM", "data: {\"a\":1}\n\ndata: [DONE]\n\n", []string{`{"a":1}`, "[DONE]"}},
		{"a byte order mark", "\ufeffdata: a\n\n\ufeffdata: b\n\n", []string{"a"}},
		{"CRLF and CR", "data: a\r\n\r\ndata: b\r\rdata: c\n\n", []string{"a", "b", "c"}},
		{"comments and other fields", ": ping\n\nevent: x\nid: 3\ndata: a\nretry: 1\n\n", []string{"a"}},
		{"an event named error", "event:error\ndata: a\n\ndata: b\n\nevent: error\n\ndata: c\n\ndata: d\nevent: error\n\nevent: error\nevent: x\ndata: e\n\n", []string{"\ra", "b", "c", "\rd", "e"}},
		{"several data lines", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"no space, empty data, no colon", "data:a\n\ndata:\n\ndata\n\n", []string{"a", "", ""}},
		{"unfinished", "data: a\n\ndata: b\n", []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, err := events(t, c.stream)
			if err != nil || !slices.Equal(whole, c.want) {
				t.Errorf("whole: %q, %v, want %q", whole, err, c.want)
			}
			bytes, err := events(t, strings.Split(c.stream, "")...)
			if err != nil || !slices.Equal(bytes, c.want) {
				t.Errorf("byte by byte: %q, %v, want %q", bytes, err, c.want)
			}
		})
	}
}

func TestEventTooLong(t *testing.T) {
	long := strings.Repeat("x", maxEvent/2+1)
	if _, err := events(t, "data: "+long, long); !errors.Is(err, errEventTooLong) {
		t.Errorf("a line of more than maxEvent: %v", err)
	}
	if _, err := events(t, "data: "+long+"\n", "data: "+long+"\n"); !errors.Is(err, errEventTooLong) {
		t.Errorf("data lines of more than maxEvent: %v", err)
	}
}

func TestEventAfterDone(t *testing.T) {
	s := answer{record: &Record{MaxTokens: 1}, events: true}
	if err := s.Body([]byte("data: [DONE]\n\ndata: {}\n\n"), 1, 0); err == nil || !strings.Contains(err.Error(), "after [DONE]") {
		t.Errorf("err = %v", err)
	}
}

// However a stream is cut, the events are the same; and nothing a server sends
// makes the reader panic or call an unsuccessful stream a success.
// TestPattern: what differs in its text only is not parsed again, and nothing else is
// taken for it.
func TestPattern(t *testing.T) {
	const head, tail = `{"id":"x","choices":[{"index":0,"text":"`, `","finish_reason":null}],"usage":null}`
	var like pattern
	like.keep([]byte(head+"first"+tail), []byte("first"))
	for text, want := range map[string]bool{
		"": false, "other": true, "longer than it was": true, "é": true,
		`\n`: false, `"`: false, "\n": false, `","finish_reason":"stop`: false, `"}],"usage":{"completion_tokens":1},"x":[{"a":"`: false,
	} {
		if _, got := like.text([]byte(head + text + tail)); got != want {
			t.Errorf("%q fits: %t, want %t", text, got, want)
		}
	}
	for _, other := range []string{
		head + "a" + strings.Replace(tail, "null", `"length"`, 1), strings.Replace(head, "x", "y", 1) + "a" + tail,
		head + tail[1:], head, tail, "", strings.Replace(head+"a"+tail, "text", "content", 1),
	} {
		if _, fits := like.text([]byte(other)); fits {
			t.Errorf("%s fits", other)
		}
	}
	for _, event := range []string{`{"choices":[]}`, `{"choices":[{"text":null}]}`, `{"choices":[{"text":"\u0041"}]}`, "[DONE]"} {
		like.keep([]byte(event), []byte("A"))
		if _, fits := like.text([]byte(event)); fits {
			t.Errorf("%s has no text to differ in", event)
		}
	}
	r := Record{MaxTokens: 3}
	s := answer{record: &r, events: true, status: http.StatusOK}
	stream := "data: " + head + "a" + tail + "\n\ndata: " + head + "bb" + tail + "\n\ndata: " + head + "c" + strings.Replace(tail, "null", `"length"`, 1) +
		"\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"
	if err := s.Body([]byte(stream), 1, 0); err != nil || s.end(nil) != nil || len(r.TokenTimes) != 3 || r.FinishReason != "length" {
		t.Errorf("%v, %+v", err, r)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"), 7)
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"bc\"}]}\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"text\":\"\"}],\"error\":{}}\n\n"), 9)
	f.Add([]byte("data: a\r\n\r\n: c\rdata\r\r"), 3)
	f.Add([]byte("data: {\"error\":{\"message\":\"x\"}}\n\n"), 1)
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\nevent: error\ndata: x\n\n"), 45)
	f.Add([]byte("data: {\"choices\":null,\"breakdown\":{\"kv_bytes\":-1}}\n\n"), 0)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		whole, err := events(t, string(stream))
		if cut < 0 || cut > len(stream) {
			cut = len(stream) / 2
		}
		parts, err2 := events(t, string(stream[:cut]), string(stream[cut:]))
		if !slices.Equal(whole, parts) || (err == nil) != (err2 == nil) {
			t.Fatalf("cut at %d: %q, %v; whole: %q, %v", cut, parts, err2, whole, err)
		}
		for _, k := range []kind{completions, generate} {
			r := Record{MaxTokens: 1}
			a := answer{record: &r, kind: k, events: true, status: http.StatusOK, keepText: true}
			failed := a.Body(stream, 1, 0) != nil
			tokens, alone := 0, error(nil)
			for i, event := range whole {
				// By itself no event is like the one before.
				one := answer{record: &Record{}, kind: k, events: true, done: i > 0 && whole[i-1] == "[DONE]"}
				name := ""
				if data, failure := strings.CutPrefix(event, "\r"); failure {
					name, event = "event: error\n", data
				}
				if alone = one.Body([]byte(name+"data: "+strings.ReplaceAll(event, "\n", "\ndata: ")+"\n\n"), 1, 0); alone != nil {
					tokens += len(one.record.TokenTimes)
					break
				}
				tokens += len(one.record.TokenTimes)
			}
			if tokens != len(r.TokenTimes) || (alone != nil || err != nil) != failed {
				t.Fatalf("%q: %d tokens (failed: %t), one by one %d, %v", stream, len(r.TokenTimes), failed, tokens, alone)
			}
			if !failed && a.end(nil) == nil {
				if !a.done && !a.finished || len(r.TokenTimes) == 0 || r.Usage != nil && r.Usage.CompletionTokens > 1 {
					t.Fatalf("success of %q: %+v", stream, r)
				}
				r.CountedBy = CountChunks
				measure([]Record{r}, 1)
			}
		}
	})
}
