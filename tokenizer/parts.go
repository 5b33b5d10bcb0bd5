package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"

	"kvferry/internal/config"
	"kvferry/kvcache"
)

// A part is a component of a tokenizer.json, an object with a type.
type part struct {
	path, kind string
	raw        json.RawMessage
}

func newPart(raw json.RawMessage, path string) (part, error) {
	var head struct{ Type string }
	if len(raw) == 0 || string(raw) == "null" {
		return part{}, fmt.Errorf("%s: none given: want an object with a type", path)
	}
	if err := config.Unmarshal(raw, &head, false); err != nil {
		return part{}, fmt.Errorf("%s: %w", path, err)
	}
	return part{path, head.Type, raw}, nil
}

// anyPart has do called with a part if the file has it.
func anyPart(raw json.RawMessage, path string, do func(part) error) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	p, err := newPart(raw, path)
	if err != nil {
		return err
	}
	return do(p)
}

// into reads the part's fields. One that v does not have is an error: it might change tokens.
func (p part) into(v any) error {
	if err := config.Unmarshal(p.raw, v, true); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return nil
}

func (p part) refuse(known ...string) error {
	return fmt.Errorf("%s.type: %.60q is not read here: use %s", p.path, p.kind, config.Or(known))
}

// parts are those of a Sequence, whose field has a name of its own in each stage. Sequences
// within sequences are made one.
func (p part) parts(field string) ([]part, error) {
	if p.kind != "Sequence" {
		return []part{p}, nil
	}
	fields := map[string]json.RawMessage{}
	if err := p.into(&fields); err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := config.Unmarshal(fields[field], &list, true); err != nil {
		return nil, fmt.Errorf("%s.%s: %w", p.path, field, err)
	}
	var all []part
	for i, raw := range list {
		one, err := newPart(raw, fmt.Sprintf("%s.%s[%d]", p.path, field, i))
		if err != nil {
			return nil, err
		}
		inner, err := one.parts(field)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// patternFile is what Split and Replace look for.
type patternFile struct {
	String *string
	Regex  *string
}

func (p part) normalizer() (normalizer, error) {
	parts, err := p.parts("normalizers")
	if err != nil {
		return nil, err
	}
	var all []normalizer
	for _, p := range parts {
		var n normalizer
		switch p.kind {
		case "NFC", "NFD", "NFKC", "NFKD":
			if err := p.into(&struct{ Type string }{}); err != nil {
				return nil, err
			}
			n = form(map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}[p.kind])
		case "Prepend":
			var v struct {
				Type    string
				Prepend string `json:"prepend"`
			}
			if err := p.into(&v); err != nil {
				return nil, err
			}
			n = func(text string) string { return v.Prepend + text }
		case "Replace":
			from, to, err := p.replacement()
			if err != nil {
				return nil, err
			}
			n = func(text string) string { return strings.ReplaceAll(text, from, to) }
		default:
			return nil, p.refuse("NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence")
		}
		all = append(all, n)
	}
	return func(text string) string {
		for _, n := range all {
			if text != "" {
				text = n(text)
			}
		}
		return text
	}, nil
}

// replacement reads a Replace of a normalizer or decoder.
func (p part) replacement() (from, to string, err error) {
	var v struct {
		Type    string
		Pattern patternFile `json:"pattern"`
		Content string      `json:"content"`
	}
	if err := p.into(&v); err != nil {
		return "", "", err
	}
	if v.Pattern.String == nil || *v.Pattern.String == "" {
		return "", "", fmt.Errorf("%s.pattern: only a String that is not empty is read here", p.path)
	}
	return *v.Pattern.String, v.Content, nil
}

// splitter reads the pre_tokenizer. asBytes says that the model's characters are bytes.
func (p part) splitter() (s splitter, asBytes bool, err error) {
	parts, err := p.parts("pretokenizers")
	if err != nil {
		return nil, false, err
	}
	var all []splitter
	for _, p := range parts {
		if asBytes {
			return nil, false, fmt.Errorf("%s.type: %q after ByteLevel is not read here: put ByteLevel last", p.path, p.kind)
		}
		s, err := p.oneSplitter()
		if err != nil {
			return nil, false, err
		}
		asBytes = p.kind == "ByteLevel"
		if s != nil {
			all = append(all, s)
		}
	}
	return chain(all), asBytes, nil
}

func (p part) oneSplitter() (splitter, error) {
	switch p.kind {
	case "ByteLevel":
		v := byteLevelFile{AddSpace: true, UseRegex: true}
		if err := p.into(&v); err != nil {
			return nil, err
		}
		return byteLevel(v.AddSpace, v.UseRegex), nil
	case "Split":
		var v struct {
			Type     string
			Pattern  patternFile `json:"pattern"`
			Behavior string      `json:"behavior"`
			Invert   bool        `json:"invert"`
		}
		if err := p.into(&v); err != nil {
			return nil, err
		}
		if !slices.Contains(behaviors, v.Behavior) {
			return nil, fmt.Errorf("%s.behavior: %.60q: use %s", p.path, v.Behavior, config.Or(behaviors))
		}
		find, err := p.finder(v.Pattern)
		if err != nil {
			return nil, err
		}
		if v.Pattern.Regex != nil && v.Behavior == "Isolated" && known[*v.Pattern.Regex] != nil {
			return known[*v.Pattern.Regex].splitter(), nil // the same in one step
		}
		return cutBy(find, v.Behavior, v.Invert), nil
	case "Digits":
		var v struct {
			Type       string
			Individual bool `json:"individual_digits"`
		}
		if err := p.into(&v); err != nil {
			return nil, err
		}
		if v.Individual {
			return cutBy(findRunes(isNumber), "Isolated", false), nil
		}
		return cutBy(findRunes(isNumber), "Contiguous", false), nil
	case "Metaspace":
		v, err := p.metaspace()
		if err != nil {
			return nil, err
		}
		return metaspace(v.Replacement, v.Scheme, v.Split == nil || *v.Split), nil
	case "Whitespace", "WhitespaceSplit":
		if err := p.into(&struct{ Type string }{}); err != nil {
			return nil, err
		}
		if p.kind == "Whitespace" {
			return words, nil
		}
		return cutBy(findRunes(unicode.IsSpace), "Removed", false), nil
	}
	return nil, p.refuse("ByteLevel", "Digits", "Metaspace", "Sequence", "Split", "Whitespace", "WhitespaceSplit")
}

// behaviors are what becomes of the text that Split cuts by; see cutBy.
var behaviors = []string{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}

func (p part) finder(v patternFile) (finder, error) {
	switch {
	case v.String != nil && *v.String != "":
		return findText(*v.String), nil
	case v.Regex == nil:
		return nil, fmt.Errorf("%s.pattern: want a String or a Regex", p.path)
	case known[*v.Regex] != nil:
		return findPattern(known[*v.Regex]), nil
	}
	// What the Python library's expressions, Oniguruma's, have and .NET's lack or read otherwise.
	for _, what := range []string{"&&", "[[:", `\h`, `\H`, `\R`, `\X`, `\K`, `\g`, `\A`, `\G`, `\b`, `\B`, `\P`, `\p{^`, "(?~"} {
		if strings.Contains(*v.Regex, what) {
			return nil, fmt.Errorf("%s.pattern.Regex: %.200q: %s is not read here", p.path, *v.Regex, what)
		}
	}
	re, err := regexp2.Compile(widen(*v.Regex), regexp2.Multiline) // ^ and $ are those of lines in Oniguruma
	if err != nil {
		return nil, fmt.Errorf("%s.pattern.Regex: %w", p.path, err)
	}
	if empty, _ := re.MatchString(""); empty {
		return nil, fmt.Errorf("%s.pattern.Regex: %.200q matches the empty text: nothing can be cut by that", p.path, *v.Regex)
	}
	return findRegex(re), nil
}

// byteLevelFile is ByteLevel in any stage. Offsets are not counted here, so that trim_offsets
// changes nothing.
type byteLevelFile struct {
	Type        string
	AddSpace    bool `json:"add_prefix_space"`
	TrimOffsets bool `json:"trim_offsets"`
	UseRegex    bool `json:"use_regex"`
}

// metaspaceFile is Metaspace, of the pre_tokenizer or the decoder. Files before 2024 have
// AddSpace and StrRep in place of Scheme.
type metaspaceFile struct {
	Type        string
	Replacement string  `json:"replacement"`
	Scheme      string  `json:"prepend_scheme"`
	Split       *bool   `json:"split"`
	AddSpace    *bool   `json:"add_prefix_space"`
	StrRep      *string `json:"str_rep"`
}

func (p part) metaspace() (metaspaceFile, error) {
	v := metaspaceFile{}
	if err := p.into(&v); err != nil {
		return v, err
	}
	if v.Scheme == "" {
		v.Scheme = "always"
		if v.AddSpace != nil && !*v.AddSpace {
			v.Scheme = "never"
		}
	}
	switch {
	case len([]rune(v.Replacement)) != 1:
		return v, fmt.Errorf("%s.replacement: %.60q: want one character", p.path, v.Replacement)
	case v.StrRep != nil && *v.StrRep != v.Replacement:
		return v, fmt.Errorf("%s.str_rep: %.60q: want the replacement, %q", p.path, *v.StrRep, v.Replacement)
	case !slices.Contains([]string{"always", "first", "never"}, v.Scheme):
		return v, fmt.Errorf("%s.prepend_scheme: %.60q: use always, first or never", p.path, v.Scheme)
	}
	return v, nil
}

// around reads the post_processor: what it puts before and after a text.
func (p part) around(t *Tokenizer) error {
	parts, err := p.parts("processors")
	if err != nil {
		return err
	}
	templates := 0
	for _, p := range parts {
		switch p.kind {
		case "ByteLevel": // offsets only
			if err := p.into(&byteLevelFile{}); err != nil {
				return err
			}
		case "TemplateProcessing":
			if templates++; templates > 1 {
				return fmt.Errorf("%s.type: a second TemplateProcessing is not read here", p.path)
			}
			if err := p.template(t); err != nil {
				return err
			}
		default:
			return p.refuse("ByteLevel", "Sequence", "TemplateProcessing")
		}
	}
	return nil
}

func (p part) template(t *Tokenizer) error {
	var v struct {
		Type   string
		Single []struct {
			SpecialToken *struct {
				ID   string `json:"id"`
				Type int    `json:"type_id"`
			}
			Sequence *struct {
				ID   string `json:"id"`
				Type int    `json:"type_id"`
			}
		} `json:"single"`
		Pair   json.RawMessage `json:"pair"` // two texts at once: not asked for here
		Tokens map[string]struct {
			ID     string          `json:"id"`
			IDs    []kvcache.Token `json:"ids"`
			Tokens []string        `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := p.into(&v); err != nil {
		return err
	}
	seen := false
	for i, item := range v.Single {
		at := fmt.Sprintf("%s.single[%d]", p.path, i)
		switch {
		case item.SpecialToken != nil:
			token, ok := v.Tokens[item.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%s: %.60q is not in special_tokens", at, item.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if int(id) >= len(t.exists) || !t.exists[id] {
					return fmt.Errorf("%s.special_tokens: %d is no token", p.path, id)
				}
			}
			if seen {
				t.after = append(t.after, token.IDs...)
			} else {
				t.before = append(t.before, token.IDs...)
			}
		case item.Sequence != nil && item.Sequence.ID == "A" && !seen:
			seen = true
		default:
			return fmt.Errorf("%s: want a SpecialToken, or Sequence A once", at)
		}
	}
	if !seen {
		return fmt.Errorf("%s.single: Sequence A is missing", p.path)
	}
	return nil
}

func (p part) decoders() ([]decodeStep, error) {
	parts, err := p.parts("decoders")
	if err != nil {
		return nil, err
	}
	var steps []decodeStep
	for _, p := range parts {
		step, err := p.decoder()
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func (p part) decoder() (decodeStep, error) {
	none := struct{ Type string }{}
	switch p.kind {
	case "ByteLevel":
		return decodeByteLevel, p.into(&byteLevelFile{})
	case "ByteFallback":
		return decodeFallback, p.into(&none)
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, p.into(&none)
	case "Replace":
		from, to, err := p.replacement()
		return func(tokens []string) []string {
			out := make([]string, len(tokens))
			for i, t := range tokens {
				out[i] = strings.ReplaceAll(t, from, to)
			}
			return out
		}, err
	case "Strip":
		var v struct {
			Type    string
			Content string `json:"content"`
			Start   int    `json:"start"`
			Stop    int    `json:"stop"`
		}
		if err := p.into(&v); err != nil {
			return nil, err
		}
		if v.Content == "" {
			return nil, errors.New(p.path + ".content: none given: want a character")
		}
		return decodeStrip(v.Content, v.Start, v.Stop), nil
	case "Metaspace":
		v, err := p.metaspace()
		return decodeMetaspace(v.Replacement, v.Scheme != "never"), err
	}
	return nil, p.refuse("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip")
}
