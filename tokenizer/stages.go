package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// This file has the stages that a file may ask for; file.go reads which.

// chain is splitters in a row: each cuts the pieces of the one before.
func chain(splitters []splitter) splitter {
	switch len(splitters) {
	case 0:
		return nil
	case 1:
		return splitters[0]
	}
	head, rest := splitters[0], chain(splitters[1:])
	return func(text string, first bool, emit func(string, bool)) {
		head(text, first, func(piece string, first bool) { rest(piece, first, emit) })
	}
}

// A finder finds what a splitter cuts by: it emits the text from end to end as spans that
// match and spans between them. No span is empty.
type finder func(text string, emit func(span string, match bool))

// cutBy is the pre_tokenizer Split. invert makes matches of what is between them.
func cutBy(find finder, behavior string, invert bool) splitter {
	return func(text string, first bool, emit func(string, bool)) {
		at := 0
		piece := func(n int) {
			if n > 0 {
				emit(text[at:at+n], first && at == 0)
			}
			at += n
		}
		switch behavior {
		case "Removed":
			find(text, func(span string, match bool) {
				if match != invert {
					at += len(span)
				} else {
					piece(len(span))
				}
			})
		case "Isolated":
			find(text, func(span string, _ bool) { piece(len(span)) })
		case "Contiguous", "MergedWithPrevious", "MergedWithNext":
			open, was := 0, false
			find(text, func(span string, match bool) {
				match = match != invert
				cut := match != was
				switch behavior {
				case "MergedWithPrevious": // a match joins what stands before it, but not another match
					cut = !match || was
				case "MergedWithNext":
					cut = match || !was
				}
				if cut {
					piece(open)
					open = 0
				}
				open, was = open+len(span), match
			})
			piece(open)
		}
	}
}

// findText finds a fixed text.
func findText(what string) finder {
	return findFirst(func(text string) (i, n int) { return strings.Index(text, what), len(what) })
}

// findRunes finds single characters.
func findRunes(is func(rune) bool) finder {
	return findFirst(func(text string) (i, n int) {
		i = strings.IndexFunc(text, is)
		_, n = utf8.DecodeRuneInString(text[max(i, 0):])
		return i, n
	})
}

// findFirst finds what first returns of the text that is left: where the first match begins, -1 if there is
// none, and its length.
func findFirst(first func(text string) (i, n int)) finder {
	return func(text string, emit func(string, bool)) {
		for text != "" {
			i, n := first(text)
			if i < 0 {
				emit(text, false)
				return
			}
			if i > 0 {
				emit(text[:i], false)
			}
			emit(text[i:i+n], true)
			text = text[i+n:]
		}
	}
}

// findPattern finds what a pattern matched by hand does: there is nothing between matches.
func findPattern(p pattern) finder {
	return func(text string, emit func(string, bool)) {
		p.splitter()(text, false, func(span string, _ bool) { emit(span, true) })
	}
}

// findRegex finds what a regular expression matches. The library's indexes are those of
// runes. It gives up over a match by time or memory only, and neither is bounded here.
func findRegex(re *regexp2.Regexp) finder {
	return func(text string, emit func(string, bool)) {
		runes := []rune(text)
		at, byteAt := 0, 0 // what is emitted, in runes and in bytes
		span := func(to int, match bool) {
			n := 0
			for _, r := range runes[at:to] {
				n += utf8.RuneLen(r)
			}
			if n > 0 {
				emit(text[byteAt:byteAt+n], match)
			}
			at, byteAt = to, byteAt+n
		}
		_ = re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
			if start, n, _ := m.GroupRange(0); n > 0 {
				span(start, false)
				span(start+n, true)
			}
			return true
		})
		span(len(runes), false)
	}
}

// byteLevel is the pre_tokenizer ByteLevel, but for the writing of bytes as characters: the
// model knows bytes.
func byteLevel(addSpace, cut bool) splitter {
	if !addSpace && !cut {
		return nil
	}
	words := pattern(gpt2).splitter()
	return func(text string, first bool, emit func(string, bool)) {
		if addSpace && text[0] != ' ' {
			text = " " + text
		}
		if cut {
			words(text, first, emit)
		} else {
			emit(text, first)
		}
	}
}

// metaspace is SentencePiece's way with spaces: each is written as a mark, and one may be put
// before a text (scheme first), or before each part between added tokens (always).
func metaspace(mark, scheme string, cut bool) splitter {
	split := cutBy(findText(mark), "MergedWithNext", false)
	return func(text string, first bool, emit func(string, bool)) {
		text = strings.ReplaceAll(text, " ", mark)
		if (scheme == "always" || scheme == "first" && first) && !strings.HasPrefix(text, mark) {
			text = mark + text
		}
		if cut {
			split(text, first, emit)
		} else {
			emit(text, first)
		}
	}
}

// words is the pre_tokenizer Whitespace: \w+|[^\w\s]+, and nothing between them.
func words(text string, first bool, emit func(string, bool)) {
	kind := func(r rune) int {
		switch {
		case unicode.IsSpace(r):
			return 0
		case isWord(r):
			return 1
		}
		return 2
	}
	start, was := 0, 0
	flush := func(to int) {
		if was != 0 {
			emit(text[start:to], first && start == 0)
		}
		start = to
	}
	for i, r := range text {
		if k := kind(r); k != was {
			flush(i)
			was = k
		}
	}
	flush(len(text))
}

// A decoder makes text of tokens as the vocabulary writes them.
type decoder func(tokens []string) string

// A decodeStep is a decoder of a chain; the last one's texts are joined.
type decodeStep func(tokens []string) []string

func decodeChain(steps []decodeStep) decoder {
	return func(tokens []string) string {
		for _, step := range steps {
			tokens = step(tokens)
		}
		return strings.Join(tokens, "")
	}
}

// decodeByteLevel is the decoder ByteLevel. A token with a character that stands for no byte
// is its own text: an added token.
func decodeByteLevel(tokens []string) []string {
	var b []byte
	for _, t := range tokens {
		var ok bool
		if b, ok = appendBytes(b, t); !ok {
			b = append(b, t...)
		}
	}
	return []string{ValidUTF8(b)}
}

// ValidUTF8 is b with one U+FFFD for each maximal part of an encoding that is not whole, as
// Unicode recommends (3.9, table 3-8), and Rust and Python do. Go's own functions put one
// for each byte, or one for all in a row.
func ValidUTF8(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out := make([]byte, 0, len(b)+8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r != utf8.RuneError || n > 1 {
			out = append(out, b[:n]...)
			b = b[n:]
			continue
		}
		out = append(out, "\uFFFD"...)
		b = b[broken(b):]
	}
	return string(out)
}

// broken is how long the beginning of an encoding is that b begins with: 1 to 3 bytes.
func broken(b []byte) int {
	low, high, want := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case 0xc2 <= c && c <= 0xdf:
		want = 1
	case 0xe0 <= c && c <= 0xef:
		want = 2
		if c == 0xe0 {
			low = 0xa0 // shorter encodings are there for less
		} else if c == 0xed {
			high = 0x9f // above are surrogates
		}
	case 0xf0 <= c && c <= 0xf4:
		want = 3
		if c == 0xf0 {
			low = 0x90
		} else if c == 0xf4 {
			high = 0x8f // above is beyond U+10FFFF
		}
	}
	n := 1
	for ; want > 0 && n < len(b) && low <= b[n] && b[n] <= high; want-- {
		low, high = 0x80, 0xbf
		n++
	}
	return n
}

// decodeFallback is the decoder ByteFallback: <0xE4> and its like in a row are the bytes of a
// text, or one U+FFFD each if they are none.
func decodeFallback(tokens []string) []string {
	out := make([]string, 0, len(tokens))
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			if len(run) > 0 {
				out = append(out, string(run))
			}
		} else {
			for range run {
				out = append(out, "\uFFFD")
			}
		}
		run = run[:0]
	}
	for _, t := range tokens {
		if b, ok := byteToken(t); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

// byteToken is the byte of a token such as <0x0A>.
func byteToken(t string) (byte, bool) {
	if len(t) != 6 || t[:3] != "<0x" || t[5] != '>' {
		return 0, false
	}
	hi, lo := strings.IndexByte(hex, t[3]), strings.IndexByte(hex, t[4])
	return byte(hi<<4 | lo), hi >= 0 && lo >= 0
}

const hex = "0123456789ABCDEF"

// decodeMetaspace is metaspace's way back.
func decodeMetaspace(mark string, prepended bool) decodeStep {
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, t := range tokens {
			if i == 0 && prepended {
				t = strings.TrimPrefix(t, mark)
			}
			out[i] = strings.ReplaceAll(t, mark, " ")
		}
		return out
	}
}

// decodeStrip is the decoder Strip: up to so many of a character off the ends of each.
func decodeStrip(char string, start, stop int) decodeStep {
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, t := range tokens {
			for n := 0; n < start && strings.HasPrefix(t, char); n++ {
				t = t[len(char):]
			}
			for n := 0; n < stop && strings.HasSuffix(t, char); n++ {
				t = t[:len(t)-len(char)]
			}
			out[i] = t
		}
		return out
	}
}
