package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"time"
	"unicode/utf8"

	"kvferry/bench/stats"
	"kvferry/kvcache"
)

// maxBody bounds an answer that does not stream, as maxEvent does an event, and what is kept of the text
// and the token ids of one that does.
const maxBody = 64 << 20

// maxChunks bounds the chunks of an answer beyond four times the tokens that were asked for. Some servers
// answer at greater length than they are asked to, and chunks may be empty.
const maxChunks = 1 << 16

// An answer turns what comes back of one request into its record. It is fed pieces of any
// size, and judges the whole at the end.
type answer struct {
	record   *Record
	kind     kind
	start    time.Duration // of the run, by the client's clock
	mayStop  bool          // the server was not told to go on, or takes no such order
	keepText bool
	keepIDs  bool

	status   int
	location string // of a 3xx
	coding   string // by which the body is compressed, "" if it is not
	events   bool   // it is a stream of events
	body     []byte // what is none
	size     int    // bytes of the body so far
	parser   eventParser
	like     pattern

	now  float64 // when what is being read was read
	done bool    // [DONE] was seen
	// limit bounds how long the rest of the answer may take: why is what ends it then. It is called
	// once, where all that matters is there.
	limit    func(most time.Duration, why error)
	ends     int    // how many finish reasons were seen
	finished bool   // of every choice
	stopped  bool   // the model ended one by itself
	text     []byte // of the first choice
	thinks   bool   // some of it was reasoning
	said     []byte // and this was not
	others   others
	ids      []kvcache.Token
	length   int    // of SGLang's text so far, in bytes
	counted  int    // tokens by the server's account of every chunk so far
	partial  bool   // a chunk came without such an account, or with an impossible one
	halves   bool   // a text ended inside a rune
	begun    bool   // a text, reasoning or a call of a tool has come
	tail     []byte // the last bytes of the text, of a rune that has not ended
}

// Head is told of the answer's status and header.
func (a *answer) Head(head *http.Response, _ time.Duration) error {
	a.status = head.StatusCode
	a.record.HTTPStatus = head.StatusCode
	a.location = elsewhere(head)
	a.coding = coding(head)
	kind, _, _ := mime.ParseMediaType(head.Header.Get("Content-Type"))
	a.events = a.status == http.StatusOK && kind != "application/json"
	switch {
	case a.status != http.StatusOK:
		a.bound(errorText, errErrorText)
	case a.coding != "":
		return compressed(a.coding)
	}
	return nil
}

func (a *answer) bound(most time.Duration, why error) {
	if a.limit != nil {
		a.limit(most, why)
	}
}

// Body is told of what was read, and when; late is how long the kernel had had it.
func (a *answer) Body(p []byte, at, late time.Duration) error {
	a.record.ReadDelay = max(a.record.ReadDelay, stats.Seconds(late))
	a.now = stats.Seconds(at - a.start)
	a.size += len(p)
	if a.events {
		return a.parser.feed(p, a.event)
	}
	most := maxBody
	if a.status != http.StatusOK {
		most = maxErrorText
	}
	if room := most - len(a.body); room < len(p) {
		if a.status != http.StatusOK {
			a.body = append(a.body, p[:room]...)
			return errErrorText
		}
		return faulty(FaultEndless, fmt.Errorf("an answer of more than %d bytes that does not stream", maxBody))
	}
	a.body = append(a.body, p...)
	return nil
}

// event takes the data of one event.
func (a *answer) event(data []byte) error {
	if a.done {
		return faulty(FaultGarbage, fmt.Errorf("event after [DONE]: %.80q", data))
	}
	r := a.record
	r.LastLine = a.now
	if a.parser.failure {
		return faulty(FaultEvent, fmt.Errorf("server: %s", cmp.Or(said(reason(data)), "an event named error, and no more of it")))
	}
	if string(data) == "[DONE]" {
		a.done = true
		a.bound(afterDone, errAfterDone)
		return nil
	}
	if len(r.TokenTimes)/4 > r.Wanted()+maxChunks/4 {
		return faulty(FaultEndless, fmt.Errorf("more than %d chunks for %d tokens", len(r.TokenTimes), r.Wanted()))
	}
	if a.keepText && len(a.text)+len(a.said)+a.others.size > maxBody || len(a.ids) > maxBody/4 {
		return faulty(FaultEndless, fmt.Errorf("an answer of more than %d bytes of text", maxBody))
	}
	if text, fits := a.like.text(data); fits {
		a.partial = true
		r.TokenTimes = append(r.TokenTimes, a.now)
		if r.FirstText == 0 {
			r.FirstText = a.now
			a.began()
		}
		a.runes(text)
		if a.keepText {
			from, thought := len(a.text), 0
			if a.like.thought {
				thought = len(text)
			}
			a.text = append(a.text, text...)
			a.say(from, thought)
		}
		return nil
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return faulty(FaultGarbage, unreadable("event", err, data))
	}
	if err := c.impossible(); err != nil {
		return faulty(FaultGarbage, err)
	}
	if text, plain := a.take(&c); plain {
		a.like.keep(data, text)
	}
	if why := c.fault(); why != "" {
		return faulty(FaultServer, fmt.Errorf("server: %s", said(why)))
	}
	return nil
}

// take notes what a chunk brought. plain is that it is a token like others, with nothing but
// its text to tell it from them.
func (a *answer) take(c *chunk) (text []byte, plain bool) {
	r := a.record
	if c.Breakdown != nil {
		r.Breakdown = c.Breakdown
	}
	if t := c.timings(); t != nil {
		r.Timings = t
	}
	switch {
	case c.Meta != nil:
		a.native(c)
	case len(c.Choices) > 0:
		text, plain = a.choices(c)
		if c.Usage != nil {
			a.account(int(c.Usage.CompletionTokens))
		} else {
			a.partial = true
		}
	}
	if c.Usage != nil {
		r.Usage = c.Usage.counts()
	}
	return text, plain
}

// native takes an event of SGLang's /generate, which says all that there is so far.
func (a *answer) native(c *chunk) {
	r := a.record
	all := appendUnquoted(nil, c.Text)
	brought := all[min(a.length, len(all)):]
	a.length = max(a.length, len(all))
	a.account(int(c.Meta.CompletionTokens))
	a.arrived(brought, len(brought))
	if a.keepText {
		a.text = append(a.text, brought...)
	}
	if a.keepIDs && len(c.OutputIDs) >= len(a.ids) {
		a.ids = append(a.ids[:0], c.OutputIDs...)
	}
	r.Usage = &Usage{PromptTokens: int(c.Meta.PromptTokens), CompletionTokens: int(c.Meta.CompletionTokens), CachedTokens: int(c.Meta.CachedTokens)}
	if why := c.Meta.reason(); why != "" {
		a.ended(why, 0)
	}
}

// arrived notes a chunk of so many bytes of text, which may be none; text are those of the
// first choice.
func (a *answer) arrived(text []byte, bytes int) {
	r := a.record
	if len(r.TokenTimes) == 0 {
		r.FirstToken = a.now
	}
	r.TokenTimes = append(r.TokenTimes, a.now)
	if bytes == 0 {
		r.NoText = append(r.NoText, len(r.TokenTimes)-1)
		return
	}
	if r.FirstText == 0 {
		r.FirstText = a.now
		a.began()
	}
	a.runes(text)
}

// began notes that the answer has its first token now, unless it had one.
func (a *answer) began() {
	if !a.begun {
		a.begun, a.record.FirstToken = true, a.now
	}
}

// runes looks whether a text ends inside a rune, and whether it goes on with one.
func (a *answer) runes(text []byte) {
	if len(text) == 0 || len(a.tail) == 0 && text[len(text)-1] < utf8.RuneSelf {
		return
	}
	if len(a.tail) > 0 {
		text = append(a.tail, text...)
	}
	a.tail = append(a.tail[:0], incomplete(text)...)
	a.halves = a.halves || len(a.tail) > 0
}

// incomplete is the rune that a text ends within.
func incomplete(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return text[i:]
			}
			return nil
		}
	}
	return nil
}

// mostOutput returns a bound of the output tokens that a server may claim: what was asked for, as far as
// a model gives that many at once, or a token for every byte that came. Lists as long as the count are
// made of it.
func (a *answer) mostOutput() int { return a.size + min(max(a.record.Wanted(), 1<<12), 1<<20) }

// account notes the server's count of tokens so far, with a chunk. A count that goes back, as that of
// one of several choices does, or is impossible ends the account.
func (a *answer) account(tokens int) {
	a.partial = a.partial || tokens < a.counted || tokens > a.mostOutput()
	if a.partial {
		return
	}
	a.record.ChunkTokens = append(a.record.ChunkTokens, tokens-a.counted)
	a.counted = tokens
}

// end judges the answer after its last byte. broken is what ended the connection before it,
// nil if the server ended the answer.
func (a *answer) end(broken error) error {
	r := a.record
	var fault *faultError
	switch {
	case a.done: // whatever came after that
		if errors.Is(broken, errAfterDone) {
			r.note(NoteOpen)
		}
		if errors.As(broken, &fault) && fault.kind == FaultGarbage {
			return broken
		}
	case a.status != 0 && a.status != http.StatusOK && !errors.Is(broken, errInterrupted): // whatever became of its text
		return faulty(FaultStatus, statusError(a.status, a.location, a.coding, a.body))
	case errors.Is(broken, errTimeout):
		return faulty(FaultTimeout, fmt.Errorf("%w, after %d chunks", broken, len(r.TokenTimes)))
	case a.status == 0 || errors.Is(broken, errInterrupted) || errors.As(broken, &fault):
		return broken
	}
	if !a.events && broken == nil {
		if err := a.whole(); err != nil {
			return err
		}
	}
	if u := r.Usage; u != nil && !u.possible(a.mostOutput()) {
		r.Usage, r.ChunkTokens = nil, nil
		return faulty(FaultGarbage, fmt.Errorf("usage: %d prompt tokens, %d of the answer: nobody has counted that", u.PromptTokens, u.CompletionTokens))
	}
	if len(r.ChunkTokens) != len(r.TokenTimes) {
		r.ChunkTokens = nil // some chunks came without the server's account
	}
	switch {
	case broken != nil && !a.done:
		return faulty(FaultTruncated, fmt.Errorf("%w, after %d chunks: %w", errTruncated, len(r.TokenTimes), broken))
	case a.events && !a.done && a.parser.pending():
		return faulty(FaultTruncated, fmt.Errorf("%w, inside an event: %.80q", errTruncated, a.parser.line))
	case a.events && !a.done && len(r.TokenTimes) == 0 && a.parser.stray:
		return faulty(FaultGarbage, errors.New("the answer is no stream of events"))
	case a.events && !a.done && !a.finished:
		return faulty(FaultNoEnd, fmt.Errorf("%w, after %d chunks", errTruncated, len(r.TokenTimes)))
	case len(r.TokenTimes) == 0:
		r.Silent = true
		return faulty(FaultEmpty, errNoChunk)
	case r.Usage != nil && r.Usage.CompletionTokens < r.Wanted() && !a.mayStop && !a.stopped:
		return faulty(FaultShort, fmt.Errorf("short output: %d tokens, want %d", r.Usage.CompletionTokens, r.Wanted()))
	}
	a.remark()
	return nil
}

// whole reads an answer that did not stream.
func (a *answer) whole() error {
	var c chunk
	if err := json.Unmarshal(bytes.TrimSpace(a.body), &c); err != nil {
		return faulty(FaultGarbage, unreadable("answer", err, a.body))
	}
	if err := c.impossible(); err != nil {
		return faulty(FaultGarbage, err)
	}
	a.record.LastLine = a.now
	if why := c.fault(); why != "" {
		return faulty(FaultServer, fmt.Errorf("server: %s", why))
	}
	a.take(&c)
	return nil
}

// many is how many tokens are too many to come at once by chance.
const many = 4

// MostInChunk is the most tokens that servers put into a chunk on purpose, by speculation or to
// send fewer chunks. A stream that brings more at once does not stream.
const MostInChunk = 16

// remark notes what is unusual in an answer that did not fail.
func (a *answer) remark() {
	r := a.record
	tokens, chunks := len(r.TokenTimes), len(r.TokenTimes)
	if r.Usage != nil {
		tokens = r.Usage.CompletionTokens
	}
	if r.Usage != nil && r.Usage.CompletionTokens > r.Wanted() {
		r.Notes = append(r.Notes, NoteLong)
	}
	if a.events && !a.done {
		r.note(NoteNoDone)
	}
	if tokens < r.Wanted() && (r.Usage != nil || a.stopped) {
		r.note(NoteStopped)
	}
	switch {
	case tokens >= many && r.TokenTimes[0] == r.TokenTimes[chunks-1] && (!a.events || chunks > 1 || tokens > MostInChunk):
		r.note(NoteNotStreamed)
	case tokens > chunks:
		r.note(NoteChunks)
	}
	if a.halves {
		r.note(NoteHalfRune)
	}
	if len(a.tail) > 0 {
		r.note(NoteHalfEnd)
	}
}
