package tooldraws

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// PythonJSON returns json.dumps(json.loads(raw)): clients count the tokens of the JSON that they write. A space follows
// each comma and colon, numbers are written as Python writes them, and the result is ASCII. If an object has a key
// twice, both are written, where Python keeps the last.
func PythonJSON(raw json.RawMessage) (string, error) {
	var b strings.Builder
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var value func() error
	list := func(end json.Delim, one func() error) error {
		for n := 0; d.More(); n++ {
			if n > 0 {
				b.WriteString(", ")
			}
			if err := one(); err != nil {
				return err
			}
		}
		_, err := d.Token()
		b.WriteString(end.String())
		return err
	}
	value = func() error {
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch v := token.(type) {
		case json.Delim:
			b.WriteString(v.String())
			if v == '[' {
				return list(']', value)
			}
			return list('}', func() error {
				if err := value(); err != nil {
					return err
				}
				b.WriteString(": ")
				return value()
			})
		case string:
			b.WriteString(ascii(v))
		case json.Number:
			b.WriteString(pythonNumber(v))
		case nil:
			b.WriteString("null")
		case bool:
			b.WriteString(strconv.FormatBool(v))
		}
		return nil
	}
	err := value()
	return b.String(), err
}

// ascii is a text as a JSON string of ASCII, with the escapes that Python's json writes.
func ascii(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		case strings.ContainsRune("\b\f\n\r\t", r):
			b.WriteString(map[rune]string{'\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}[r])
		case r > 0xffff: // a pair of surrogates
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// pythonNumber is a number as Python writes it: whole ones as they are, others as repr does, in
// as few digits as say which it is.
func pythonNumber(n json.Number) string {
	if !strings.ContainsAny(n.String(), ".eE") {
		return strings.Replace(n.String(), "-0", "0", 1) // no other whole number begins so
	}
	v, err := n.Float64()
	switch {
	case err != nil && v > 0:
		return "Infinity"
	case err != nil && v < 0:
		return "-Infinity"
	}
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		format = 'e'
	}
	text := strconv.FormatFloat(v, format, -1, 64)
	if format == 'f' && !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
