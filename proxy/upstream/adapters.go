package upstream

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kvferry/proto"
)

// This file is what is known of an engine's LoRA adapters. It lists them among its models, with the model
// as their parent (vLLM, SGLang), and vLLM's metrics say which of them requests have, and how many slots
// there are. Which adapters are in slots no engine says: it keeps those that were used last, so the ones that were
// seen last there are taken for that, and those that it was sent.

// slots are those of an engine, as far as is known. The zero value has nothing in them.
type slots struct {
	most  int      // how many there are; 0: not known
	names []string // in the order in which they were last seen; never changed
}

// maxSlots bounds the names that are kept of an engine that does not say how many slots it has.
const maxSlots = 1024

// saw notes that adapters are in use, the last one now.
func (s *slots) saw(names ...string) {
	most := maxSlots
	if s.most > 0 {
		most = s.most
	}
	next := slices.DeleteFunc(slices.Clone(s.names), func(name string) bool { return slices.Contains(names, name) })
	next = append(next, names...)
	s.names = next[max(len(next)-most, 0):]
}

// adapter is the LoRA adapter that a request's model is, empty if it is none. The caller holds mu.
func (e *Engines) adapter(model string) string {
	if slices.ContainsFunc(e.all, func(en *engine) bool { return en.lists[model] || slices.Contains(en.slots.names, model) }) {
		return model
	}
	return ""
}

// serving is Serving for a request. One for a LoRA adapter waits while the engines that list it are down: others
// would say that there is no such model.
func (e *Engines) serving(r *Request) (together bool, err error) {
	if together, err = e.Serving(); err != nil {
		return together, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	lists := func(en *engine) bool {
		return en.lists[r.asked.Model] && (en.role == answers(together) || together && en.role == proto.Role_ROLE_PREFILL)
	}
	if i := slices.IndexFunc(e.all, lists); i >= 0 && !slices.ContainsFunc(e.all, func(en *engine) bool { return lists(en) && en.why == nil }) {
		lost := e.nobody()
		lost.Message = fmt.Sprintf("the engines that have the LoRA adapter %s are down: %s", r.asked.Model, lost.Message)
		return together, lost
	}
	return together, nil
}

// tokenCounts are metrics of vLLM and SGLang.
var tokenCounts = regexp.MustCompile(`(?m)^(?:vllm|sglang):(?:prompt|generation)_tokens_total\S* (\S+)`)

// askMetrics asks an engine which adapters its requests have, and whether it has made progress: with an answer that does
// not stream nothing else tells.
func (e *Engines) askMetrics(ctx context.Context, en *engine) {
	page, err := e.get(ctx, en.url, "/metrics")
	if err != nil {
		return // placement goes without
	}
	most, names, has := readAdapters(page)
	sum := 0.0
	for _, count := range tokenCounts.FindAllSubmatch(page, -1) {
		n, _ := strconv.ParseFloat(string(count[1]), 64)
		sum += n
	}
	now := int64(e.cfg.Clock.Now())
	e.mu.Lock()
	defer e.mu.Unlock()
	if sum != en.counted {
		en.spoke.Store(now)
	}
	en.counted = sum
	for v := range en.visits {
		if sum > 0 && !v.says {
			v.since.CompareAndSwap(math.MaxInt64, now)
		}
	}
	en.tells = has
	if most > 0 {
		en.slots.most = most
	}
	en.slots.saw(names...)
}

// loraInfo is vLLM's metric. Each thing that it has said is a series, whose value is the time at which
// it did.
const loraInfo = "vllm:lora_requests_info"

// readAdapters takes from a page of metrics how many slots an engine has, 0 if it has not said, and the
// adapters of its requests; has is that it tells of them at all.
func readAdapters(page []byte) (most int, names []string, has bool) {
	var lines bytes.Buffer
	for line := range bytes.Lines(page) { // there may be thousands of others
		if bytes.Contains(line, []byte(loraInfo)) {
			lines.Write(line)
			has = true
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&lines)
	if err != nil {
		return 0, nil, false
	}
	latest := -1.0
	for _, m := range families[loraInfo].GetMetric() {
		if m.GetGauge().GetValue() <= latest {
			continue
		}
		latest, most, names = m.GetGauge().GetValue(), 0, nil
		for _, label := range m.GetLabel() {
			switch label.GetName() {
			case "max_lora":
				most, _ = strconv.Atoi(label.GetValue())
			case "waiting_lora_adapters", "running_lora_adapters":
				for name := range strings.SplitSeq(label.GetValue(), ",") {
					if name != "" && !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
			}
		}
	}
	return min(max(most, 0), maxSlots), names, has
}
