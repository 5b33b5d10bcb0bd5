package cli

import (
	"slices"
	"strings"
	"testing"
)

// TestSpread: flags that take several values in the other tools take them here too, and nothing
// else is changed.
func TestSpread(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"bench --goodput ttft:200 tpot:50 --seed 1", "bench --goodput=ttft:200 --goodput=tpot:50 --seed 1"},
		{"bench --goodput=ttft:200 tpot:50", "bench --goodput=ttft:200 --goodput=tpot:50"},
		{"bench --lora_name a b c", "bench --lora-name=a --lora-name=b --lora-name=c"},
		{"bench --header A=1 --header B=2 C=3", "bench --header=A=1 --header=B=2 --header=C=3"},
		{"bench --goodput", "bench --goodput"},
		{"bench --goodput --seed 1", "bench --goodput --seed 1"},
		{"bench --seed 1 extra", "bench --seed 1 extra"},
		{"bench --disable-tqdm extra", "bench --disable-tqdm extra"},
		{"bench --metadata a=b -- --goodput x y", "bench --metadata=a=b -- --goodput x y"},
		{"sim --goodput ttft:1 tpot:2", "sim --goodput=ttft:1 --goodput=tpot:2"},
		{"sim --lora-name a=64 b=64 --profile p", "sim --lora-name=a=64 --lora-name=b=64 --profile p"},
		{"reproduce mooncake --goodput ttft:1 tpot:2", "reproduce mooncake --goodput ttft:1 tpot:2"},
		{"bench --find-rate --seed 1", "bench --find-rate --seed 1"},
		{"bench --find-rate concurrency --seed 1", "bench --find-rate=concurrency --seed 1"},
		{"bench --find-rate concurrency extra", "bench --find-rate=concurrency extra"},
		{"bench --find-rate", "bench --find-rate"},
		{"", ""},
	} {
		if got := spread(strings.Fields(c.args)); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s\n got %s\nwant %s", c.args, strings.Join(got, " "), c.want)
		}
	}
}

// TestMasked: keys do not get into result files.
func TestMasked(t *testing.T) {
	args := []string{"kvferry", "bench", "--api-key", "secret", "--header", "A=secret", "B=secret", "--seed", "1", "--api-key=secret", "--header=C=secret"}
	got := strings.Join(masked(args), " ")
	if want := "kvferry bench --api-key ... --header A=... B=... --seed 1 --api-key=... --header=C=..."; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
