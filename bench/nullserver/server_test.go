package nullserver_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/bench/nullserver"
	"kvferry/bench/nullserver/nullservertest"
)

// ask posts a body, with a key if there is one.
func ask(t *testing.T, s *nullserver.Server, path, key, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestAnswers(t *testing.T) {
	s := nullservertest.Start(t, nullserver.Config{})
	for _, c := range []struct {
		name, path, body string
		events           int
		has              []string
	}{
		{"completion", "/v1/completions", `{"prompt":[1,2,3],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`, 5, []string{
			`"text":" tok"`, `"finish_reason":"length"`, `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}`, "[DONE]",
		}},
		{"chat without usage", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a b"}],"max_completion_tokens":2,"stream":true}`, 3, []string{`"delta":{"content":" tok"}`, "[DONE]"}},
		{"SGLang's", "/generate", `{"text":"a b","sampling_params":{"max_new_tokens":2},"stream":true}`, 3, []string{
			`{"text":" tok","meta_info":{"id":"0","finish_reason":null,"prompt_tokens":2,"completion_tokens":1`, `"text":" tok tok"`, `{"type":"length","length":2}`, "[DONE]",
		}},
		{"in one piece", "/v1/completions", `{"prompt":"a\u2003b\nc","max_tokens":2}`, 0, []string{`"text":" tok tok"`, `"prompt_tokens":3,"completion_tokens":2`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := ask(t, s, c.path, "", c.body)
			if n := strings.Count(text, "data: "); status != http.StatusOK || n != c.events {
				t.Errorf("%d, %d events, want %d: %s", status, n, c.events, text)
			}
			for _, part := range c.has {
				if !strings.Contains(text, part) {
					t.Errorf("no %s in %s", part, text)
				}
			}
			events := bufio.NewScanner(strings.NewReader(text))
			for events.Scan() {
				data, is := strings.CutPrefix(events.Text(), "data: ")
				if is && data != "[DONE]" && !json.Valid([]byte(data)) {
					t.Errorf("not JSON: %s", data)
				}
			}
		})
	}
}

// TestStrict: what is refused, and by which setting.
func TestStrict(t *testing.T) {
	const plain = `{"model":"null","prompt":"a b","max_tokens":2,"stream":true}`
	for _, c := range []struct {
		name, body, key string
		cfg             nullserver.Config
		status          int
	}{
		{"the least", plain, "k", nullserver.Config{Strict: true, TextOnly: true, Key: "k", NoUsage: true}, 200},
		{"no key", plain, "", nullserver.Config{Key: "k"}, 401},
		{"another key", plain, "x", nullserver.Config{Key: "k"}, 401},
		{"an unknown field", `{"prompt":"a","ignore_eos":true}`, "", nullserver.Config{Strict: true}, 400},
		{"the same, not strict", `{"prompt":"a","ignore_eos":true}`, "", nullserver.Config{}, 200},
		{"ids", `{"prompt":[1,2]}`, "", nullserver.Config{TextOnly: true}, 400},
		{"usage", `{"prompt":"a","stream_options":{"include_usage":true}}`, "", nullserver.Config{NoUsage: true}, 400},
		{"no JSON", `{`, "", nullserver.Config{}, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, text := ask(t, nullservertest.Start(t, c.cfg), "/v1/completions", c.key, c.body); status != c.status {
				t.Errorf("%d: %s", status, text)
			}
		})
	}
	for path, cfg := range map[string]nullserver.Config{"/health": {NoHealth: true}, "/v1/models": {NoModels: true}} {
		for want, cfg := range map[int]nullserver.Config{404: cfg, 200: {}} {
			resp, err := http.Get(nullservertest.Start(t, cfg).URL() + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("GET %s: %d, want %d", path, resp.StatusCode, want)
			}
		}
	}
}

// TestTimes: no token comes before its time, however many streams there are, and the server
// knows how late it was.
func TestTimes(t *testing.T) {
	const streams, tokens, ttft, itl = 50, 10, 30 * time.Millisecond, 5 * time.Millisecond
	s := nullservertest.Start(t, nullserver.Config{TTFT: ttft, ITL: itl, Tokens: tokens})
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			begun := time.Now()
			resp, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","stream":true}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for n := 0; lines.Scan(); {
				if !strings.Contains(lines.Text(), "choices") {
					continue
				}
				if took := time.Since(begun); took < ttft+time.Duration(n)*itl {
					t.Errorf("token %d came after %v", n, took)
				}
				n++
			}
		})
	}
	all.Wait()
	if l := s.Lateness(); l.Count() != streams*tokens || l.Min() < 0 {
		t.Errorf("the lateness of %d tokens is known, of %d", l.Count(), streams*tokens)
	}
	if _, text := get(t, s.URL()+"/null/lateness"); !strings.Contains(text, fmt.Sprintf(`"tokens":%d`, streams*tokens)) {
		t.Errorf("GET /null/lateness: %s", text)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestSlowReader: a client that does not read holds up nobody else, and gets all in the end.
func TestSlowReader(t *testing.T) {
	s := nullservertest.Start(t, nullserver.Config{})
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const tokens = 1 << 17 // 20 MB
	body := fmt.Sprintf(`{"prompt":"a","stream":true,"max_tokens":%d}`, tokens)
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if status, _ := ask(t, s, "/v1/completions", "", `{"prompt":"a","stream":true,"max_tokens":1000}`); status != 200 {
		t.Error(status)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if n := strings.Count(string(text), `"text"`); err != nil || n != tokens {
		t.Errorf("%d tokens, %v", n, err)
	}
}

// TestClose: what is under way ends, and nothing is left.
func TestClose(t *testing.T) {
	s := nullservertest.Start(t, nullserver.Config{TTFT: time.Hour})
	over := make(chan error, 1)
	go func() {
		_, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","stream":true}`))
		over <- err
	}()
	for s.Waiting() == 0 {
		runtime.Gosched()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-over; err == nil {
		t.Error("a request ended well when its server was closed")
	}
}
