package batching

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"kvferry/engine"
	"kvferry/kvcache"
)

// TestTranscripts runs the conversations in testdata. After go test -rewrite,
// commit a changed transcript only if you understand what changed it.
//
// Tokens are letters: the vocabulary has 26. Commands:
//
//	config policy=prefill-first|chunked|vllm-v1|sglang blocks=N block=N [len=N] [seqs=N] [budget=N] [chunk=N] [delay=D] [cache]
//	       [host=N [disk=N]] [long=N] [longest-prefix-first] [conservativeness=PERCENT] [interval=N]
//	       [loras=N] [cpu-loras=N] [merge=always|dynamic] [switch=MS]    adapters cost what adapterCosts says
//	step t=D [not-before=D]        one call of Step, with one event a line:
//	    add ID prompt=abc out=N [ready=D] [kv=await|blocking] [keep] [at-once] [adapter=NAME] [rank=N]
//	    done [at=D] [failed=ID,ID]     with the tokens that the model generates
//	    landed ID [at=D] [given=abc]
//	    cancel ID
//	    copied ID [at=D]
//	    free ID
//	load
//
// The answer lists what Step returned, and then the state: where each sequence
// is, how many tokens it has of which how many are computed, and its blocks. A
// launch is written kind @time: ID[from,to), with a * if a token is drawn, and +D if it takes D more
// because of adapters.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *transcript
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "config":
				var out string
				w, out = newTranscript(t, d)
				return out
			case "step":
				return w.step(t, d)
			case "load":
				l := w.s.Load()
				return fmt.Sprintf("running %d, waiting %d (%d tokens), room for %d, preemptions %d\n", l.Running, l.Waiting, l.WaitingTokens, l.Room, l.Preemptions)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

const letters, vocab = 26, 1000

// adapterCosts are in round numbers: 1 ms a unit of rank from host memory, 10 ms more from disk, 10 µs
// a token and unit of rank, 1 ms for an adapter more.
var adapterCosts = engine.LoRA{BytesPerRank: 1e6, HostGBS: 1, DiskGBS: 0.1, TokenUSPerRank: 10, AdapterMS: 1}

type transcript struct {
	s    *Scheduler
	pool *kvcache.Pool
}

func newTranscript(t *testing.T, d *datadriven.TestData) (*transcript, string) {
	cfg := Config{
		MaxModelLen: 64, MaxNumSeqs: 8, MaxBatchedTokens: 64, ChunkTokens: 8, PrefixCaching: d.HasArg("cache"),
		LongestPrefixFirst: d.HasArg("longest-prefix-first"), LoRA: adapterCosts,
	}
	blocks, block, percent := 16, 4, 100
	var policy, delay string
	var host, disk, change int
	for _, f := range []struct {
		name string
		to   *int
	}{
		{"blocks", &blocks},
		{"block", &block},
		{"len", &cfg.MaxModelLen},
		{"seqs", &cfg.MaxNumSeqs},
		{"budget", &cfg.MaxBatchedTokens},
		{"chunk", &cfg.ChunkTokens},
		{"long", &cfg.LongPrefillTokens},
		{"interval", &cfg.PrefillDecodeInterval},
		{"host", &host},
		{"disk", &disk},
		{"conservativeness", &percent},
		{"loras", &cfg.LoRA.MaxLoRAs},
		{"cpu-loras", &cfg.LoRA.MaxCPULoRAs},
	} {
		maybe(t, d, f.name, f.to)
	}
	cfg.Conservativeness = float64(percent) / 100
	cfg.Tiers = kvcache.NewTiers(host, disk)
	maybe(t, d, "merge", (*string)(&cfg.LoRA.Merged))
	maybe(t, d, "switch", &change)
	cfg.LoRA.SwitchMS = float64(change)
	maybe(t, d, "policy", &policy)
	for _, p := range []Policy{Chunked, V1, SGLang} {
		if policy == p.String() {
			cfg.Policy = p
		}
	}
	if maybe(t, d, "delay", &delay) {
		cfg.OutputDelay = parseDuration(t, delay)
	}
	w := &transcript{pool: kvcache.NewPool(blocks, block, cfg.PrefixCaching)}
	cfg.Pool = w.pool
	s, err := NewScheduler(cfg)
	if err != nil {
		return w, err.Error() + "\n"
	}
	w.s = s
	return w, ""
}

func (w *transcript) step(t *testing.T, d *datadriven.TestData) string {
	var now, notBefore string
	d.ScanArgs(t, "t", &now)
	var gate time.Duration
	if maybe(t, d, "not-before", &notBefore) {
		gate = parseDuration(t, notBefore)
	}
	at := parseDuration(t, now)
	var events []engine.Event
	for line := range strings.Lines(d.Input) {
		events = append(events, w.event(t, at, strings.Fields(line)))
	}
	rd := w.s.Step(at, gate, events...)
	var out strings.Builder
	for _, f := range rd.Refused {
		fmt.Fprintf(&out, "refused %d: %v\n", f.ID, f.Err)
	}
	for _, o := range rd.Outputs {
		last := ""
		if o.Last {
			last = ", the last"
		}
		fmt.Fprintf(&out, "token %d of %d: %s%s\n", o.Position, o.Seq.ID, word(o.Token), last)
	}
	for _, q := range rd.Allocated {
		fmt.Fprintf(&out, "allocated %d: %v\n", q.ID, q.Table.Refs())
	}
	for _, c := range rd.Copies {
		way := [...]string{engine.ToHost: "to host memory", engine.ToGPU: "to the GPU", engine.ToDisk: "to the disk", engine.FromDisk: "from the disk"}[c.Way]
		fmt.Fprintf(&out, "copy %d @%v: %d blocks %s %v\n", c.ID, c.Since, c.Blocks, way, c.Refs)
	}
	if rd.Launch != nil {
		fmt.Fprintf(&out, "launch %s\n", describe(rd.Launch))
	}
	if rd.Wake > 0 {
		fmt.Fprintf(&out, "wake %v\n", rd.Wake)
	}
	if out.Len() == 0 {
		out.WriteString("nothing\n")
	}
	out.WriteString(w.state())
	return out.String()
}

// describe is a step on a line.
func describe(s *engine.Step) string {
	out := fmt.Sprintf("%v @%v:", s.Kind, s.At)
	for _, k := range s.Works {
		out += fmt.Sprintf(" %d[%d,%d)", k.Seq.ID, k.From, k.From+k.N)
		if k.Sample {
			out += "*"
		}
	}
	if s.Extra > 0 {
		out += fmt.Sprintf(" +%v", s.Extra)
	}
	return out
}

func (w *transcript) state() string {
	var out strings.Builder
	for _, l := range []struct {
		name string
		list []*sequence
	}{{"future", w.s.future}, {"waiting", w.s.waiting}, {"pending", w.s.pending}, {"running", w.s.running}, {"kept", w.kept()}} {
		if len(l.list) == 0 {
			continue
		}
		fmt.Fprintf(&out, "  %s:", l.name)
		for _, q := range l.list {
			fmt.Fprintf(&out, " %d(%d/%d %v)", q.ID, q.Held, q.Len(), q.Table.Refs())
		}
		out.WriteByte('\n')
	}
	if l := w.s.Load(); len(l.Adapters) > 0 {
		fmt.Fprintf(&out, "  adapters: %v\n", l.Adapters)
	}
	if a := &w.s.adapters; a.cfg.Merged == engine.MergeDynamic {
		fmt.Fprintf(&out, "  merged: %q, credits:", a.merged)
		for _, name := range slices.Sorted(maps.Keys(a.merging.credit)) {
			fmt.Fprintf(&out, " %q %.2f", name, a.merging.credit[name])
		}
		out.WriteByte('\n')
	}
	fmt.Fprintf(&out, "  pool: %d of %d used\n", w.pool.Used(), w.pool.Total())
	return out.String()
}

func (w *transcript) kept() (list []*sequence) {
	for _, q := range w.s.seqs {
		if q.where == kept {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *sequence) int { return int(a.ID) - int(b.ID) })
	return list
}

func (w *transcript) event(t *testing.T, now time.Duration, words []string) engine.Event {
	t.Helper()
	arg := map[string]string{}
	var id uint64
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if n, err := strconv.ParseUint(key, 10, 64); err == nil {
			id = n
			continue
		}
		arg[key] = value
	}
	at := now
	if s, ok := arg["at"]; ok {
		at = parseDuration(t, s)
	}
	switch words[0] {
	case "add":
		r := engine.Request{ID: id, Prompt: tokens(arg["prompt"]), Ready: now, Adapter: arg["adapter"]}
		r.AdapterRank, _ = strconv.Atoi(arg["rank"])
		r.MaxTokens, _ = strconv.Atoi(arg["out"])
		if s, ok := arg["ready"]; ok {
			r.Ready = parseDuration(t, s)
		}
		switch arg["kv"] {
		case "await":
			r.KV = engine.Await
		case "blocking":
			r.KV = engine.Blocking
		}
		_, r.Keep = arg["keep"]
		_, r.AtOnce = arg["at-once"]
		return engine.Add{Request: r}
	case "done":
		ev := engine.Done{At: at}
		for s := range strings.SplitSeq(arg["failed"], ",") {
			if n, err := strconv.ParseUint(s, 10, 64); err == nil {
				ev.Failed = append(ev.Failed, n)
			}
		}
		if w.s.Current() == nil {
			t.Fatal("done: no step is under way")
		}
		ev.Tokens = generate(w.s.Current(), ev.Failed, letters)
		return ev
	case "landed":
		return engine.Landed{ID: id, At: at, Given: tokens(arg["given"])}
	case "cancel":
		return engine.Cancel{ID: id}
	case "copied":
		return engine.Copied{ID: id, At: at}
	case "free":
		return engine.Free{ID: id}
	}
	t.Fatalf("unknown event %q", words[0])
	return nil
}

// generate is what the model draws in a step.
func generate(step *engine.Step, failed []uint64, vocab int) (out []kvcache.Token) {
	for _, k := range step.Works {
		if k.Sample && !slices.Contains(failed, k.Seq.ID) {
			out = append(out, k.Seq.NextToken(vocab))
		}
	}
	return out
}

func tokens(s string) (out []kvcache.Token) {
	for _, c := range s {
		out = append(out, kvcache.Token(c-'a'))
	}
	return out
}

func word(ts ...kvcache.Token) (s string) {
	for _, t := range ts {
		s += string(rune('a' + t))
	}
	return s
}

// maybe scans an argument that may be missing, and reports whether it is there.
func maybe(t *testing.T, d *datadriven.TestData, name string, to any) bool {
	if d.HasArg(name) {
		d.ScanArgs(t, name, to)
		return true
	}
	return false
}

func parseDuration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
