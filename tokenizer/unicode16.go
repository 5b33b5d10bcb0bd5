package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// newCharacters are those that Unicode has had since 15.0, whose tables Go's standard library
// has, up to 16.0, whose tables the Python library has, with their general categories:
// DerivedGeneralCategory.txt of 16.0 less that of 15.0. They are in ascending order.
var newCharacters = []struct {
	low, high rune
	category  string
}{
	{0x897, 0x897, "Mn"},
	{0x1b4e, 0x1b4f, "Po"},
	{0x1b7f, 0x1b7f, "Po"},
	{0x1c89, 0x1c89, "Lu"},
	{0x1c8a, 0x1c8a, "Ll"},
	{0x2427, 0x2429, "So"},
	{0x2ffc, 0x2fff, "So"},
	{0x31e4, 0x31e5, "So"},
	{0x31ef, 0x31ef, "So"},
	{0xa7cb, 0xa7cc, "Lu"},
	{0xa7cd, 0xa7cd, "Ll"},
	{0xa7da, 0xa7da, "Lu"},
	{0xa7db, 0xa7db, "Ll"},
	{0xa7dc, 0xa7dc, "Lu"},
	{0x105c0, 0x105f3, "Lo"},
	{0x10d40, 0x10d49, "Nd"},
	{0x10d4a, 0x10d4d, "Lo"},
	{0x10d4e, 0x10d4e, "Lm"},
	{0x10d4f, 0x10d4f, "Lo"},
	{0x10d50, 0x10d65, "Lu"},
	{0x10d69, 0x10d6d, "Mn"},
	{0x10d6e, 0x10d6e, "Pd"},
	{0x10d6f, 0x10d6f, "Lm"},
	{0x10d70, 0x10d85, "Ll"},
	{0x10d8e, 0x10d8f, "Sm"},
	{0x10ec2, 0x10ec4, "Lo"},
	{0x10efc, 0x10efc, "Mn"},
	{0x11380, 0x11389, "Lo"},
	{0x1138b, 0x1138b, "Lo"},
	{0x1138e, 0x1138e, "Lo"},
	{0x11390, 0x113b5, "Lo"},
	{0x113b7, 0x113b7, "Lo"},
	{0x113b8, 0x113ba, "Mc"},
	{0x113bb, 0x113c0, "Mn"},
	{0x113c2, 0x113c2, "Mc"},
	{0x113c5, 0x113c5, "Mc"},
	{0x113c7, 0x113ca, "Mc"},
	{0x113cc, 0x113cd, "Mc"},
	{0x113ce, 0x113ce, "Mn"},
	{0x113cf, 0x113cf, "Mc"},
	{0x113d0, 0x113d0, "Mn"},
	{0x113d1, 0x113d1, "Lo"},
	{0x113d2, 0x113d2, "Mn"},
	{0x113d3, 0x113d3, "Lo"},
	{0x113d4, 0x113d5, "Po"},
	{0x113d7, 0x113d8, "Po"},
	{0x113e1, 0x113e2, "Mn"},
	{0x116d0, 0x116e3, "Nd"},
	{0x1171e, 0x1171e, "Mc"},
	{0x11bc0, 0x11be0, "Lo"},
	{0x11be1, 0x11be1, "Po"},
	{0x11bf0, 0x11bf9, "Nd"},
	{0x11f5a, 0x11f5a, "Mn"},
	{0x13460, 0x143fa, "Lo"},
	{0x16100, 0x1611d, "Lo"},
	{0x1611e, 0x16129, "Mn"},
	{0x1612a, 0x1612c, "Mc"},
	{0x1612d, 0x1612f, "Mn"},
	{0x16130, 0x16139, "Nd"},
	{0x16d40, 0x16d42, "Lm"},
	{0x16d43, 0x16d6a, "Lo"},
	{0x16d6b, 0x16d6c, "Lm"},
	{0x16d6d, 0x16d6f, "Po"},
	{0x16d70, 0x16d79, "Nd"},
	{0x18cff, 0x18cff, "Lo"},
	{0x1cc00, 0x1ccef, "So"},
	{0x1ccf0, 0x1ccf9, "Nd"},
	{0x1cd00, 0x1ceb3, "So"},
	{0x1e5d0, 0x1e5ed, "Lo"},
	{0x1e5ee, 0x1e5ef, "Mn"},
	{0x1e5f0, 0x1e5f0, "Lo"},
	{0x1e5f1, 0x1e5fa, "Nd"},
	{0x1e5ff, 0x1e5ff, "Po"},
	{0x1f8b2, 0x1f8bb, "So"},
	{0x1f8c0, 0x1f8c1, "So"},
	{0x1fa89, 0x1fa89, "So"},
	{0x1fa8f, 0x1fa8f, "So"},
	{0x1fabe, 0x1fabe, "So"},
	{0x1fac6, 0x1fac6, "So"},
	{0x1fadc, 0x1fadc, "So"},
	{0x1fadf, 0x1fadf, "So"},
	{0x1fae9, 0x1fae9, "So"},
	{0x1fbcb, 0x1fbef, "So"},
	{0x2ebf0, 0x2ee5d, "Lo"},
}

// newCategory is the general category of a character of newCharacters, or "".
func newCategory(r rune) string {
	i, _ := slices.BinarySearchFunc(newCharacters, r, func(c struct {
		low, high rune
		category  string
	}, r rune,
	) int {
		return int(c.high) - int(r)
	})
	if i == len(newCharacters) || r < newCharacters[i].low {
		return ""
	}
	return newCharacters[i].category
}

// A class is what the patterns of pre-tokenizers tell characters apart by.
type class uint8

const (
	other  class = iota
	letter       // \p{L}
	number       // \p{N}
	blank        // \s, but for the next
	line         // \r and \n
)

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for c := range t {
		t[c] = slowClass(rune(c))
	}
	return t
}()

// classAt is the class of text's character at i, and its length in bytes.
func classAt(text string, i int) (class, int) {
	if c := text[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	return slowClass(r), n
}

func slowClass(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return line
	case 0x4e00 <= r && r <= 0x9fff: // most of Chinese, without a look at the tables
		return letter
	case isLetter(r):
		return letter
	case isNumber(r):
		return number
	case unicode.IsSpace(r):
		return blank
	}
	return other
}

func isLetter(r rune) bool {
	return unicode.IsLetter(r) || r >= newCharacters[0].low && strings.HasPrefix(newCategory(r), "L")
}

func isNumber(r rune) bool {
	return unicode.IsNumber(r) || r >= newCharacters[0].low && strings.HasPrefix(newCategory(r), "N")
}

// isWord is \w of Rust's regular expressions.
func isWord(r rune) bool {
	if c := newCategory(r); c != "" {
		return c[0] == 'L' || c[0] == 'M' || c == "Nd"
	}
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// widen is a regular expression whose \p{L} and other general categories have the new
// characters too.
func widen(regex string) string {
	var b strings.Builder
	inClass := false
	for i := 0; i < len(regex); {
		switch c := regex[i]; {
		case c != '\\' || i+1 == len(regex):
			if c == '[' {
				inClass = true
			} else if c == ']' {
				inClass = false
			}
			b.WriteByte(c)
			i++
		case strings.HasPrefix(regex[i:], `\p{`) && strings.Contains(regex[i:], "}"):
			end := i + strings.IndexByte(regex[i:], '}')
			of := regex[i+3 : end]
			set := regex[i : end+1]
			for _, n := range newCharacters {
				if strings.HasPrefix(n.category, of) {
					set += fmt.Sprintf("%c-%c", n.low, n.high)
				}
			}
			if inClass {
				b.WriteString(set)
			} else {
				b.WriteString("[" + set + "]")
			}
			i = end + 1
		default:
			b.WriteString(regex[i : i+2])
			i += 2
		}
	}
	return b.String()
}
