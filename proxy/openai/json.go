package openai

import (
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"kvferry/proto"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s quoted. Bytes that are not UTF-8 become U+FFFD,
// as encoding/json has it.
func AppendString(b []byte, s string) []byte {
	return append(appendEscaped(append(b, '"'), s), '"')
}

// appendEscaped appends s as it stands in a JSON string.
func appendEscaped(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		i++
	}
	return b
}

// AppendField appends a field of an object: a name that needs no escaping, and a number.
func AppendField(b []byte, name string, v uint64) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendUint(b, v, 10)
}

// Answers are rendered by hand: what is written for every token must not allocate, and the
// order of fields is the clients' to rely on.

// Usage is OpenAI's account of a request, in tokens.
type Usage struct {
	Prompt, Completion uint32
	Cached             uint32     // of the prompt, found in a prefix cache
	Breakdown          *Breakdown // nil unless asked for
}

// Breakdown is where a request's time went, over all its legs: kvferry's own field of an
// answer. Times are microseconds.
type Breakdown struct {
	*proto.Breakdown
	PrefillNode, DecodeNode string
	Retries                 int      // times that it was placed again
	Unknown                 []string // its fields that nobody has said, by their names in JSON: null there
	// Own is the proxy's own time after the prompt was submitted. It is in proxy_us, beside what the
	// nodes say of it, and by itself in proxy_own_us.
	Own time.Duration
}

func (u Usage) appendJSON(b []byte) []byte {
	b = AppendField(append(b, '{'), "prompt_tokens", uint64(u.Prompt))
	b = AppendField(append(b, ','), "total_tokens", uint64(u.Prompt)+uint64(u.Completion))
	b = AppendField(append(b, ','), "completion_tokens", uint64(u.Completion))
	b = append(b, `,"prompt_tokens_details":`...)
	if u.Cached > 0 {
		b = append(AppendField(append(b, '{'), "cached_tokens", uint64(u.Cached)), '}')
	} else {
		b = append(b, "null"...)
	}
	return append(b, '}')
}

// AppendJSON appends it as an object.
func (d *Breakdown) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"proxy_us", uint64(d.ProxyUs) + uint64(proto.Microseconds(d.Own))},
		{"proxy_own_us", uint64(proto.Microseconds(d.Own))},
		{"queue_us", uint64(d.QueueUs)},
		{"prefill_us", uint64(d.PrefillUs)},
		{"post_us", uint64(d.PostUs)},
		{"wire_us", uint64(d.WireUs)},
		{"land_us", uint64(d.LandUs)},
		{"first_decode_us", uint64(d.FirstDecodeUs)},
		{"kv_bytes", d.KvBytes},
		{"kv_blocks_checked", uint64(d.KvBlocksChecked)},
		{"kv_blocks_bad", uint64(d.KvBlocksBad)},
	} {
		if slices.Contains(d.Unknown, f.name) {
			b = append(append(append(b, '"'), f.name...), `":null,`...)
			continue
		}
		b = AppendField(b, f.name, f.value)
		b = append(b, ',')
	}
	if d.Migrations > 0 {
		b = append(AppendField(b, "migrations", uint64(d.Migrations)), ',')
		b = append(AppendField(b, "migration_pause_us", uint64(d.MigrationPauseUs)), ',')
		b = append(AppendField(b, "migrated_bytes", d.MigratedBytes), ',')
	}
	b = append(b, `"prefill_node":`...)
	b = AppendString(b, d.PrefillNode)
	b = append(b, `,"decode_node":`...)
	b = AppendString(b, d.DecodeNode)
	b = append(b, ',')
	b = AppendField(b, "retries", uint64(d.Retries))
	return append(b, '}')
}
