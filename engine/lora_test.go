package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestLoRACosts: bytes over rates, and what is said of merged ones.
func TestLoRACosts(t *testing.T) {
	t.Parallel()
	l := LoRA{BytesPerRank: 2_000_000, HostGBS: 20, DiskGBS: 2, TokenUSPerRank: 0.5, AdapterMS: 3}
	for _, c := range []struct {
		what      string
		got, want time.Duration
	}{
		{"from host memory", l.Load(16, false), 1600 * time.Microsecond},
		{"from disk", l.Load(16, true), 17600 * time.Microsecond},
		{"tokens", l.Token(100, 16), 800 * time.Microsecond},
		{"one more", l.Another(), 3 * time.Millisecond},
		{"a change", (&LoRA{AdapterMS: 3, SwitchMS: 20, Merged: MergeDynamic}).Switch(), 20 * time.Millisecond},
		{"a change that takes no time", (&LoRA{AdapterMS: 3, Merged: MergeDynamic}).Switch(), 0},
		{"a change, always merged", (&LoRA{AdapterMS: 3, SwitchMS: 20, Merged: MergeAlways}).Switch(), 20 * time.Millisecond},
		{"a change where only adapter_ms is known", (&LoRA{AdapterMS: 3, Merged: MergeAlways}).Switch(), 3 * time.Millisecond},
		{"nothing said", (&LoRA{BytesPerRank: 1 << 30}).Load(64, true), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
}

// TestLoRAFaults: each field is refused by its name in the file.
func TestLoRAFaults(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]LoRA{
		"max_loras":         {MaxLoRAs: -1},
		"max_cpu_loras":     {MaxLoRAs: 4, MaxCPULoRAs: 3},
		"bytes_per_rank":    {BytesPerRank: -1},
		"host_gb_s":         {HostGBS: -1},
		"disk_gb_s":         {DiskGBS: 1e-9},
		"token_us_per_rank": {TokenUSPerRank: 1e6},
		"adapter_ms":        {AdapterMS: -1},
		"switch_ms":         {SwitchMS: -1},
		"merged":            {Merged: "sometimes"},
	} {
		p, err := LoadProfile(DefaultProfile)
		if err != nil {
			t.Fatal(err)
		}
		q := *p
		q.LoRA = l
		if err := q.Validate(); err == nil || !strings.Contains(err.Error(), "lora."+want) {
			t.Errorf("%+v: %v, want a fault of lora.%s", l, err, want)
		}
	}
}

// TestWithLoRA: 0 is the profile's own number, and slots make no other model of a profile.
func TestWithLoRA(t *testing.T) {
	t.Parallel()
	p, err := LoadProfile(DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	if p.WithLoRA(0, 0, "") != p {
		t.Error("nothing was asked for, and it is another profile")
	}
	q := p.WithLoRA(8, 0, "")
	r := q.WithLoRA(0, 32, MergeDynamic)
	if q.LoRA.MaxLoRAs != 8 || q.LoRA.MaxCPULoRAs != 0 || r.LoRA.MaxLoRAs != 8 || r.LoRA.MaxCPULoRAs != 32 || q.LoRA.Merged != "" || r.LoRA.Merged != MergeDynamic || p.LoRA != (LoRA{}) {
		t.Errorf("%+v, %+v of %+v", q.LoRA, r.LoRA, p.LoRA)
	}
	if r.Fingerprint() != p.Fingerprint() {
		t.Error("slots, or what is merged, make another fingerprint")
	}
	costly := *p
	costly.LoRA.AdapterMS = 1
	if costly.Fingerprint() == p.Fingerprint() {
		t.Error("costs make no other fingerprint")
	}
}

// TestMerging: what is merged is a name in a profile, or what stood there before there were names.
func TestMerging(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		is   Merging
		text string
	}{
		"false": {"", "false"}, `"never"`: {MergeNever, "false"}, "true": {MergeAlways, "true"}, `"always"`: {MergeAlways, "true"}, `"dynamic"`: {MergeDynamic, `"dynamic"`},
	} {
		var m Merging
		err := json.Unmarshal([]byte(text), &m)
		back, marshal := json.Marshal(m)
		if err != nil || marshal != nil || m != want.is || string(back) != want.text {
			t.Errorf("%s: %q, which is %s, %v, %v", text, m, back, err, marshal)
		}
	}
	bad := strings.Replace(string(shippedText(t, "sglang-lora-trace")), `"merged": false`, `"merged": 1`, 1)
	if _, err := ParseProfile([]byte(bad)); err == nil || !strings.Contains(err.Error(), `lora.merged: 1: use false, true or "dynamic"`) {
		t.Error(err)
	}
}

func TestParseAdapter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		name string
		rank int
	}{"sql": {"sql", DefaultRank}, "sql=64": {"sql", 64}, "org/sql=1": {"org/sql", 1}} {
		if name, rank, err := ParseAdapter(text); err != nil || name != want.name || rank != want.rank {
			t.Errorf("%q: %q, %d, %v", text, name, rank, err)
		}
	}
	for _, text := range []string{"", "=8", "a=", "a=x", "a=0", "a=4097", "a=8=8"} {
		if _, _, err := ParseAdapter(text); err == nil || !strings.Contains(err.Error(), "NAME=RANK") {
			t.Errorf("%q: %v", text, err)
		}
	}
	r := Ranks{"a": 4}
	if r.Of("a") != 4 || r.Of("b") != DefaultRank || r.Of("") != 0 {
		t.Error("ranks")
	}
}
