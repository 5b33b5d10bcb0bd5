package config

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// MaxSize bounds a size, so that products of few sizes do not overflow.
const MaxSize = 1 << 40

// maxValues bounds a list: one point takes seconds.
const maxValues = 1000

// MaxCount bounds what there is of batches, blocks and threads at once.
const MaxCount = 1 << 17

// ParseSize reads 4096, 4k, 64KiB, 1m or 1g; k, m and g are powers of 1024.
func ParseSize(text string) (int64, error) {
	digits := strings.ToLower(strings.TrimSpace(text))
	scale := int64(1)
	for i, unit := range []string{"k", "m", "g"} {
		for _, suffix := range []string{unit + "ib", unit} {
			if d, ok := strings.CutSuffix(digits, suffix); ok && scale == 1 {
				digits, scale = d, 1<<(10*(i+1))
			}
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strings.ContainsAny(digits, "+-") || n < 1 || n > MaxSize/scale {
		return 0, fmt.Errorf("%q: write bytes from 1, or 4k, 64k, 1m, 1g (powers of 1024, up to 1024g)", text)
	}
	return n * scale, nil
}

// FormatSize is the shortest form that ParseSize reads.
func FormatSize(n int64) string {
	for i, unit := range []string{"g", "m", "k"} {
		if scale := int64(1) << (10 * (3 - i)); n >= scale && n%scale == 0 {
			return strconv.FormatInt(n/scale, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseSizes reads a list of sizes and of sweeps that double: "4k,64k" or "4k:4m",
// whose last is in it if doubling reaches it.
func ParseSizes(text string) ([]int64, error) {
	var all []int64
	for _, part := range strings.Split(text, ",") {
		first, last, sweep := strings.Cut(part, ":")
		low, err := ParseSize(first)
		if err != nil {
			return nil, err
		}
		high := low
		if sweep {
			if high, err = ParseSize(last); err != nil {
				return nil, err
			}
			if high < low {
				return nil, fmt.Errorf("%q: it goes down: write the smaller size first", part)
			}
		}
		if len(all)+bits.Len64(uint64(high/low)) > maxValues {
			return nil, fmt.Errorf("%q: these are more than %d values: write fewer", text, maxValues)
		}
		for n := low; n <= high; n *= 2 {
			if slices.Contains(all, n) {
				return nil, fmt.Errorf("%q: it is listed twice: leave one out", FormatSize(n))
			}
			all = append(all, n)
		}
	}
	return all, nil
}

// ParseCounts reads a list of numbers from 1, and of sweeps that double: "1,16" or
// "1:128".
func ParseCounts(text string) ([]int, error) {
	sizes, err := ParseSizes(text)
	if err != nil || strings.ContainsAny(strings.ToLower(text), "kmgib") {
		return nil, fmt.Errorf("%q: write numbers from 1, like 1,16,128, or a sweep that doubles, like 1:128", text)
	}
	counts := make([]int, len(sizes))
	for i, n := range sizes {
		if n > MaxCount {
			return nil, fmt.Errorf("%d: use 1 to %d", n, MaxCount)
		}
		counts[i] = int(n)
	}
	return counts, nil
}
