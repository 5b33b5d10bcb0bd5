package tokenizer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"kvferry/kvcache"
)

// WriteFile writes the tokenizer.json of kvferry's own tokenizer, 5 MB for 150,000 tokens, a
// few at a time. The error is w's. The text is always the same for a size.
func (t *Tokenizer) WriteFile(w io.Writer) error {
	o, b := t.own, bufio.NewWriterSize(w, 32<<10)
	write := func(text string) { _, _ = b.WriteString(text) } // Flush has the error
	write(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	for i, mark := range marks {
		comma(b, i)
		write(fmt.Sprintf(`{"id":%d,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, int(o.marks)+i, mark))
	}
	byteLevel := `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}`
	write(`],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + quote(qwenPattern) +
		`},"behavior":"Isolated","invert":false},` + byteLevel + `]},"post_processor":` + byteLevel + `,"decoder":` + byteLevel +
		`,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{`)
	for id := range kvcache.Token(t.len) {
		comma(b, int(id))
		write(quote(t.Token(id)) + ":" + strconv.Itoa(int(id)))
	}
	write(`},"merges":[`)
	n := 0
	merge := func(left, right string) {
		comma(b, n)
		n++
		write("[" + quote(string(appendAlphabet(nil, left))) + "," + quote(string(appendAlphabet(nil, right))) + "]")
	}
	for c := range consonants {
		merge(" ", consonantLetters[c:c+1])
	}
	for s := range vowels * consonants {
		merge(syllable(s)[:1], syllable(s)[1:])
	}
	for h := range heads {
		merge(head(h)[:2], head(h)[2:])
	}
	for k := range o.marks - o.words {
		text := string(appendWord(nil, k))
		cut := 4 // " bob" and "ad"
		if len(text) > 6 {
			cut = 6 // " bobad" and "a"
		}
		merge(text[:cut], text[cut:])
	}
	for _, e := range englishMerges(int(o.heads - o.english)) {
		merge(e[0], e[1])
	}
	write("]}}\n")
	return b.Flush()
}

func comma(b *bufio.Writer, i int) {
	if i > 0 {
		_ = b.WriteByte(',')
	}
}

func quote(text string) string {
	b, _ := json.Marshal(text) // a string always can be
	return string(b)
}
