package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParseSizes(t *testing.T) {
	for text, want := range map[string][]int64{
		"1":             {1},
		"4k, 64KiB,1M":  {4096, 65536, 1 << 20},
		"4k:64k":        {4096, 8192, 16384, 32768, 65536},
		"2:9,1g":        {2, 4, 8, 1 << 30},
		"3:3":           {3},
		"512g:1024g,1k": {1 << 39, 1 << 40, 1024},
	} {
		if got, err := ParseSizes(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":            "write bytes",
		"4k,":         "write bytes",
		"0":           "bytes from 1",
		"-4k":         "write bytes",
		"+4":          "write bytes",
		"4kk":         "write bytes",
		"1.5m":        "write bytes",
		"2000g":       "up to 1024g",
		"1m:4k":       "smaller size first",
		"4k:64k,8k":   `"8k": it is listed twice`,
		"1:2:4":       "write bytes",
		"9999999999g": "write bytes",
	} {
		if got, err := ParseSizes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, got, err, want)
		}
	}
}

func TestParseCounts(t *testing.T) {
	if got, err := ParseCounts("1,16:64"); err != nil || !slices.Equal(got, []int{1, 16, 32, 64}) {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{"1k": "numbers from 1", "0": "numbers from 1", "2000000": "2000000: use 1 to"} {
		if _, err := ParseCounts(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParseSizes: a list that parses has sizes in range, each once, and each is
// written as what parses to it.
func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"4k,64k,1m", "4k:4m", "1:1024g", "8,8", "1kib:", "٣", "1e3", "0x10"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sizes, err := ParseSizes(text)
		if err != nil {
			return
		}
		seen := map[int64]bool{}
		for _, n := range sizes {
			again, err := ParseSize(FormatSize(n))
			if n < 1 || n > MaxSize || seen[n] || err != nil || again != n {
				t.Errorf("%q: %d, written %q: %d, %v", text, n, FormatSize(n), again, err)
			}
			seen[n] = true
		}
		if len(sizes) == 0 || len(sizes) > maxValues {
			t.Errorf("%q: %d sizes", text, len(sizes))
		}
	})
}
