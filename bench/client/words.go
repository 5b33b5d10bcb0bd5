package client

import (
	"context"
	"slices"
	"strings"

	"kvferry/kvcache"
)

// commonWords are prompts where nobody knows the server's tokens. Each is one token, with
// the space before it, of the tokenizers of GPT-2 and later, Llama, Qwen, Mistral, DeepSeek;
// POST /tokenize confirms it, where there is one.
var commonWords = strings.Fields(`the of and to in is that for it as was with be by on not he his
but at are this have from or had an they which one you were all her she there would their we him
been has when who will no more if out so up said what its about than into them can only other time
new some could these two may first then do any like my now over such our man me even most made
after also did many must before through back years where much your way well down should because
each just those people how too little state good very make world still own see men work long get
here between both life being under never day same another know while last might us great old year
off come since against go came right used take three`)

// wordsOf is as many words as there are ids, the same for the same ids. Each has a space
// before it, but the first.
func wordsOf(words []string, ids []kvcache.Token) string {
	var b strings.Builder
	b.Grow(6 * len(ids))
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[int(id)%len(words)])
	}
	return b.String()
}

// confirmed are those words that are one token each, by count, which says how many tokens
// a text has. All are asked about at once; of a list with more tokens than words each half
// is, so that few bad words take few questions. It is nil if none is.
func confirmed(ctx context.Context, words []string, count func(context.Context, string) (int, error)) ([]string, error) {
	ask := func(list []string) (int, error) { return count(ctx, strings.Join(list, " ")) }
	// What is added to each text: a mark of its begin, perhaps.
	one, err := ask(words[:1])
	if err != nil {
		return nil, err
	}
	two, err := ask(slices.Repeat(words[:1], 2))
	if err != nil {
		return nil, err
	}
	added := one - (two - one)
	var sound func(list []string) ([]string, error)
	sound = func(list []string) ([]string, error) {
		n, err := ask(append([]string{words[0]}, list...))
		switch {
		case err != nil:
			return nil, err
		case n-added == len(list)+1:
			return list, nil
		case len(list) == 1:
			return nil, nil
		}
		first, err := sound(list[:len(list)/2])
		if err != nil {
			return nil, err
		}
		second, err := sound(list[len(list)/2:])
		return append(slices.Clone(first), second...), err
	}
	return sound(words)
}
