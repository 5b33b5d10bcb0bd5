package clienttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Byzantine is a server that answers a request wrongly, in a way that its seed and the request's id
// choose: it writes without pause, cuts, stalls, claims impossible numbers, or only does what HTTP allows
// and few servers do. Requests whose id ends in "probe" or begins with "honest" are answered well.
type Byzantine struct {
	URL  string
	seed uint64

	mu    sync.Mutex
	kinds map[string]string // what was done to a request, by its id
}

// NewByzantine starts a server. It ends with the test.
func NewByzantine(t *testing.T, seed uint64) *Byzantine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Byzantine{URL: "http://" + l.Addr().String(), seed: seed, kinds: map[string]string{}}
	var conns sync.Map
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, true)
			all.Go(func() {
				b.serve(c)
				c.Close()
				conns.Delete(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		all.Wait()
	})
	return b
}

// Kind returns what was done to a request.
func (b *Byzantine) Kind(id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kinds[id]
}

// ByzantineText is the text of a right answer of n tokens.
func ByzantineText(n int) string { return strings.Repeat(" tok", n) }

// asked holds the fields of a request body that shape the answer.
type asked struct {
	Stream      bool `json:"stream"`
	MaxTokens   int  `json:"max_tokens"`
	MaxComplete int  `json:"max_completion_tokens"`
	Sampling    struct {
		MaxNew int `json:"max_new_tokens"`
	} `json:"sampling_params"`
}

func (b *Byzantine) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := r.Header.Get("X-Request-Id")
		switch {
		case r.URL.Path == "/health":
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		case r.URL.Path == "/v1/models":
			const models = `{"data":[{"id":"byzantine"}]}`
			_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(models), models)
		case r.Method == http.MethodGet || r.URL.Path == "/tokenize":
			_, err = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		default:
			var a asked
			if json.Unmarshal(body, &a) != nil {
				return
			}
			h := fnv.New64()
			_, _ = io.WriteString(h, id)
			x := &exchange{Conn: c, rng: rand.New(rand.NewPCG(b.seed, h.Sum64())), asked: a, tokens: max(a.MaxTokens, a.MaxComplete, a.Sampling.MaxNew)}
			x.path, x.id = r.URL.Path, id
			kind := ways[x.rng.IntN(len(ways))]
			if strings.HasSuffix(id, "probe") || strings.HasPrefix(id, "honest") {
				kind = ways[0]
			}
			b.mu.Lock()
			b.kinds[id] = kind.name
			b.mu.Unlock()
			err = kind.do(x)
		}
		if err != nil {
			return
		}
	}
}

// An exchange is one request with what answers it.
type exchange struct {
	net.Conn
	asked
	rng      *rand.Rand
	path, id string
	tokens   int
}

// A way is a thing that a server may do. Its error ends the connection.
type way struct {
	name string
	do   func(*exchange) error
}

// errOver ends a connection.
var errOver = io.EOF

// numbers replace a count of tokens in an answer.
var numbers = []string{"1000000000", "9223372036854775807", "-9223372036854775808", "-1", "1e400", "1e308", "1.5", `"8e9"`, "NaN", "null", "[]", "18446744073709551616", "99999999999999999999999", "0"}

var ways = []way{
	{"well", func(x *exchange) error { return x.send(x.head("")+x.chunked(x.events(nil)), 0) }},
	{"in small pieces", func(x *exchange) error { return x.send(x.head("")+x.chunked(x.events(nil)), 1+x.rng.IntN(40)) }},
	{"early hints first", func(x *exchange) error {
		return x.send(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 1+x.rng.IntN(4))+x.head("")+x.chunked(x.events(nil)), 0)
	}},
	{"long chunk extensions", func(x *exchange) error {
		return x.send(x.head("")+strings.ReplaceAll(x.chunked(x.events(nil)), "\r\ndata", ";x="+strings.Repeat("y", x.rng.IntN(20_000))+"\r\ndata"), 0)
	}},
	{"another request's id", func(x *exchange) error {
		return x.send(x.head("X-Request-Id: other\r\n")+x.chunked(x.events(func(e string) string { return strings.Replace(e, "{", `{"id":"cmpl-other",`, 1) })), 0)
	}},
	{"a second answer behind the first", func(x *exchange) error {
		one := x.head("") + x.chunked(x.events(func(e string) string { return strings.ReplaceAll(e, " tok", " bad") }))
		return x.send(x.head("")+x.chunked(x.events(nil))+one, 0)
	}},
	{"tokens without pause", func(x *exchange) error { return x.forever(x.head(""), x.chunked(x.events(nil)[:1])) }},
	{"comments without pause", func(x *exchange) error { return x.forever(x.head(""), x.chunked([]string{": ping\n\n"})) }},
	{"a line without end", func(x *exchange) error {
		return x.forever(x.head(""), x.chunked([]string{strings.Repeat("x", 30_000)}))
	}},
	{"to the connection's end, without one", func(x *exchange) error {
		return x.forever("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", strings.Repeat(" ", 30_000))
	}},
	{"1xx without end", func(x *exchange) error { return x.forever("", "HTTP/1.1 100 Continue\r\n\r\n") }},
	{"headers without end", func(x *exchange) error { return x.forever("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n") }},
	{"a header without end", func(x *exchange) error { return x.forever("HTTP/1.1 200 OK\r\nX: ", "xxxxxxxxxxxxxxxx") }},
	{"a chunk extension without end", func(x *exchange) error { return x.forever(x.head("")+"5;", "xxxxxxxxxxxxxxxx") }},
	{"trailers without end", func(x *exchange) error { return x.forever(x.head("")+"0\r\n", "X-More: and more\r\n") }},
	{"an error's text without end", func(x *exchange) error {
		return x.forever("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 9223372036854775807\r\n\r\n", "no room ")
	}},
	{"an impossible count", func(x *exchange) error {
		n := numbers[x.rng.IntN(len(numbers))]
		field := []string{"completion_tokens", "prompt_tokens", "cached_tokens"}[x.rng.IntN(3)]
		at := x.rng.IntN(2) == 0 // with each chunk, and not only at the end
		usage := fmt.Sprintf(`{"usage":{"prompt_tokens":8,"completion_tokens":%d,"%s":%s},`, x.tokens, field, n)
		events := x.events(nil)
		for i, e := range events {
			switch {
			case !at && i < len(events)-2:
			case x.native():
				events[i] = strings.Replace(e, `"finish_reason"`, fmt.Sprintf(`"%s":%s,"finish_reason"`, field, n), 1)
			default:
				events[i] = strings.Replace(e, "{", usage, 1)
			}
		}
		return x.send(x.head("")+x.chunked(events), 0)
	}},
	{"an impossible place or time", func(x *exchange) error {
		n := numbers[x.rng.IntN(len(numbers))]
		fields := []string{
			`"timings":{"prompt_ms":%s,"predicted_ms":1},`, `"breakdown":{"kv_bytes":%s},`, `"breakdown":{"retries":%s},`, `"breakdown":{"wire_us":%s},`,
		}
		field := fmt.Sprintf(fields[x.rng.IntN(len(fields))], n)
		return x.send(x.head("")+x.chunked(x.events(func(e string) string {
			switch way := x.rng.IntN(4); {
			case way > 0:
				return strings.Replace(e, "{", "{"+field, 1)
			case x.native():
				return strings.Replace(e, `"finish_reason"`, `"e2e_latency":`+n+`,"finish_reason"`, 1)
			}
			return strings.Replace(e, `"index":0`, `"index":`+n, 1)
		})), 0)
	}},
	{"an impossible Content-Length", func(x *exchange) error {
		n := numbers[x.rng.IntN(len(numbers))]
		return x.sendAll("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " + n + "\r\n\r\n" + strings.Join(x.events(nil), ""))
	}},
	{"an impossible chunk size", func(x *exchange) error {
		sizes := []string{"ffffffffffffffff", "7fffffffffffffff", "-1", "0x5", "fffffffffffffff", "8000000000000000", " 5", "99999999999999999999"}
		return x.sendAll(x.head("") + sizes[x.rng.IntN(len(sizes))] + "\r\n" + strings.Join(x.events(nil), ""))
	}},
	{"cut", func(x *exchange) error {
		text := x.head("") + x.chunked(x.events(nil))
		if err := x.send(text[:x.rng.IntN(len(text))], 0); err != nil {
			return err
		}
		if c, ok := x.Conn.(*net.TCPConn); ok && x.rng.IntN(2) == 0 {
			_ = c.SetLinger(0) // the end is a reset
		}
		return errOver
	}},
	{"stalls", func(x *exchange) error {
		text := x.head("") + x.chunked(x.events(nil))
		return x.sendAll(text[:x.rng.IntN(len(text))])
	}},
	{"drips", func(x *exchange) error {
		for _, b := range []byte(x.head("") + x.chunked(x.events(nil))) {
			if _, err := x.Write([]byte{b}); err != nil {
				return err
			}
			<-time.After(2 * time.Millisecond)
		}
		return nil
	}},
	{"garbage among the events", func(x *exchange) error {
		events := x.events(nil)
		noise := make([]byte, 1+x.rng.IntN(300))
		for i := range noise {
			noise[i] = byte(x.rng.Uint32())
		}
		at := x.rng.IntN(len(events))
		prefix := []string{"", "data: ", "data: {", "event: error\ndata: "}[x.rng.IntN(4)]
		return x.send(x.head("")+x.chunked(slices.Insert(events, at, prefix+string(noise)+"\n\n")), 0)
	}},
	{"an error in mid-stream", func(x *exchange) error {
		events := x.events(nil)
		at := x.rng.IntN(len(events) - 1)
		return x.send(x.head("")+x.chunked(append(events[:at:at], "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n", "data: [DONE]\n\n")), 0)
	}},
	{"an error's body behind the tokens", func(x *exchange) error {
		events := x.events(nil)
		return x.send(x.head("")+x.chunked(append(events[:x.rng.IntN(len(events)-1)], "HTTP/1.1 500 Internal Server Error\r\n\r\nout of memory")), 0)
	}},
	{"no end", func(x *exchange) error {
		events := x.events(nil)
		return x.send(x.head("")+x.chunked(events[:x.rng.IntN(len(events)-2)]), 0)
	}},
	{"many choices", func(x *exchange) error {
		many := "data: {\"choices\":[" + strings.Repeat("{},", 100_000) + "{}]}\n\n"
		return x.forever(x.head(""), x.chunked([]string{many}))
	}},
	{"deep JSON", func(x *exchange) error {
		return x.send(x.head("")+x.chunked([]string{"data: " + strings.Repeat("[", 1_000_000) + "\n\n"}), 0)
	}},
	{"another protocol", func(x *exchange) error { return x.sendAll("SSH-2.0-OpenSSH_9.2\r\n\r\n") }},
}

// native reports whether the request came by SGLang's own API.
func (x *exchange) native() bool { return strings.HasSuffix(x.path, "/generate") }

// head returns the head of a streamed answer, with more header lines.
func (x *exchange) head(more string) string {
	return "HTTP/1.1 200 OK\r\n" + more + "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
}

// events returns the events of a right answer, each passed through change unless that is nil.
func (x *exchange) events(change func(string) string) (events []string) {
	for i := range x.tokens {
		finish := "null"
		if i == x.tokens-1 {
			finish = `"length"`
		}
		var e string
		switch {
		case x.native():
			e = fmt.Sprintf(`{"text":"%s","meta_info":{"prompt_tokens":8,"completion_tokens":%d,"finish_reason":%s}}`, ByzantineText(i+1), i+1, finish)
		case strings.Contains(x.path, "chat"):
			e = fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":%s}]}`, finish)
		default:
			e = fmt.Sprintf(`{"choices":[{"index":0,"text":" tok","finish_reason":%s}]}`, finish)
		}
		events = append(events, e)
	}
	if !x.native() {
		events = append(events, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}`, x.tokens))
	}
	for i, e := range events {
		if change != nil {
			e = change(e)
		}
		events[i] = "data: " + e + "\n\n"
	}
	return append(events, "data: [DONE]\n\n")
}

// chunked has a chunk for each event; the last one is the body's end if events end in [DONE].
func (x *exchange) chunked(events []string) string {
	var b bytes.Buffer
	for _, e := range events {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(e), e)
	}
	if len(events) > 1 {
		b.WriteString("0\r\n\r\n")
	}
	return b.String()
}

// send writes a text, in pieces of some bytes if pieces is not 0.
func (x *exchange) send(text string, pieces int) error {
	for len(text) > 0 {
		n := len(text)
		if pieces > 0 {
			n = min(n, pieces)
		}
		if _, err := io.WriteString(x, text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// sendAll writes a text, and then waits for the client's end.
func (x *exchange) sendAll(text string) error {
	if err := x.send(text, 0); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, x)
	return errOver
}

// forever writes a text once, and another one again and again.
func (x *exchange) forever(first, again string) error {
	for len(again) < 30_000 {
		again += again
	}
	_, err := io.WriteString(x, first)
	for err == nil {
		_, err = io.WriteString(x, again)
	}
	return err
}
