package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	gonja "github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"

	"kvferry/internal/config"
	"kvferry/load"
)

// A chat is a chat template.
type chat struct {
	template *exec.Template
	fault    error // why there is none that can be rendered
	tokens   map[string]any
}

// configure reads what transformers reads beside a tokenizer.json; nil is a file that is not
// there. Most fields of the configuration say what tokenizer.json says too, which counts.
func (t *Tokenizer) configure(settings, template []byte) error {
	t.chat = &chat{fault: errors.New("the tokenizer has no chat template: its folder needs a " + ConfigFileName + " with chat_template, or a " + TemplateFileName), tokens: map[string]any{}}
	fields := map[string]json.RawMessage{}
	if settings != nil {
		if err := config.Unmarshal(settings, &fields, false); err != nil {
			return err
		}
		if err := t.name(fields); err != nil {
			return err
		}
	}
	source := string(template) // the file of its own counts, if there is one
	if template == nil {
		var err error
		if source, err = chatTemplate(fields["chat_template"]); err != nil || source == "" {
			return err
		}
	}
	t.chat.template, t.chat.fault = compile(source)
	return nil
}

// name finds the tokens that the configuration names.
func (t *Tokenizer) name(fields map[string]json.RawMessage) error {
	ids := map[string]uint32{}
	for id, text := range t.tokens {
		if t.exists[id] {
			ids[text] = uint32(id)
		}
	}
	t.named = t.named[:0]
	add := func(field string, raw json.RawMessage) error {
		if len(raw) == 0 || string(raw) == "null" {
			return nil
		}
		text := ""
		var object struct {
			Content string `json:"content"`
		}
		if json.Unmarshal(raw, &text) != nil {
			if err := json.Unmarshal(raw, &object); err != nil {
				return fmt.Errorf("%s: %.60s: want a token", field, raw)
			}
			text = object.Content
		}
		if id, ok := ids[text]; ok {
			t.named, t.special[id] = append(t.named, id), true
		} else if text != "" {
			return fmt.Errorf("%s: %.60q is not in %s: add it there", field, text, FileName)
		}
		t.chat.tokens[field] = text
		return nil
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		switch field { // these say whether, not which
		case "add_bos_token", "add_eos_token", "split_special_token":
			continue
		}
		// bos_token, eos_token, pad_token, and a model's own, such as image_token. Templates
		// know them by these names.
		if strings.HasSuffix(field, "_token") {
			if err := add(field, fields[field]); err != nil {
				return err
			}
		}
	}
	for _, field := range []string{"additional_special_tokens", "extra_special_tokens"} {
		var list []json.RawMessage
		if json.Unmarshal(fields[field], &list) != nil {
			continue // absent, or an object whose tokens are those of a processor of images
		}
		for i, raw := range list {
			if err := add(fmt.Sprintf("%s[%d]", field, i), raw); err != nil {
				return err
			}
		}
	}
	slices.Sort(t.named)
	t.named = slices.Compact(t.named)
	return nil
}

// chatTemplate is the text of the field chat_template, "" if there is none. Of a list it is
// the one that is called default.
func chatTemplate(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", fmt.Errorf("chat_template: %.60s: want a text, or a list of names and templates", raw)
	}
	for _, t := range list {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", errors.New(`chat_template: none of the list is called "default"`)
}

// compile reads a template with the settings that transformers gives to Jinja. A template is
// a program of its own: it has no files to include, and what it raises is an error.
func compile(source string) (t *exec.Template, err error) {
	defer func() {
		if r := recover(); r != nil { // the library's own way to give up on some templates
			t, err = nil, fmt.Errorf("chat_template: %v", r)
		}
	}()
	settings := gonja.New()
	settings.TrimBlocks, settings.LeftStripBlocks = true, true
	const name = "/chat_template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	t, err = exec.NewTemplate(name, settings, loader, &exec.Environment{
		Context: exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables),
		Filters: builtins.Filters, Tests: builtins.Tests, ControlStructures: builtins.ControlStructures, Methods: builtins.Methods,
	})
	if err != nil {
		// The library's error repeats the template; where it stopped comes last.
		why := err.Error()
		return nil, fmt.Errorf("chat_template: it cannot be rendered here: %s", why[max(0, strings.LastIndex(why, "': ")+3, len(why)-200):])
	}
	return t, nil
}

// Chat renders a conversation by the model's chat template, as transformers'
// apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt) does. prompt is
// whether the mark that the assistant's turn begins comes last. The text has its BOS, if the
// template puts one: encode it without special tokens. An error says that there is no
// template, that it cannot be rendered here, or what it does not accept.
func (t *Tokenizer) Chat(messages []load.Message, prompt bool) (text string, err error) {
	if t.chat.fault != nil {
		return "", t.chat.fault
	}
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("chat_template: %v", r)
		}
	}()
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = map[string]any{"role": m.Role, "content": m.Content}
	}
	values := map[string]any{
		"messages": list, "add_generation_prompt": prompt, "tools": nil, "documents": nil,
		"raise_exception": func(why string) (string, error) { return "", errors.New(why) },
		"strftime_now":    func(format string) string { return strftime(time.Now(), format) },
	}
	for name, token := range t.chat.tokens {
		values[name] = token
	}
	var b strings.Builder
	if err := t.chat.template.Execute(&b, exec.NewContext(values)); err != nil {
		return "", fmt.Errorf("chat_template: %w", err)
	}
	return b.String(), nil
}

// strftime is the date as templates ask for it ("%d %b %Y").
func strftime(now time.Time, format string) string {
	return strings.NewReplacer("%d", now.Format("02"), "%m", now.Format("01"), "%b", now.Format("Jan"), "%B", now.Format("January"),
		"%Y", now.Format("2006"), "%y", now.Format("06"), "%H", now.Format("15"), "%M", now.Format("04"), "%S", now.Format("05"),
		"%A", now.Format("Monday"), "%a", now.Format("Mon"), "%%", "%").Replace(format)
}
