package serverinfo

import (
	"fmt"
	"strings"
	"testing"
)

// TestParseRefusesImpossibleNumbers: what a proxy says of its nodes is checked before a load is made of it.
func TestParseRefusesImpossibleNumbers(t *testing.T) {
	for _, field := range []string{`"vocab":%s`, `"block_tokens":%s`, `"max_model_len":%s`, `"nodes":[{"kv_blocks":%s}]`} {
		for _, n := range []string{"-1", "1000000000000", "9223372036854775807", "1e400", "1.5"} {
			text := `{"kvferry":{` + fmt.Sprintf(field, n) + `}}`
			if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "kvferry: ") {
				t.Errorf("%s: %v", text, err)
			}
		}
		if _, err := Parse([]byte(`{"kvferry":{` + fmt.Sprintf(field, "32000") + `}}`)); err != nil {
			t.Error(err)
		}
	}
}
