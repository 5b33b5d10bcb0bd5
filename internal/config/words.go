package config

import "strings"

// Or is what there is to choose from, in a sentence: "a, b or c".
func Or(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
