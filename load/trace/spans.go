package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Spans reads OpenTelemetry spans that follow the conventions for generative AI
// (gen_ai.*). A file has, one after the other or as a list:
//
//	OTLP as JSON   {"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}: what a collector's file exporter writes
//	sessions       {"trace_id": "t1", "spans": [...]}
//	spans          {"trace_id": "t1", "span_id": "s1", "parent_span_id": null, "start_time": "2026-02-25T10:00:00Z", ...}
//
// Attributes are OTLP's list of keys and values, or an object. A span is a call if its
// gen_ai.operation.name is chat, generate_content or text_completion, or if it has token
// counts and no other name; of such spans within one another the innermost is. Spans
// around calls are agents, or tools that call a model themselves. Spans that failed are left out.
//
// Traces with the same gen_ai.conversation.id are one session. Spans come when they end,
// and a session's from many places, so all are read at once: some 300 bytes a span, and
// its texts.
type Spans struct{ held }

// OpenSpans reads a file of spans, or the files of a folder. The sessions are in order of
// their starts.
func OpenSpans(path string) (*Spans, error) {
	names, err := files(path)
	if err != nil {
		return nil, err
	}
	var all spanSet
	for _, name := range names {
		f, err := Open(name)
		if err != nil {
			return nil, err
		}
		err = all.read(name, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return all.spans()
}

// ReadSpans reads spans from r. name is for errors.
func ReadSpans(name string, r io.Reader) (*Spans, error) {
	var all spanSet
	if err := all.read(name, r); err != nil {
		return nil, err
	}
	return all.spans()
}

// spanJSON is a span, or what has spans, in any of the forms.
type spanJSON struct {
	Resource []struct {
		Scope []struct {
			Spans []spanJSON `json:"spans"`
		} `json:"scopeSpans"`
	} `json:"resourceSpans"`
	Spans []spanJSON `json:"spans"`

	TraceID    string          `json:"trace_id"`
	SpanID     string          `json:"span_id"`
	ParentID   string          `json:"parent_span_id"`
	Start      string          `json:"start_time"`
	End        string          `json:"end_time"`
	OTLPTrace  string          `json:"traceId"`
	OTLPSpan   string          `json:"spanId"`
	OTLPParent string          `json:"parentSpanId"`
	StartNano  json.RawMessage `json:"startTimeUnixNano"`
	EndNano    json.RawMessage `json:"endTimeUnixNano"`

	Attributes json.RawMessage `json:"attributes"`
	Status     struct {
		Code any `json:"code"`
	} `json:"status"`
}

// A span is what is kept of one.
type span struct {
	trace, id, parent string
	start, end        int64 // ns since 1970
	call              *Call // nil if it is none
	order             int
	where             string // file and line
}

// spanSet are the spans of files.
type spanSet struct {
	all           []*span
	conversations map[string]string // of traces
}

// read adds the spans of a file.
func (s *spanSet) read(name string, r io.Reader) error {
	if s.conversations == nil {
		s.conversations = map[string]string{}
	}
	rows := NewJSON(name, r, "")
	for {
		var v spanJSON
		ok, err := rows.Next(&v)
		if !ok || err != nil {
			return err
		}
		where := fmt.Sprintf("%s:%d", name, rows.Line())
		var list []spanJSON
		switch {
		case v.Resource != nil:
			for _, r := range v.Resource {
				for _, sc := range r.Scope {
					list = append(list, sc.Spans...)
				}
			}
		case v.Spans != nil:
			for _, in := range v.Spans {
				in.TraceID = cmp.Or(in.TraceID, in.OTLPTrace, v.TraceID)
				list = append(list, in)
			}
		default:
			list = []spanJSON{v}
		}
		for _, v := range list {
			if err := s.add(&v, where); err != nil {
				return rows.Fault(err)
			}
		}
	}
}

// add adds a span. A call that failed is kept as a span: others may be its children.
func (s *spanSet) add(v *spanJSON, where string) (err error) {
	p := &span{
		trace: cmp.Or(v.TraceID, v.OTLPTrace), id: cmp.Or(v.SpanID, v.OTLPSpan), parent: cmp.Or(v.ParentID, v.OTLPParent),
		order: len(s.all), where: where,
	}
	if p.trace == "" || p.id == "" {
		return errors.New("trace_id or span_id is missing: a span has both")
	}
	fail := func(err error) error { return fmt.Errorf("span %s: %w", p.id, err) }
	if p.start, err = spanTime("start_time", v.Start, v.StartNano); err != nil {
		return fail(err)
	}
	if p.end, err = spanTime("end_time", v.End, v.EndNano); err != nil {
		return fail(err)
	}
	if p.end < p.start {
		return fail(errors.New("end_time: it is before start_time"))
	}
	attrs, err := attributes(v.Attributes)
	if err != nil {
		return fail(err)
	}
	if id := attrs.text("gen_ai.conversation.id"); id != "" {
		s.conversations[p.trace] = id
	}
	switch fmt.Sprint(v.Status.Code) {
	case "2", "STATUS_CODE_ERROR", "ERROR":
	default:
		if attrs.calls() {
			if p.call, err = attrs.call(); err != nil {
				return fail(err)
			}
		}
	}
	s.all = append(s.all, p)
	return nil
}

// spanTime reads nanoseconds since 1970, or a date and a time.
func spanTime(field, text string, nano json.RawMessage) (int64, error) {
	if digits := strings.Trim(string(nano), `"`); digits != "" && digits != "null" {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%s: %s: want nanoseconds since 1970", field, digits)
		}
		return n, nil
	}
	if text == "" {
		return 0, fmt.Errorf("%s is missing", field)
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil && at.Year() >= 1970 && at.Year() < 2262 {
			return at.UnixNano(), nil
		}
	}
	return 0, fmt.Errorf("%s: %q: want a date and a time, like 2026-02-25T10:00:00.5Z", field, text)
}

// spans makes sessions of what was read.
func (s *spanSet) spans() (*Spans, error) {
	groups := map[string][]*span{}
	for _, p := range s.all {
		id := cmp.Or(s.conversations[p.trace], p.trace)
		groups[id] = append(groups[id], p)
	}
	all := new(Spans)
	for id, group := range groups {
		session, err := session(id, group)
		if err != nil {
			return nil, err
		}
		if session != nil {
			all.sessions = append(all.sessions, session)
		}
	}
	all.sort()
	return all, nil
}

// session is a group of spans as a tree; nil if no model is called.
func session(id string, group []*span) (*Session, error) {
	type key struct{ trace, id string }
	known := map[key]*span{}
	for _, p := range group {
		known[key{p.trace, p.id}] = p
	}
	children := map[*span][]*span{}
	var roots []*span
	for _, p := range group {
		// A parent that is not in the file was not exported, or not sampled: its children are
		// beginnings.
		if over := known[key{p.trace, p.parent}]; over != nil && over != p {
			children[over] = append(children[over], p)
		} else {
			roots = append(roots, p)
		}
	}
	if len(known) < len(group) {
		return nil, fmt.Errorf("%s: trace %s has two spans of the same span_id", group[0].where, id)
	}
	t := &tree{children: children}
	items := t.items(roots)
	if t.seen < len(group) {
		return nil, fmt.Errorf("%s: trace %s has spans that are their own parents' parents", group[0].where, id)
	}
	if len(items) == 0 {
		return nil, nil
	}
	start := items[0].start
	for _, i := range items {
		start = min(start, i.start)
	}
	shift(items, start)
	return newSession(id, time.Unix(0, int64(start)).UTC(), items), nil
}

// A tree makes items of spans; seen counts them, so that those in a circle are missed.
type tree struct {
	children map[*span][]*span
	seen     int
}

// items are spans with calls in them. Their times are still since 1970. An agent that was
// not waited for may end after the span that started it.
func (t *tree) items(of []*span) (items []*item) {
	slices.SortFunc(of, func(a, b *span) int { return cmp.Compare(a.order, b.order) })
	for _, p := range of {
		t.seen++
		i := &item{start: time.Duration(p.start), end: time.Duration(p.end), inner: t.items(t.children[p])}
		for _, in := range i.inner {
			i.end = max(i.end, in.end)
		}
		if len(i.inner) == 0 {
			if i.call = p.call; i.call == nil {
				continue
			}
			i.call.Start, i.call.End = i.start, i.end
		}
		items = append(items, i)
	}
	return items
}

// shift makes times since the session began of those since 1970.
func shift(items []*item, start time.Duration) {
	for _, i := range items {
		i.start -= start
		i.end -= start
		if i.call != nil {
			i.call.Start, i.call.End = i.start, i.end
		}
		shift(i.inner, start)
	}
}
