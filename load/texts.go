package load

import (
	"fmt"
	"math"
	"strings"

	"kvferry/internal/knob"
	"kvferry/load/trace"
)

// orderKnobs are the knobs of vLLM's datasets of a file.
var orderKnobs = Knobs{
	{Name: "disable-shuffle", Group: AskedGroup, Fields: []string{"DisableShuffle"}, Value: knob.Bool(func(s *Spec) *bool { return &s.DisableShuffle }), Help: "ask in the order of the file (vLLM's datasets)"},
	{Name: "no-oversample", Group: AskedGroup, Fields: []string{"NoOversample"}, Value: knob.Bool(func(s *Spec) *bool { return &s.NoOversample }), Help: "ask fewer where the file has fewer than --num-prompts (vLLM's datasets)"},
}

// dressKnobs are the knobs of SGLang's datasets of conversations.
var dressKnobs = Knobs{
	{Name: "apply-chat-template", Group: AskedGroup, Fields: []string{"ChatTemplate"}, Value: knob.Bool(func(s *Spec) *bool { return &s.ChatTemplate }), Help: "put the chat template around prompts (SGLang's datasets)"},
	{Name: "prompt-suffix", Group: AskedGroup, Fields: []string{"PromptSuffix"}, Value: knob.Text(func(s *Spec) *string { return &s.PromptSuffix }), Help: "put this behind each prompt (SGLang's datasets)"},
}

// A row is a request as a dataset has it.
type row struct {
	text string
	max  int // tokens wanted
}

// texts is a source of rows. It keeps those to come; their tokens are found one by one.
type texts struct {
	rows      []row
	tokenizer Tokenizer // nil: lengths are unknown
	bare      bool      // the tokenizer's special tokens are in the texts
	mayStop   bool
}

func (t *texts) Next() (Request, bool, error) {
	if len(t.rows) == 0 {
		return Request{}, false, nil
	}
	next := t.rows[0]
	t.rows[0] = row{}
	t.rows = t.rows[1:]
	r := Request{Text: next.text, MaxTokens: next.max, MayStop: t.mayStop}
	if t.tokenizer != nil {
		r.Prompt = t.tokenizer.Encode(next.text, !t.bare)
	}
	return r, true, nil
}

// length is that of a text in tokens, with those that the tokenizer puts around it; in words
// where no tokenizer is known.
func (s Spec) length(text string) int {
	if s.Tokenizer == nil {
		return len(strings.Fields(text))
	}
	return len(s.Tokenizer.Encode(text, true))
}

// asked are rows as vLLM asks them: the model may end an answer earlier, and where there are
// not enough, they come again. kept says which of the file's they are.
func (s Spec) asked(rows []row, g *Generators, kept string, notes []string) Load {
	if n := len(rows); n < s.Requests {
		note := fmt.Sprintf("%s has %d %s", s.File, n, kept)
		if s.NoOversample {
			note += fmt.Sprintf(", so there are %d requests and not %d", n, s.Requests)
		} else {
			note += fmt.Sprintf(": the other %d requests repeat them, as with vllm bench serve", s.Requests-n)
		}
		notes = append(notes, note)
	}
	rows = s.oversampled(rows, g)
	return Load{Source: &texts{rows: rows, tokenizer: s.Tokenizer, mayStop: true}, Count: len(rows), Notes: notes, Generators: g}
}

// inWords is what a reader has to know of lengths that are no tokens.
func (s Spec) inWords() []string {
	if s.Tokenizer != nil {
		return nil
	}
	return []string{"without --tokenizer the lengths in the dataset are words, not tokens: which requests are long or short enough, and how many tokens are wanted, is not what the tool would choose"}
}

// oversampled are the rows, and as many more as are missing, drawn from them with a fresh
// seed, as vLLM's maybe_oversample_requests does it.
func (s Spec) oversampled(rows []row, g *Generators) []row {
	if s.NoOversample || len(rows) >= s.Requests {
		return rows
	}
	*g.Python = *newGenerators(s.Seed).Python
	have := len(rows)
	for len(rows) < s.Requests {
		rows = append(rows, rows[g.Python.Randrange(have)])
	}
	return rows
}

// shuffled is the order in which vLLM goes through a file.
func shuffled[T any](s Spec, all []T, g *Generators) {
	if !s.DisableShuffle {
		g.Python.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
}

// asUser is a text as the user's turn of a conversation in the model's chat template.
func (s Spec) asUser(text string) (string, error) {
	t, err := s.template(text)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return t, nil
}

// dressed is a prompt as SGLang's conversations are asked: with PromptSuffix, before the word
// for the assistant's turn if the prompt ends with it, and in the chat template, without the
// BOS that the server will put there.
func (s Spec) dressed(text string) (string, error) {
	const assistant = "Assistant:"
	if s.PromptSuffix != "" {
		text = strings.TrimSuffix(text, assistant) + s.PromptSuffix + assistant
	}
	if !s.ChatTemplate {
		return text, nil
	}
	text, err := s.asUser(text)
	if err != nil {
		return "", err
	}
	if bos := s.Tokenizer.BOS(); bos != "" {
		text = strings.ReplaceAll(text, bos, "")
	}
	return text, nil
}

// An exchange is the first question and answer of one in a file.
type exchange struct{ question, answer string }

// conversationRecord is how a file says it. Fields are pointers to tell what is missing.
type conversationRecord struct {
	Conversations []turnRecord `json:"conversations"`
	Conversation  []turnRecord `json:"conversation"`
}

type turnRecord struct {
	Value   *string `json:"value"`
	Content *string `json:"content"`
}

// readConversations reads the first two turns of all conversations that have them, in the
// order of the file, in ShareGPT's format: a list of objects such as
//
//	{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
//
// The tools shuffle all of it before they look at the first, so all of it has to be in memory:
// the texts of the first two turns. SGLang's reader knows another spelling of the key.
func readConversations(name string, sglang bool) ([]exchange, error) {
	f, err := trace.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seen, some := 0, false // records, and whether one of them has turns
	all, err := scanConversations(trace.NewJSON(name, f, ""), func(r conversationRecord) (question, answer *string, _ error) {
		seen++
		turns := r.Conversations
		if turns == nil && sglang {
			turns = r.Conversation
		}
		some = some || turns != nil
		if len(turns) < 2 {
			return nil, nil, nil
		}
		for i, t := range turns[:2] {
			if t.Value == nil {
				return nil, nil, fmt.Errorf("conversations[%d].value is missing: give what was said", i)
			}
		}
		return turns[0].Value, turns[1].Value, nil
	})
	if err == nil && !some {
		err = fmt.Errorf(`%q: it is no JSON list of conversations, such as [{"conversations": [{"value": "Hello"}, {"value": "Hi"}]}]: none of its %d records has any (--dataset-name custom reads JSON lines with a prompt each)`, name, seen)
	}
	return all, err
}

// scanConversations collects what pick takes of each record, if it takes something.
func scanConversations(from *trace.JSON, pick func(conversationRecord) (question, answer *string, err error)) (all []exchange, err error) {
	for {
		var r conversationRecord
		ok, err := from.Next(&r)
		if !ok || err != nil {
			return all, err
		}
		question, answer, err := pick(r)
		if err != nil {
			return nil, from.Fault(err)
		}
		if question != nil {
			all = append(all, exchange{strings.Clone(*question), strings.Clone(*answer)})
		}
	}
}

// wanted is a number of tokens from a file.
func wanted(field string, v *float64) (int, error) {
	switch {
	case v == nil:
		return 0, fmt.Errorf("%s is missing: give how many tokens are wanted, or --custom-output-len for all", field)
	case !(*v >= 1 && *v <= maxLen):
		return 0, fmt.Errorf("%s: %v: use 1 to %d", field, *v, maxLen)
	}
	return int(math.Trunc(*v)), nil
}
