// Package upstreamtest has engines for tests that answer as vLLM and SGLang do, and go wrong as a seed says.
package upstreamtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Byzantine is an engine that speaks HTTP as vLLM or SGLang do, byte by byte, and has one fault in some of its answers. Its
// text is a function of the prompt whose KV it has, so that the KV of another request makes another text.
//
// What nobody can know is no fault of its: a token that it never generated, or two in another order than it drew them.
type Byzantine struct {
	name   string
	sglang bool // it calls answers as it likes, and says finish_reason in an event of its own
	kv     *kvStore

	mu     sync.Mutex
	rand   *rand.Rand
	op     string // "" for an engine without faults
	times  int    // answers that have the fault
	First  bool   // it comes before the first byte
	faulty int    // those that had
	before []step // its last answer
	holds  int
	tokens int       // by its metrics
	last   time.Time // when it had one
}

// A step is a part of an answer that is sent in one write.
type step struct {
	name  string // head, role, token, finish, usage, done, end, body
	data  string
	chunk bool // it is framed as a chunk
}

// A kvStore is the KV that prefill engines have, by the name under which it is taken: the prompt.
type kvStore struct {
	mu   sync.Mutex
	has  map[string]string
	news chan struct{}
}

func (k *kvStore) put(name, prompt string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.has[name] = prompt
	close(k.news)
	k.news = make(chan struct{})
}

// take waits for KV until gone is closed.
func (k *kvStore) take(name string, gone <-chan struct{}) (prompt string, ok bool) {
	for {
		k.mu.Lock()
		prompt, ok = k.has[name]
		news := k.news
		k.mu.Unlock()
		if ok {
			return prompt, true
		}
		select {
		case <-news:
		case <-gone:
			return "", false
		}
	}
}

// wordsOf are the tokens that follow a prompt.
func wordsOf(prompt string, n int) (words []string) {
	for i := range n {
		h := fnv.New32a()
		fmt.Fprint(h, prompt, i)
		words = append(words, fmt.Sprintf(" %d.%x", i, h.Sum32()))
	}
	return words
}

// Serve answers the requests of a connection until that ends.
func (b *Byzantine) Serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		q, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		if q.Method == http.MethodGet {
			text, status := b.about(q.URL.Path)
			_, err = fmt.Fprintf(conn, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text)
		} else {
			gone := make(chan struct{}) // the proxy sends nothing before it has the answer
			go func() {
				defer close(gone)
				_, _ = reader.Peek(1)
			}()
			if !b.write(conn, gone, q, body) {
				conn.Close()
				<-gone
				return
			}
			<-gone // or the next request
		}
		if err != nil || q.Close {
			return
		}
	}
}

// Progress returns when it last had any, but for its faults.
func (b *Byzantine) Progress() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// about answers what an engine is asked about itself.
func (b *Byzantine) about(path string) (text string, status int) {
	switch path {
	case "/health", "/query":
		return "{}", 200
	case "/metrics":
		b.mu.Lock()
		defer b.mu.Unlock()
		return fmt.Sprintf("vllm:prompt_tokens_total{engine=\"0\"} %d.0\n", 1+b.tokens), 200
	case "/v1/models":
		return `{"data":[{"id":"m","max_model_len":4096}]}`, 200
	}
	return "", 404
}

// legal is an answer as it should be.
func (b *Byzantine) legal(q *http.Request, body []byte, gone <-chan struct{}) []step {
	var f struct {
		Prompt   string
		Messages []struct{ Content string }
		Max      int `json:"max_tokens"`
		Stream   bool
		Params   struct {
			Prefill  bool     `json:"do_remote_prefill"`
			Decode   bool     `json:"do_remote_decode"`
			Transfer string   `json:"transfer_id"`
			Blocks   [][]uint `json:"remote_block_ids"`
			Engine   string   `json:"remote_engine_id"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(body, &f); err != nil {
		panic(err)
	}
	prompt, chat := f.Prompt, strings.HasPrefix(q.URL.Path, "/v1/chat")
	if chat {
		prompt = f.Messages[0].Content
	}
	name := q.Header.Get("X-Request-Id")
	id := "cmpl-" + name
	if b.sglang {
		h := fnv.New128a()
		fmt.Fprint(h, b.name, name)
		id = fmt.Sprintf("%x", h.Sum(nil))
	}
	params := ""
	switch {
	case f.Params.Decode && f.Params.Transfer != "":
		b.kv.put(f.Params.Transfer, prompt)
	case f.Params.Decode:
		b.mu.Lock()
		b.holds++
		hold := b.holds
		b.mu.Unlock()
		b.kv.put(fmt.Sprint(b.name, hold), prompt)
		params = fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[%d]],"remote_engine_id":%q,"remote_request_id":"%s-0","remote_host":"10.0.0.2","remote_port":5600,"tp_size":1}`, hold, b.name, id)
	case f.Params.Prefill && f.Params.Transfer != "":
		if taken, ok := b.kv.take(f.Params.Transfer, gone); ok {
			prompt = taken
		}
	case f.Params.Prefill && len(f.Params.Blocks) > 0:
		if taken, ok := b.kv.take(fmt.Sprint(f.Params.Engine, f.Params.Blocks[0][0]), gone); ok {
			prompt = taken
		}
	}
	words := wordsOf(prompt, f.Max)
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}`, 9+f.Max, f.Max)
	if !f.Stream {
		choice := fmt.Sprintf(`"text":%q`, strings.Join(words, ""))
		if chat {
			choice = fmt.Sprintf(`"message":{"role":"assistant","content":%q}`, strings.Join(words, ""))
		}
		return []step{
			{"head", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: LENGTH\r\n\r\n", false},
			{"body", fmt.Sprintf(`{"id":%q,"object":"x","choices":[{"index":0,%s,"logprobs":null,"finish_reason":"length"}],%s%s}`, id, choice, usage, params), false},
		}
	}
	event := func(name, choices, more string) step {
		return step{name, fmt.Sprintf(`data: {"id":%q,"object":"x","choices":[%s]%s}`+"\n\n", id, choices, more), true}
	}
	delta := func(text, finish string) string {
		field := `"text":` + text
		if chat {
			field = `"delta":{"content":` + text + `}`
		}
		return `{"index":0,` + field + `,"logprobs":null,"finish_reason":` + finish + `}`
	}
	all := []step{{"head", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n", false}}
	if chat {
		all = append(all, event("role", `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, ""))
	}
	for i, word := range words {
		if i == len(words)-1 && !b.sglang {
			all = append(all, event("finish", delta(fmt.Sprintf("%q", word), `"length"`), ""))
		} else {
			all = append(all, event("token", delta(fmt.Sprintf("%q", word), "null"), ""))
		}
	}
	if b.sglang {
		all = append(all, event("finish", delta(`""`, `"length"`), ""))
	}
	return append(all, event("usage", "", ","+usage), step{"done", "data: [DONE]\n\n", true}, step{"end", "", true})
}

// write sends an answer, with the engine's fault if it is due, and reports whether the connection is still in order.
func (b *Byzantine) write(conn net.Conn, gone <-chan struct{}, q *http.Request, body []byte) bool {
	time.Sleep(20 * time.Millisecond)
	all := b.legal(q, body, gone)
	b.mu.Lock()
	bad := b.op != "" && b.faulty < b.times
	op := b.op
	before := b.before
	b.before = all
	if bad {
		b.faulty++
		op, all = b.change(op, all, before)
	} else {
		op = ""
	}
	at, part := b.rand.IntN(len(all)), b.rand.Float64()
	if b.First {
		at, part = 0, 0
	}
	b.mu.Unlock()
	for i, s := range all {
		data := s.data
		if s.chunk {
			data = fmt.Sprintf("%x\r\n%s\r\n", len(data), data)
		}
		if s.name == "head" && len(all) > i+1 {
			data = strings.Replace(data, "LENGTH", fmt.Sprint(len(all[len(all)-1].data)), 1)
		}
		if i == at && op != "" {
			data = data[:int(part*float64(len(data)))]
		}
		if _, err := io.WriteString(conn, data); err != nil {
			return false
		}
		if i != at || op == "" {
			b.mu.Lock()
			b.tokens, b.last = b.tokens+1, time.Now()
			b.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			continue
		}
		switch op {
		case "hang":
			<-gone
		case "comments", "bytes", "junk", "heads":
			more := map[string]string{"comments": "4\r\n: x\n\r\n4\r\n\n: x\r\n", "bytes": " ", "junk": strings.Repeat("x", 64<<10), "heads": "HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"}[op]
			for err := error(nil); err == nil; time.Sleep(map[bool]time.Duration{true: 10 * time.Millisecond, false: 500 * time.Millisecond}[op == "junk" || op == "heads"]) {
				_, err = io.WriteString(conn, more)
			}
		}
		return false
	}
	return true
}

// Late reports whether a fault is one after which something is missing, so that only a progress deadline tells.
func Late(op string) bool {
	return op == "hang" || op == "comments" || op == "bytes" || op == "missing" || op == "junk" || op == "heads"
}

// ops are the faults.
var ops = []string{"swap", "early", "double", "missing", "cut", "hang", "comments", "bytes", "junk", "heads", "value", "value", "value", "status", "error", "again", "behind", "header"}

// change puts a fault into an answer; the operation that it returns goes on while it is sent. The caller holds mu.
func (b *Byzantine) change(op string, all, before []step) (string, []step) {
	all = append([]step(nil), all...)
	plain := func(s step) bool { return s.name == "token" }
	i := b.rand.IntN(len(all))
	chat := bytes.Contains([]byte(all[len(all)-1].data+all[1].data), []byte(`"delta"`))
	switch op {
	case "swap":
		for i = b.rand.IntN(len(all) - 1); plain(all[i]) && plain(all[i+1]); {
			i = b.rand.IntN(len(all) - 1)
		}
		all[i], all[i+1] = all[i+1], all[i]
	case "early":
		for plain(all[i]) {
			i = b.rand.IntN(len(all))
		}
		s := all[i]
		all = append(all[:i], all[i+1:]...)
		j := b.rand.IntN(min(i, len(all)) + 1)
		all = append(all[:j], append([]step{s}, all[j:]...)...)
	case "double":
		for plain(all[i]) && chat {
			i = b.rand.IntN(len(all))
		}
		all = append(all[:i+1], all[i:]...)
	case "missing":
		for plain(all[i]) {
			i = b.rand.IntN(len(all))
		}
		if all[i].name == "finish" && !b.sglang { // its token came, the rest did not
			all[i].data = strings.Replace(all[i].data, `"finish_reason":"length"`, `"finish_reason":null`, 1)
			return "", all
		}
		hangs := all[i].name == "end" || all[i].name == "body"
		all = append(all[:i], all[i+1:]...)
		if hangs {
			all = append(all, step{"hang", "", false})
		}
	case "value":
		for range 1000 {
			v := wrongValues[b.rand.IntN(len(wrongValues))]
			i := b.rand.IntN(len(all))
			if b.sglang && strings.Contains(v[1], "OTHER") || !strings.Contains(all[i].data, v[0]) {
				continue
			}
			all[i].data = strings.Replace(all[i].data, v[0], v[1], 1)
			break
		}
		return "", all
	case "status":
		status := []int{500, 503, 429, 400, 302, 204, 999}[b.rand.IntN(7)]
		text := `{"error":{"message":"byzantine"}}`
		return "", []step{{"status", fmt.Sprintf("HTTP/1.1 %d X\r\nRetry-After: 9223372036854775807\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text), false}}
	case "error":
		j := 1 + b.rand.IntN(len(all)-1)
		if all[1].name == "body" {
			all[1].data = `{"object":"error","error":{"message":"byzantine"}}`
			return "", all
		}
		return "", append(all[:j:j], step{"error", "data: {\"error\":{\"message\":\"byzantine\"}}\n\n", true}, step{"done", "data: [DONE]\n\n", true}, step{"end", "", true})
	case "again": // the answer that it gave before
		if len(before) > 0 && !b.sglang {
			return "", before
		}
	case "behind":
		return "", append(all, all...)
	case "header":
		all[0].data = strings.Replace(all[0].data, "\r\n\r\n", "\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n", 1)
		return "", all
	default:
		return op, all
	}
	if n := len(all) - 1; all[n].name == "hang" {
		return "hangs", all
	}
	return "", all
}

// wrongValues pairs a piece of an answer with a wrong piece that replaces it.
var wrongValues = [][2]string{
	{`"text":"`, `"text":7,"x":"`},
	{`"content":"`, `"content":7,"x":"`},
	{`"text":"`, `"text":["a"],"x":"`},
	{`"finish_reason":null`, `"finish_reason":5`},
	{`"finish_reason":"length"`, `"finish_reason":"abort"`},
	{`"finish_reason":"length"`, `"finish_reason":"error"`},
	{`"finish_reason":"length"`, `"finish_reason":null`},
	{`"logprobs":null`, `"logprobs":"x"`},
	{`"logprobs":null`, `"logprobs":{"tokens":[1],"token_logprobs":[0]}`},
	{`"logprobs":null`, `"logprobs":{"tokens":["a"],"token_logprobs":["b"]}`},
	{`"logprobs":null`, `"logprobs":{"content":[{"token":1,"logprob":-1}]}`},
	{`"index":0`, `"index":1`},
	{`"index":0`, `"index":-1`},
	{`"index":0`, `"index":18446744073709551616`},
	{`"choices":[`, `"chances":[`},
	{`"choices":[`, `"choices":[[`},
	{`"choices":[`, `"choices":7,"x":[`},
	{`"id":"cmpl-`, `"id":"cmpl-OTHER`},
	{`"completion_tokens":`, `"completion_tokens":100000000`},
	{`"completion_tokens":`, `"completion_tokens":-`},
	{`"completion_tokens":`, `"completion_tokens":1e30,"x":`},
	{`"prompt_tokens":`, `"prompt_tokens":9999999`},
	{`"cached_tokens":`, `"cached_tokens":9999`},
	{`"remote_port":5600`, `"remote_port":70000`},
	{`"remote_port":5600`, `"remote_port":-1`},
	{`"remote_block_ids":[[`, `"remote_block_ids":[[-1,`},
	{`"remote_block_ids":[[`, `"remote_block_ids":[[99999999999999999999,`},
	{`"kv_transfer_params":`, `"kv_transfer_params":7,"x":`},
	{`"kv_transfer_params":`, `"x":`},
	{`"remote_request_id":"cmpl-`, `"remote_request_id":"OTHER`},
	{`data: {`, `data: {{`},
	{`data: {`, `dota: {`},
	{`[DONE]`, `[DONE`},
	{"\n\n", "\n"},
}

// A Net connects a proxy with engines in memory.
type Net struct {
	Engines map[string]*Byzantine // by host
	Served  sync.WaitGroup
}

// Dial connects to an engine.
func (n *Net) Dial(_ context.Context, _, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	b := n.Engines[host]
	if b == nil {
		return nil, errors.New("no such engine")
	}
	here, there := net.Pipe()
	n.Served.Go(func() { b.Serve(there) })
	return here, nil
}

// Faulty returns how many of its answers had the fault.
func (b *Byzantine) Faulty() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faulty
}

// Pass lets time pass in a synctest bubble.
func Pass(d time.Duration) { time.Sleep(d) }
