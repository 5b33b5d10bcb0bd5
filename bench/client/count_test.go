package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestTokenCounts: whole numbers of tokens are read however they are written; of others it is said which
// field has them, in events and in answers of one piece.
func TestTokenCounts(t *testing.T) {
	for value, want := range map[string]int{`8`: 8, `"8"`: 8, `8.0`: 8, `"8.0"`: 8, `8e0`: 8, `0`: 0, `null`: 0} {
		for _, k := range []kind{completions, generate} {
			r := Record{MaxTokens: 8}
			a := answer{record: &r, kind: k, mayStop: true}
			if err := read(t, &a, counting(k, value), doneAt); err != nil || r.Usage == nil || r.Usage.CompletionTokens != want || r.Usage.CachedTokens != want {
				t.Errorf("%s: usage %+v, %v", value, r.Usage, err)
			}
		}
	}
	for value, says := range map[string]string{
		`8.5`: "is 8.5, want a whole number", `"eight"`: `is "eight", want a whole number`, `[8]`: "is [8], want a whole number",
		`1e300`: "is 1e300, want a whole number", `"NaN"`: `is "NaN", want a whole number`, `99999999999999999999`: "is 99999999999999999999, want a whole number",
	} {
		for k, field := range map[kind]string{completions: "usage.completion_tokens", generate: "meta_info.completion_tokens"} {
			for _, events := range []bool{true, false} {
				a := answer{record: &Record{MaxTokens: 8}, kind: k, mayStop: true}
				var err error
				if events {
					err = read(t, &a, counting(k, value), doneAt)
				} else {
					a.status, a.body = 200, []byte(strings.TrimPrefix(counting(k, value), "data: "))
					err = a.end(nil)
				}
				fault := (*faultError)(nil)
				if !errors.As(err, &fault) || fault.kind != FaultGarbage || !strings.Contains(err.Error(), field+" "+says) || strings.Contains(err.Error(), "not JSON") {
					t.Errorf("%s: %v, want %s %s", value, err, field, says)
				}
			}
		}
	}
	a := answer{record: new(Record)}
	if err := read(t, &a, "data: {\"choices\":{}}\n\n"); err == nil || !strings.Contains(err.Error(), "event: choices is object, want a list") {
		t.Error(err)
	}
}

// counting is an event whose counts are value.
func counting(k kind, value string) string {
	if k == generate {
		return fmt.Sprintf("data: {\"text\":\"x\",\"meta_info\":{\"finish_reason\":\"length\",\"completion_tokens\":%s,\"cached_tokens\":%s}}\n\n", value, value)
	}
	return fmt.Sprintf("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":%s,\"prompt_tokens_details\":{\"cached_tokens\":%s}}}\n\n", value, value)
}
