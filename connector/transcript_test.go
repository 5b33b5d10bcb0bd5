package connector

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// TestTranscripts runs the conversations in testdata between a prefill node p
// and a decode node d, of the small profile: 2 layers, blocks of 4 tokens, 0.5 MB
// of KV and 0.25 MB of hidden states a token, tokens that are letters. After go
// test -rewrite, commit a changed transcript only if you understand what changed
// it.
//
//	nodes [blocks=N] [delay=D] [in=D] [out=D] [cache] [recheck]   two new nodes; delay is output_delay_ms,
//	                                      in and out the front end's of a request and of a token
//	p|d t=D                               one call of Step, with one event a line:
//	    submit ID LEG [HANDOFF] prompt=abc out=N [deadline=D] [age=D]
//	           [tokens=N] [blocks=I,I|none] [first=N]    instead of what the other node offered
//	           [ahead]                                   without it
//	           [reserve=N]                               of a migration
//	    direct ID [tokens=N]
//	    migrate ID known=N                resume ID        continue ID tokens=abc
//	    cancel ID                         closed ID        lapsed ID
//	    read                              done [at=D]      layer N [at=D]
//	    produce T                         release T
//	    produced ID tensor=N              gone ID [withdrawn]
//	    moved ID part=N [posted=D] [at=D] [fails|withdrawn]
//	    arrived ID part=N [token=a|blocks=N] [at=D]
//	    checked ID part=N [bad=N] [again [from=N]]
//	totals p|d                            what the node has counted
//
// T is a transfer, part -1 everything; of v0, parts 0, 1, 2 are K, V and the
// hidden states. The answer lists the actions, and after the line of dashes the
// requests and the pool. A move has the time at which it starts, or should have, if
// it says so; a leg's end has what of its breakdown is not zero.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *stage
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "nodes":
				w = newStage(t, d)
				return ""
			case "p":
				return w.p.transcribe(t, d)
			case "d":
				return w.d.transcribe(t, d)
			case "totals":
				node := map[string]*actor{"p": w.p, "d": w.d}[d.CmdArgs[0].Key]
				return strings.Trim(fmt.Sprintf("%+v", node.core.Totals()), "{}") + "\n"
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// A stage has two nodes, and remembers what they offered each other.
type stage struct{ p, d *actor }

type actor struct {
	name   string
	core   *Core
	pool   *kvcache.Pool
	other  *actor
	offers map[uint64]Remote // of this node, by request

	computing bool // its executor has a step
	checks    Checks
	again     map[uint64][][]kvcache.Ref // of checks under way, by request
}

func newStage(t *testing.T, d *datadriven.TestData) *stage {
	prof := smallProfile()
	blocks := 16
	if d.HasArg("blocks") {
		d.ScanArgs(t, "blocks", &blocks)
	}
	for name, cost := range map[string]*float64{"delay": &prof.Costs.OutputDelayMS, "in": &prof.Costs.FrontEndInMS, "out": &prof.Costs.FrontEndOutMS} {
		if d.HasArg(name) {
			*cost = duration(t, arg(d, name)).Seconds() * 1e3
		}
	}
	node := func(name string) *actor {
		pool := kvcache.NewPool(blocks, prof.KVGeometry.BlockTokens, d.HasArg("cache"))
		cfg := batching.ConfigOf(prof, false, pool)
		cfg.PrefixCaching = d.HasArg("cache")
		sched, err := batching.NewScheduler(cfg)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		core, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: prof})
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		a := &actor{name: name, core: core, pool: pool, offers: map[uint64]Remote{}, again: map[uint64][][]kvcache.Ref{}}
		every, _ := strconv.Atoi(arg(d, "every"))
		a.checks = Checks{Hit: d.HasArg("hit"), First: d.HasArg("first"), Last: d.HasArg("recheck"), Every: every}
		return a
	}
	w := &stage{p: node("p"), d: node("d")}
	w.p.other, w.d.other = w.d, w.p
	return w
}

func (a *actor) transcribe(t *testing.T, d *datadriven.TestData) string {
	now := duration(t, arg(d, "t"))
	var events []Event
	for line := range strings.Lines(d.Input) {
		events = append(events, a.event(t, now, strings.Fields(line)))
	}
	var out strings.Builder
	act := a.core.Step(now, events...)
	a.computing = a.computing || act.Launch != nil
	if got := a.core.Computing(); got != a.computing {
		d.Fatalf(t, "computing: %v, want %v", got, a.computing)
	}
	a.print(&out, act)
	if out.Len() == 0 {
		out.WriteString("nothing\n")
	}
	out.WriteString("--\n")
	states := [...]string{"running", "offered", "moving", "checking", "closing", "ending", "abandoned"}
	for _, id := range slices.Sorted(maps.Keys(a.core.reqs)) {
		r := a.core.reqs[id]
		fmt.Fprintf(&out, "%d %s", id, states[r.state])
		if r.open {
			out.WriteString(", window open")
		}
		if r.moves > 0 {
			fmt.Fprintf(&out, ", %d moves", r.moves)
		}
		if n := r.checks + r.again; n > 0 {
			fmt.Fprintf(&out, ", %d checks", n)
		}
		if r.verdict != nil {
			out.WriteString(", to be reported")
		}
		out.WriteString("; ")
	}
	fmt.Fprintf(&out, "%d blocks used\n", a.pool.Used())
	return out.String()
}

func (a *actor) print(out *strings.Builder, act *Actions) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	for _, f := range act.Failed {
		p("failed %d: %v", f.ID, f.Err)
	}
	for _, t := range act.Tokens {
		p("token %d of %d: %s", t.Position, t.ID, letter(t.Token))
	}
	for _, o := range act.Reserved {
		p("reserved %d: transfer %d, %s", o.ID, o.Transfer, a.offer(o, 0))
	}
	for _, f := range act.Prefilled {
		if f.Offer == nil {
			p("prefilled %d: first token %s%s", f.ID, letter(f.FirstToken), took(f.Cached, &f.Breakdown))
			continue
		}
		p("prefilled %d: first token %s, transfer %d, %s%s",
			f.ID, letter(f.FirstToken), f.Offer.Transfer, a.offer(*f.Offer, f.FirstToken), took(f.Cached, &f.Breakdown))
	}
	for _, m := range act.Migrated {
		switch what := ""; {
		case m.Err != nil:
			p("stays %d: %v", m.ID, m.Err)
		default:
			for _, t := range m.Tokens {
				what += letter(t)
			}
			p("migrated %d to transfer %d, and %s%s", m.ID, m.Transfer, what, took(m.Cached, &m.Breakdown))
		}
	}
	for _, f := range act.Finished {
		p("finished %d%s", f.ID, took(f.Cached, &f.Breakdown))
	}
	if s := act.Launch; s != nil {
		read := ""
		if act.Read {
			read = ", say when read"
		}
		p("launch %s%s", describe(s), read)
	}
	for _, k := range act.Ask {
		if k.Release {
			p("tell %s of %d: release %d", k.Node, k.ID, k.Transfer)
		} else {
			p("ask %s for %d: produce %d", k.Node, k.ID, k.Transfer)
		}
	}
	for _, k := range act.Answer {
		if k.Gone {
			p("answer: transfer %d is gone", k.Transfer)
		} else {
			p("answer: transfer %d, tensor %d is available", k.Transfer, k.Tensor)
		}
	}
	for _, m := range act.Moves {
		verb, arrow := "read", "<-"
		if m.Write {
			verb, arrow = "write", "->"
		}
		line := fmt.Sprintf("%s part %d of %d", verb, m.Part, m.ID)
		if m.Since > 0 {
			line += fmt.Sprintf(" @%v", m.Since)
		}
		line += ":"
		for _, k := range m.Pairs {
			line += fmt.Sprintf(" #%d %v%s%v", k.Index, k.Local, arrow, k.Remote)
		}
		if m.To != "" {
			line += fmt.Sprintf(" to %s, up to token %d", m.To, m.Tokens)
		}
		if m.Imm {
			line += ", immediate"
			switch {
			case m.To != "":
				line += fmt.Sprintf(": %d blocks", m.Token)
			case m.Part == a.core.layers()-1:
				line += " with " + letter(m.Token)
			}
		}
		p("%s", line)
	}
	for _, c := range act.Checks {
		again := ""
		if c.Again {
			again = " again"
			a.again[c.ID] = append(a.again[c.ID], c.Refs)
		}
		p("check part %d of %d%s: from #%d %v", c.Part, c.ID, again, c.First, c.Refs)
	}
	for _, id := range act.Halt {
		p("halt the moves of %d", id)
	}
	for _, id := range act.Close {
		p("close the window of %d", id)
	}
	for _, id := range act.Drop {
		p("drop %d", id)
	}
	if act.Wake > 0 {
		p("wake %v", act.Wake)
	}
}

// took is what of a breakdown is not zero, after the prompt tokens that the prefix
// cache had.
func took(cached int, b *Breakdown) (out string) {
	for _, part := range []struct {
		name string
		d    time.Duration
	}{
		{"proxy", b.Proxy},
		{"queue", b.Queue},
		{"prefill", b.Prefill},
		{"post", b.Post},
		{"wire", b.Wire},
		{"land", b.Land},
		{"first decode", b.FirstDecode},
	} {
		if part.d != 0 {
			out += fmt.Sprintf(", %s %v", part.name, part.d)
		}
	}
	if b.Bytes > 0 {
		out += fmt.Sprintf(", %d bytes", b.Bytes)
	}
	if b.Migrated > 0 {
		out += fmt.Sprintf(", %d bytes to where it goes on", b.Migrated)
	}
	if b.Checked > 0 {
		out += fmt.Sprintf(", %d checked", b.Checked)
	}
	if b.Bad > 0 {
		out += fmt.Sprintf(", %d bad", b.Bad)
	}
	if out != "" {
		out = "\n    took" + strings.TrimPrefix(out, ",")
	}
	if cached > 0 {
		out = fmt.Sprintf(", %d cached", cached) + out
	}
	return out
}

func describe(s *engine.Step) string {
	out := fmt.Sprintf("%v @%v:", s.Kind, s.At)
	for _, k := range s.Works {
		out += fmt.Sprintf(" %d[%d,%d)", k.Seq.ID, k.From, k.From+k.N)
	}
	if s.Extra > 0 {
		out += fmt.Sprintf(" extra %v", s.Extra)
	}
	return out
}

// offer remembers what the node offers, and prints it.
func (a *actor) offer(o Offer, first kvcache.Token) string {
	r := Remote{Node: a.name, Transfer: o.Transfer, Tokens: o.Tokens, FirstToken: first}
	out := fmt.Sprintf("%d tokens in", o.Tokens)
	for i, b := range o.Blocks {
		r.Blocks = append(r.Blocks, kvcache.Entry{Index: o.First + i, Ref: b})
		out += fmt.Sprintf(" #%d %v", o.First+i, b)
	}
	a.offers[o.ID] = r
	return out
}

var errWire = errors.New("wire cut")

// fault is what went wrong, as the words say.
func fault(words []string) error {
	if slices.Contains(words, "withdrawn") {
		return ErrWithdrawn
	}
	return errWire
}

func (a *actor) event(t *testing.T, now time.Duration, words []string) Event {
	t.Helper()
	opts := map[string]string{}
	var names []string
	var id uint64
	for _, word := range words[1:] {
		key, value, isOpt := strings.Cut(word, "=")
		n, err := strconv.ParseUint(key, 10, 64)
		switch {
		case err == nil:
			id = n
		case isOpt:
			opts[key] = value
		default:
			names = append(names, key)
		}
	}
	num := func(key string) int { n, _ := strconv.Atoi(opts[key]); return n }
	when := func(key string, otherwise time.Duration) time.Duration {
		if s, ok := opts[key]; ok {
			return duration(t, s)
		}
		return otherwise
	}
	switch words[0] {
	case "submit":
		ev := Submit{ID: id, Prompt: letters(opts["prompt"]), MaxTokens: num("out"), Age: when("age", 0), Deadline: when("deadline", 0), Checks: a.checks}
		ev.Leg = handoff.Leg(slices.Index([]string{"full", "prefill", "decode"}, names[0]))
		if ev.Ahead = slices.Contains(names, "ahead"); ev.Ahead {
			names = names[:len(names)-1]
		}
		if len(names) > 1 {
			h, err := handoff.Carried(names[1])
			if err != nil {
				t.Fatal(err)
			}
			ev.Handoff = h
		}
		if ev.Remote = a.other.offers[id]; ev.Ahead {
			ev.Remote = Remote{}
		}
		if _, ok := opts["tokens"]; ok {
			ev.Remote.Tokens = num("tokens")
		}
		if _, ok := opts["first"]; ok {
			ev.Remote.FirstToken = kvcache.Token(num("first"))
		}
		if s, ok := opts["blocks"]; ok {
			ev.Remote.Blocks = nil
			for i := range strings.SplitSeq(s, ",") {
				if n, err := strconv.Atoi(i); err == nil {
					ev.Remote.Blocks = append(ev.Remote.Blocks, kvcache.Entry{Index: n})
				}
			}
		}
		ev.Reserve = num("reserve")
		return ev
	case "migrate":
		return Migrate{ID: id, Remote: a.other.offers[id], Known: num("known")}
	case "resume":
		return Resume{ID: id}
	case "continue":
		return Continue{ID: id, Tokens: letters(opts["tokens"])}
	case "direct":
		ev := Direct{id, a.other.offers[id]}
		if _, ok := opts["tokens"]; ok {
			ev.Remote.Tokens = num("tokens")
		}
		return ev
	case "cancel":
		return Cancel{id}
	case "lapsed":
		return Lapsed{id}
	case "closed":
		return Closed{id}
	case "done":
		step := a.core.sched.Current()
		if step == nil {
			t.Fatal("done: no step is under way")
		}
		a.computing = false
		ev := StepDone{At: when("at", now)}
		for _, k := range step.Works {
			if k.Sample {
				ev.Tokens = append(ev.Tokens, k.Seq.NextToken(a.core.cfg.Profile.Vocab))
			}
		}
		return ev
	case "read":
		return StepRead{}
	case "layer":
		return LayerDone{Layer: int(id), At: when("at", now)}
	case "produce":
		return Produce{id}
	case "release":
		return Release{id}
	case "produced":
		return Produced{ID: id, Tensor: num("tensor")}
	case "gone":
		return Gone{ID: id, Err: fault(names)}
	case "moved":
		ev := Moved{ID: id, Part: num("part"), Bytes: 1, Posted: when("posted", now), At: when("at", now)}
		if len(names) > 0 {
			ev.Err = fault(names)
		}
		return ev
	case "arrived":
		ev := Arrived{ID: id, Part: num("part"), At: when("at", now), Token: kvcache.Token(num("blocks"))}
		if s := opts["token"]; s != "" {
			ev.Token = letters(s)[0]
		}
		return ev
	case "checked":
		ev := Checked{ID: id, Part: num("part"), Blocks: 1, Bad: num("bad")}
		if ev.Bad > 0 {
			ev.Err = errors.New("block 0 differs")
		}
		if slices.Contains(names, "again") {
			ev.Again, ev.Refs, ev.From = true, a.again[id][0], num("from")
			if a.again[id] = a.again[id][1:]; ev.Bad > 0 {
				ev.Err = fmt.Errorf("%w: block %d differs", ErrChanged, ev.From)
			}
		}
		return ev
	}
	t.Fatalf("unknown event %q", words[0])
	return nil
}

func arg(d *datadriven.TestData, name string) string {
	for _, a := range d.CmdArgs {
		if a.Key == name && len(a.Vals) == 1 {
			return a.Vals[0]
		}
	}
	return ""
}

func letters(s string) (out []kvcache.Token) {
	for _, c := range s {
		out = append(out, kvcache.Token(c-'a'))
	}
	return out
}

func letter(t kvcache.Token) string { return string(rune('a' + t)) }

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
