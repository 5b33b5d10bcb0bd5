package batching

import (
	"cmp"
	"fmt"
	"testing"

	"kvferry/engine"
)

// TestAdaptersAreForgotten: names that come and go take no more memory than so many, whether a profile bounds
// adapters or not.
func TestAdaptersAreForgotten(t *testing.T) {
	for _, cfg := range []engine.LoRA{{}, {Merged: true}, {MaxLoRAs: 2}, {MaxLoRAs: 2, MaxCPULoRAs: 3}} {
		a := newAdapters(cfg)
		a.any = true
		step := func(name string) {
			q := engine.NewSequence(engine.Request{Adapter: name, AdapterRank: 8})
			a.turn = name
			a.prepare(&engine.Step{Works: []engine.Work{{Seq: q, N: 1}}})
		}
		for i := range maxKept - 50 { // quickly
			for _, c := range []*adapterCache{&a.slots, &a.host, &a.served} {
				c.use(fmt.Sprint("old-", i), func(string) bool { return false })
			}
		}
		for i := range 200 {
			step(fmt.Sprint("lora-", i))
			if i%7 == 0 {
				step("kept")
			}
		}
		slots, host := cmp.Or(cfg.MaxLoRAs, maxKept), cmp.Or(cfg.MaxCPULoRAs, maxKept)
		if len(a.slots.used) > slots || len(a.shown) > slots || len(a.host.used) > host || len(a.served.used) > maxKept {
			t.Errorf("%+v: %d in slots, %d in host memory, %d were served", cfg, len(a.slots.used), len(a.host.used), len(a.served.used))
		}
		if _, kept := a.slots.used["kept"]; cfg.MaxLoRAs == 0 && !kept {
			t.Errorf("%+v: what was used now is forgotten", cfg)
		}
	}
}
