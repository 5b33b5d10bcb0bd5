package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/load"
	"kvferry/placement"
)

// TestMigration: requests that go on on other nodes have all of their tokens, in order; what is
// moved is their KV, once and little more; and a run repeats.
func TestMigration(t *testing.T) {
	serve := Config{Profile: a10(t), Nondisagg: 2, RecordTokens: true, NICs: []NIC{{BytesPerSecond: 1e9}}}
	decode := pair(t, handoff.Pull, 1)
	decode.Decode = 2
	for name, cfg := range map[string]Config{"nodes that serve alone": serve, "decode nodes": decode, "a cache": serve, "a slow network": serve} {
		t.Run(name, func(t *testing.T) {
			cfg.PrefixCaching = name == "a cache"
			if name == "a slow network" {
				cfg.NICs = []NIC{{BytesPerSecond: 100e6}}
			}
			// Placed in turn, the short ones and the long ones go to a node each.
			var all []load.Request
			for i := range 24 {
				r := load.Request{At: time.Duration(i) * 5 * time.Millisecond, Prompt: make([]uint32, 100+30*i), MaxTokens: 5}
				for j := range r.Prompt {
					r.Prompt[j] = uint32(i*1000 + j)
				}
				if i%2 == 0 {
					r.MaxTokens = 200
				}
				all = append(all, r)
			}
			run := func(policy string) ([]*Outcome, *Stats) {
				cfg.Migration = placement.MigrationConfig{Policy: policy, Interval: 20 * time.Millisecond, Threshold: 1}
				return simulate(t, cfg, list(all...))
			}
			stayed, none := run(placement.NoMigration)
			moved, stats := run(placement.Periodic)
			again, _ := run(placement.Periodic)
			if none.Migrations != 0 || none.MigratedBytes != 0 || stats.Migrations == 0 {
				t.Fatalf("%d moves without a policy, %d with one", none.Migrations, stats.Migrations)
			}
			var most, pauses int64
			for i, o := range moved {
				if o.Err != nil || o.Tokens != o.MaxTokens || len(o.TokenTimes) != o.Tokens || !slices.IsSorted(o.TokenTimes) || stayed[i].Tokens != o.Tokens {
					t.Errorf("request %d: %d of %d tokens, %v", i, o.Tokens, o.MaxTokens, o.Err)
				}
				if fmt.Sprint(*o) != fmt.Sprint(*again[i]) {
					t.Errorf("request %d: %+v, and then %+v", i, *o, *again[i])
				}
				if o.Paused > 0 != (o.Migrations > 0) || o.Breakdown.Migrated > 0 && o.Migrations == 0 && name != "a slow network" {
					t.Errorf("request %d moved %d times, %d bytes, and paused for %v", i, o.Migrations, o.Breakdown.Migrated, o.Paused)
				}
				most += int64(o.Migrations) * int64((o.PromptTokens+o.Tokens)*cfg.Profile.KVGeometry.TokenBytes())
				pauses += int64(o.Paused)
			}
			if mean := time.Duration(pauses / int64(stats.Migrations)); name != "a slow network" && mean > 200*time.Millisecond {
				t.Errorf("paused for %v: two steps, and the copy of a block, take less", mean)
			}
			if stats.MigratedBytes > most && name != "a slow network" || stats.MigratedBytes == 0 { // there some end before all is there
				t.Errorf("%d bytes moved, the KV of all that moved is %d", stats.MigratedBytes, most)
			}
			t.Logf("%d moves, %d bytes of %d, %v of pauses", stats.Migrations, stats.MigratedBytes, most, time.Duration(pauses))
		})
	}
}
