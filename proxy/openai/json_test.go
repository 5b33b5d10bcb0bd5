package openai

import (
	"strings"
	"testing"
	"time"

	"kvferry/proto"
)

// TestOwnTime: the proxy's own time is in its part of a breakdown, and by itself.
func TestOwnTime(t *testing.T) {
	d := Breakdown{Breakdown: &proto.Breakdown{ProxyUs: 3600}, Own: 44 * time.Microsecond}
	if text := string(d.AppendJSON(nil)); !strings.Contains(text, `{"proxy_us":3644,"proxy_own_us":44,`) {
		t.Error(text)
	}
}
