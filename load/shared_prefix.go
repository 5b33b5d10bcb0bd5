package load

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
	"kvferry/load/tooldraws"
)

// sharedPrefixKnobs are the knobs of groups of questions.
var sharedPrefixKnobs = Knobs{
	{Name: "gsp-num-groups", Group: AskedGroup, Fields: []string{"SharedPrefix.Groups"}, Default: "64", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.Groups }), Help: "system prompts"},
	{Name: "gsp-prompts-per-group", Group: AskedGroup, Fields: []string{"SharedPrefix.PromptsPerGroup"}, Default: "16", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.PromptsPerGroup }), Help: "questions to each system prompt"},
	{Name: "gsp-system-prompt-len", Group: AskedGroup, Fields: []string{"SharedPrefix.SystemPromptLen"}, Default: "2048", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.SystemPromptLen }), Help: "tokens of a system prompt"},
	{Name: "gsp-question-len", Aliases: []string{inputLen}, Group: AskedGroup, Fields: []string{"SharedPrefix.QuestionLen"}, Default: "128", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.QuestionLen }), Help: "tokens of a question"},
	{Name: "gsp-output-len", Aliases: []string{outputLen}, Group: AskedGroup, Fields: []string{"SharedPrefix.OutputLen"}, Default: "256", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.OutputLen }), Help: "output tokens"},
	{Name: "gsp-range-ratio", Group: AskedGroup, Fields: []string{"SharedPrefix.RangeRatio"}, Default: "1", Value: knob.Float(func(s *Spec) *float64 { return &s.SharedPrefix.RangeRatio }), Help: "lengths are uniform from length x this to length"},
	{Name: "gsp-num-turns", Group: AskedGroup, Fields: []string{"SharedPrefix.Turns"}, Default: "1", Value: knob.Int(func(s *Spec) *int { return &s.SharedPrefix.Turns }), Help: "questions of a conversation"},
	{Name: "gsp-ordered", Group: AskedGroup, Fields: []string{"SharedPrefix.Ordered"}, Value: knob.Bool(func(s *Spec) *bool { return &s.SharedPrefix.Ordered }), Help: "group by group; shuffled otherwise"},
	{Name: "gsp-group-distribution", Group: AskedGroup, Fields: []string{"SharedPrefix.Distribution"}, Default: "uniform", Values: words("uniform", "zipf"), Value: knob.Text(func(s *Spec) *string { return &s.SharedPrefix.Distribution }), Help: "how many requests a group has: uniform (as many each) or zipf (in proportion to 1/rank^alpha)"},
	{Name: "gsp-zipf-alpha", Group: AskedGroup, Fields: []string{"SharedPrefix.ZipfAlpha"}, Unused: uniformGroups, Value: knob.Float(func(s *Spec) *float64 { return &s.SharedPrefix.ZipfAlpha }), Help: "alpha of zipf"},
	{Name: "gsp-send-routing-key", Group: AskedGroup, Fields: []string{"SharedPrefix.RoutingKey"}, Value: knob.Bool(func(s *Spec) *bool { return &s.SharedPrefix.RoutingKey }), Help: "say by the header X-SMG-Routing-Key which requests have the same system prompt"},
}

// uniformGroups returns why alpha has no effect where groups are of one size.
func uniformGroups(s *Spec) string {
	if s.SharedPrefix.Distribution == "uniform" {
		return "it is for --gsp-group-distribution zipf"
	}
	return ""
}

var sharedPrefixKind = Kind{
	Name:  SharedPrefixName,
	About: "groups of random questions, each group after a random system prompt",
	Knobs: slices.Concat(Knobs{seedKnob}, sharedPrefixKnobs),
	Times: Arriving,
	Check: checkSharedPrefix,
	Open:  sglangSharedPrefix,
}

// SharedPrefix are its options. Lengths are tokens, and the longest that are drawn.
type SharedPrefix struct {
	Groups          int // system prompts
	PromptsPerGroup int
	SystemPromptLen int
	QuestionLen     int
	OutputLen       int
	RangeRatio      float64 // lengths are uniform from length x this to length
	Turns           int     // questions of a conversation; 1 is a request alone
	Ordered         bool    // group by group; shuffled otherwise
	// Distribution is "uniform" or "zipf", which needs ZipfAlpha; if it is empty, ZipfAlpha says which.
	Distribution string
	// ZipfAlpha draws the group of each request with a probability of 1/rank^alpha; at 0
	// every group has as many.
	ZipfAlpha float64
	// RoutingKey has each request say by a header whose system prompt it begins with, so that a
	// router may send them to one worker.
	RoutingKey bool
}

// slot is one conversation that is to come. The system prompt is its group's and is not copied.
type slot struct {
	group     int
	questions [][]kvcache.Token
	output    int
}

// groups is the source: conversations to come.
type promptGroups struct {
	systems   [][]kvcache.Token
	slots     []slot
	tokenizer Tokenizer // nil: tokens as they were drawn
	routing   string    // what a routing key begins with; no keys if empty
	turn      int       // the next of slots[0]
	n         int       // requests so far
}

// sglangSharedPrefix is GeneratedSharedPrefixDataset. It asks Groups x PromptsPerGroup
// conversations, whatever Requests says, as the tool does. Group names the system prompt.
//
// The tool draws all tokens before it shuffles, so they are in memory, 4 bytes a token.
func sglangSharedPrefix(s Spec) (Load, error) {
	o, g := s.SharedPrefix, newGenerators(s.Seed)
	conversations := o.Groups * o.PromptsPerGroup
	systemLens := sglangLengths(g.Numpy, o.SystemPromptLen, o.RangeRatio, o.Groups)
	questionLens := sglangLengths(g.Numpy, o.QuestionLen, o.RangeRatio, conversations*o.Turns)
	outputLens := sglangLengths(g.Numpy, o.OutputLen, o.RangeRatio, conversations)

	vocab := s.Vocab
	if s.Tokenizer != nil {
		vocab = s.Tokenizer.Len() // the added tokens too
	}
	r := &promptGroups{}
	if !s.TokenIDs {
		r.tokenizer = s.Tokenizer
	}
	if o.RoutingKey { // the tool's has the time and a random number: ours is the same for the same seed
		r.routing = fmt.Sprintf("kvferry_%d_", s.Seed)
	}
	for _, n := range systemLens {
		r.systems = append(r.systems, chosen(g.Python, n, vocab))
	}
	group := groupsOf(o, s.Seed)
	for i := range conversations {
		next := slot{group: group[i], output: int(outputLens[i])}
		for _, n := range questionLens[i*o.Turns : (i+1)*o.Turns] {
			next.questions = append(next.questions, chosen(g.Python, n, vocab))
		}
		r.slots = append(r.slots, next)
	}
	if !o.Ordered {
		g.Python.Shuffle(conversations, func(i, j int) { r.slots[i], r.slots[j] = r.slots[j], r.slots[i] })
	}
	l := Load{Source: r, Count: conversations, Generators: &g}
	if n := conversations * o.Turns; s.Requests > 0 && n != s.Requests {
		l.Notes = append(l.Notes, fmt.Sprintf("%d requests: groups x prompts x turns, as with sglang.bench_serving, whatever number was asked for", n))
	}
	return l, nil
}

// groupsOf says which group each conversation belongs to. The tool draws that from a
// generator of its own.
func groupsOf(o SharedPrefix, seed uint64) []int {
	conversations := o.Groups * o.PromptsPerGroup
	if o.ZipfAlpha == 0 {
		of := make([]int, conversations)
		for i := range of {
			of[i] = i / o.PromptsPerGroup
		}
		return of
	}
	p := make([]float64, o.Groups) // Choice scales them to 1
	for i := range p {
		p[i] = 1 / math.Pow(float64(i+1), o.ZipfAlpha)
	}
	return tooldraws.DefaultRNG(seed).Choice(p, conversations)
}

// chosen are random tokens.
func chosen(r *tooldraws.PythonRandom, n int32, vocab int) []kvcache.Token {
	ids := make([]kvcache.Token, n)
	for i := range ids {
		ids[i] = kvcache.Token(r.Choices(vocab))
	}
	return ids
}

func (r *promptGroups) Next() (Request, bool, error) {
	if len(r.slots) == 0 {
		return Request{}, false, nil
	}
	now := &r.slots[0]
	next := Request{Prompt: now.questions[r.turn], MaxTokens: now.output, Group: "group-" + strconv.Itoa(now.group)}
	if r.routing != "" {
		next.Routing = r.routing + strconv.Itoa(now.group)
	}
	if r.tokenizer != nil {
		next.Text = r.tokenizer.Decode(next.Prompt, false)
	}
	if system := r.systems[now.group]; r.turn > 0 {
		next.Continues, next.After = true, []int{r.n - 1}
	} else {
		next.Prompt = append(append(make([]kvcache.Token, 0, len(system)+len(next.Prompt)), system...), next.Prompt...)
		if r.tokenizer != nil {
			next.Text = r.tokenizer.Decode(system, false) + "\n\n" + next.Text
		}
	}
	if r.tokenizer != nil { // what the text has in tokens, which may be more or fewer than were drawn
		next.Prompt = r.tokenizer.Encode(next.Text, r.turn == 0)
	}
	r.n++
	now.questions[r.turn] = nil
	if r.turn++; r.turn == len(now.questions) {
		r.turn = 0
		r.slots[0] = slot{}
		r.slots = r.slots[1:]
	}
	return next, true, nil
}

// checkSharedPrefix bounds each number before their product: it must not overflow.
func checkSharedPrefix(s Spec, bad *config.Faults) {
	checkSeed(s, bad)
	checkVocab(s, bad)
	o := s.SharedPrefix
	const most = 1 << 20 // of each; checkHeld bounds all of them together
	config.Between(bad, "SharedPrefix.Groups", o.Groups, 1, most)
	config.Between(bad, "SharedPrefix.PromptsPerGroup", o.PromptsPerGroup, 1, most)
	config.Between(bad, "SharedPrefix.SystemPromptLen", o.SystemPromptLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.QuestionLen", o.QuestionLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.OutputLen", o.OutputLen, 1, maxLen)
	config.Between(bad, "SharedPrefix.Turns", o.Turns, 1, 1<<16)
	checkSGLangRatio(bad, "SharedPrefix.RangeRatio", o.RangeRatio)
	switch o.Distribution {
	case "", "uniform":
	case "zipf":
		bad.Refuse(!(o.ZipfAlpha > 0), "SharedPrefix.ZipfAlpha", o.ZipfAlpha, "use more than 0 with --gsp-group-distribution zipf")
	default:
		bad.Add("SharedPrefix.Distribution", o.Distribution, "use uniform or zipf")
	}
	bad.Refuse(!(o.ZipfAlpha >= 0) || math.IsInf(o.ZipfAlpha, 1), "SharedPrefix.ZipfAlpha", o.ZipfAlpha, "use more than 0, or 0 for as many of each group")
	if s.TokenIDs && o.Turns > 1 && s.Tokenizer != nil {
		bad.Add("TokenIDs", true, "a conversation of several turns is text: leave --tokenize-prompt out, or use one turn")
	}
	questions := float64(o.Groups) * float64(o.PromptsPerGroup) * float64(o.Turns)
	checkHeld(bad, "SharedPrefix.Groups", o.Groups, questions*float64(o.QuestionLen)+float64(o.Groups)*float64(o.SystemPromptLen))
}
