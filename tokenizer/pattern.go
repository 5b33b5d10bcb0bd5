package tokenizer

import "unicode/utf8"

// A pattern finds where the piece that begins at i ends. The patterns here cut a text from
// end to end: each character is of some piece.
type pattern func(text string, i int) (end int)

// The patterns that most models have are matched by hand: five times as fast as by a
// regular expression. A test holds them to it.
var known = map[string]pattern{
	// GPT-2's, and what pre_tokenizer ByteLevel cuts by
	gpt2Pattern: gpt2,
	// GPT-4's, with as many digits in a piece as each model has: Llama 3 and Qwen
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: func(text string, i int) int { return gpt4(text, i, 3) },
	qwenPattern: func(text string, i int) int { return gpt4(text, i, 1) },
}

const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitter makes a splitter of a pattern.
func (p pattern) splitter() splitter {
	return func(text string, first bool, emit func(string, bool)) {
		for i := 0; i < len(text); {
			end := p(text, i)
			emit(text[i:end], first && i == 0)
			i = end
		}
	}
}

func gpt2(text string, i int) int {
	if n := contraction(text[i:], false); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	if text[i] == ' ' && i+1 < len(text) {
		if next, m := classAt(text, i+1); next != blank && next != line {
			i, c, n = i+1, next, m // the space belongs to what follows
		}
	}
	if c == blank || c == line {
		return spaces(text, i, false)
	}
	return run(text, i+n, c)
}

func gpt4(text string, i, digits int) int {
	if n := contraction(text[i:], true); n > 0 {
		return i + n
	}
	c, n := classAt(text, i)
	switch c {
	case letter:
		return run(text, i+n, letter)
	case number:
		for i += n; digits > 1 && i < len(text); digits-- {
			if c, n = classAt(text, i); c != number {
				break
			}
			i += n
		}
		return i
	case line:
		return spaces(text, i, true)
	}
	next, m := other, 0
	if i+n < len(text) {
		next, m = classAt(text, i+n)
	}
	switch {
	case next == letter && m > 0: // one character of any kind before a word
		return run(text, i+n+m, letter)
	case c == blank && !(text[i] == ' ' && next == other && m > 0):
		return spaces(text, i, true)
	}
	for i = run(text, i+n, other); i < len(text) && (text[i] == '\r' || text[i] == '\n'); {
		i++
	}
	return i
}

// run is where the characters of a class end that begin at i.
func run(text string, i int, of class) int {
	for i < len(text) {
		c, n := classAt(text, i)
		if c != of {
			break
		}
		i += n
	}
	return i
}

// spaces is \s*[\r\n]+|\s+(?!\S)|\s+ at i, where white space stands; without the first
// alternative unless lines is set. The last space before a word is left to the word, unless
// it is the only one.
func spaces(text string, i int, lines bool) int {
	start, last, broken := i, i, 0 // last is where the last space begins, broken where the last line ends
	for i < len(text) {
		c, n := classAt(text, i)
		if c != blank && c != line {
			break
		}
		last = i
		i += n
		if c == line {
			broken = i
		}
	}
	switch {
	case lines && broken > 0:
		return broken
	case i < len(text) && last > start:
		return last
	}
	return i
}

// contraction is the length of 's, 't, 're, 've, 'm, 'll or 'd at the text's beginning, or 0.
// Of the letters that are one of these in another case there is only the long s, U+017F,
// beside the capitals.
func contraction(text string, anyCase bool) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	fold := byte(0)
	if anyCase {
		fold = 0x20
	}
	switch text[1] | fold {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(text) > 2 && text[2]|fold == 'e' {
			return 3
		}
	case 'l':
		if len(text) > 2 && text[2]|fold == 'l' {
			return 3
		}
	}
	if r, n := utf8.DecodeRuneInString(text[1:]); anyCase && r == 'ſ' {
		return 1 + n
	}
	return 0
}
