package main

import (
	"slices"
	"strings"
	"testing"
)

// TestSpread: flags that take several values in the other tools take them here too, and nothing
// else is changed.
func TestSpread(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"serve --goodput ttft:200 tpot:50 --seed 1", "serve --goodput=ttft:200 --goodput=tpot:50 --seed 1"},
		{"serve --goodput=ttft:200 tpot:50", "serve --goodput=ttft:200 --goodput=tpot:50"},
		{"serve --lora_name a b c", "serve --lora-name=a --lora-name=b --lora-name=c"},
		{"serve --header A=1 --header B=2 C=3", "serve --header=A=1 --header=B=2 --header=C=3"},
		{"serve --goodput", "serve --goodput"},
		{"serve --goodput --seed 1", "serve --goodput --seed 1"},
		{"serve --seed 1 extra", "serve --seed 1 extra"},
		{"serve --disable-tqdm extra", "serve --disable-tqdm extra"},
		{"serve --metadata a=b -- --goodput x y", "serve --metadata=a=b -- --goodput x y"},
		{"simulate --goodput ttft:1 tpot:2", "simulate --goodput=ttft:1 --goodput=tpot:2"},
		{"simulate --lora-name a=64 b=64 --profile p", "simulate --lora-name=a=64 --lora-name=b=64 --profile p"},
		{"mooncake --goodput ttft:1 tpot:2", "mooncake --goodput ttft:1 tpot:2"},
		{"serve --find-rate --seed 1", "serve --find-rate --seed 1"},
		{"serve --find-rate concurrency --seed 1", "serve --find-rate=concurrency --seed 1"},
		{"serve --find-rate concurrency extra", "serve --find-rate=concurrency extra"},
		{"serve --find-rate", "serve --find-rate"},
		{"", ""},
	} {
		if got := spread(strings.Fields(c.args)); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s\n got %s\nwant %s", c.args, strings.Join(got, " "), c.want)
		}
	}
}

// TestMasked: keys do not get into result files.
func TestMasked(t *testing.T) {
	args := []string{"kvbench", "serve", "--api-key", "secret", "--header", "A=secret", "B=secret", "--seed", "1", "--api-key=secret", "--header=C=secret"}
	got := strings.Join(masked(args), " ")
	if want := "kvbench serve --api-key ... --header A=... B=... --seed 1 --api-key=... --header=C=..."; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
