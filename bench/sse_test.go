package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func events(t testing.TB, pieces ...string) ([]string, error) {
	t.Helper()
	var p eventParser
	var got []string
	for _, piece := range pieces {
		if err := p.feed([]byte(piece), func(data []byte) error {
			got = append(got, string(data))
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
		{"CRLF and CR", "data: a\r\n\r\ndata: b\r\rdata: c\n\n", []string{"a", "b", "c"}},
		{"comments and other fields", ": ping\n\nevent: x\nid: 3\ndata: a\nretry: 1\n\n", []string{"a"}},
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
	s := streamReader{record: &Record{MaxTokens: 1}}
	if err := s.feed([]byte("data: [DONE]\n\ndata: {}\n\n"), 1); err == nil || !strings.Contains(err.Error(), "after [DONE]") {
		t.Errorf("err = %v", err)
	}
}

// However a stream is cut, the events are the same; and nothing a server sends
// makes the reader panic or call an unsuccessful stream a success.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"), 7)
	f.Add([]byte("data: a\r\n\r\n: c\rdata\r\r"), 3)
	f.Add([]byte("data: {\"error\":{\"message\":\"x\"}}\n\n"), 1)
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
		r := Record{MaxTokens: 1}
		s := streamReader{record: &r}
		if s.feed(stream, 1) == nil && s.end() == nil {
			if !s.done || len(r.TokenTimes) == 0 || r.Usage.CompletionTokens != 1 {
				t.Fatalf("success of %q: %+v", stream, r)
			}
			Measure([]Record{r}, 1)
		}
	})
}
