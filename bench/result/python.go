package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"kvferry/internal/config"
)

// Python's json writes Infinity, -Infinity and NaN, which JSON does not have: SGLang's
// request_rate is Infinity unless one was given.

var bareWords = []string{"-Infinity", "Infinity", "NaN"}

// Files are read into memory whole, so the words are replaced there: a decoder of our own for
// three words that JSON lacks would be a second way of reading JSON.

// quoted puts quotation marks around numbers that JSON does not have, outside of strings. A text
// without such a word is returned as it is.
func quoted(text []byte) []byte {
	if !bytes.Contains(text, []byte("Infinity")) && !bytes.Contains(text, []byte("NaN")) {
		return text
	}
	var out bytes.Buffer
	inString := false
next:
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case inString && c == '\\' && i+1 < len(text):
			out.WriteByte(c)
			i++
			c = text[i]
		case c == '"':
			inString = !inString
		case !inString:
			for _, word := range bareWords {
				if bytes.HasPrefix(text[i:], []byte(word)) {
					out.WriteString(`"` + word + `"`)
					i += len(word) - 1
					continue next
				}
			}
		}
		out.WriteByte(c)
	}
	return out.Bytes()
}

// A number reads numbers as Python writes them, in the quotation marks of quoted, and vLLM's "inf",
// which it puts into marks itself.
type number float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(text []byte) error {
	word := string(text)
	if len(text) > 0 && text[0] == '"' {
		if err := json.Unmarshal(text, &word); err != nil {
			return err
		}
		switch strings.ToLower(word) {
		case "inf", "infinity":
			*n = number(math.Inf(1))
			return nil
		case "-inf", "-infinity":
			*n = number(math.Inf(-1))
			return nil
		case "nan":
			*n = number(math.NaN())
			return nil
		}
		return fmt.Errorf("%q is no number", word)
	}
	v, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return fmt.Errorf("%.40s is no number", word)
	}
	*n = number(v)
	return nil
}

// fields are those of a JSON object that somebody else wrote. They are looked at one by one, so
// that an error names the key, and a key that is missing is known from one that is 0.
type fields map[string]json.RawMessage

// has is whether a key is there, and not null.
func (f fields) has(key string) bool {
	v, ok := f[key]
	return ok && string(v) != "null"
}

// get reads the value of a key; it leaves v alone where there is none.
func (f fields) get(key string, v any) error {
	if !f.has(key) {
		return nil
	}
	err := config.Unmarshal(f[key], v, false)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "the value: "))
	}
	return nil
}

// text is a key's value in a few words: a string or a number; "" of anything else.
func (f fields) text(key string) string {
	if !f.has(key) {
		return ""
	}
	var n number
	if json.Unmarshal(f[key], &n) == nil {
		return numberText(float64(n))
	}
	var s string
	if json.Unmarshal(f[key], &s) == nil {
		return s
	}
	var b bool
	if json.Unmarshal(f[key], &b) == nil {
		return strconv.FormatBool(b)
	}
	return ""
}

// numberText is a number in the fewest digits: 4, 0.5, inf.
func numberText(v float64) string {
	if math.IsInf(v, 1) {
		return "inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
