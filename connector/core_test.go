package connector

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/kvcache"
)

func TestNewCore(t *testing.T) {
	prof := smallProfile()
	pool := kvcache.NewPool(4, 4, false)
	sched, err := batching.NewScheduler(batching.ConfigOf(prof, false, pool))
	if err != nil {
		t.Fatal(err)
	}
	good := Config{Scheduler: sched, Pool: pool, Profile: prof}
	if _, err := NewCore(good); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Config){
		"Scheduler is nil": func(c *Config) { c.Scheduler = nil },
		"Pool is nil":      func(c *Config) { c.Pool = nil },
		"Profile is nil":   func(c *Config) { c.Profile = nil },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := NewCore(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}

// TestTensors: what v0's copies and the step's extraction are charged for.
func TestTensors(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	c := &Core{cfg: Config{Profile: prof}}
	for tensor, want := range map[int]float64{TensorK: 28.672, TensorV: 28.672, TensorHidden: 7.168} {
		if got := c.tensorMB(tensor, 1000); math.Abs(got-want) > 1e-9 {
			t.Errorf("tensor %d of 1000 tokens has %v MB, want %v", tensor, got, want)
		}
	}
	if got := c.megabytes(1000); math.Abs(got-64.512) > 1e-9 {
		t.Errorf("1000 tokens have %v MB, want 64.512", got)
	}
}

// TestBreakdownAdd: every part of the other leg counts.
func TestBreakdownAdd(t *testing.T) {
	var a, b Breakdown
	va, vb := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	for i := range va.NumField() {
		va.Field(i).SetInt(int64(100 + i))
		vb.Field(i).SetInt(int64(10 * (i + 1)))
	}
	a.Add(&b)
	for i := range va.NumField() {
		if got, want := va.Field(i).Int(), int64(110+11*i); got != want {
			t.Errorf("%s is %d, want %d", va.Type().Field(i).Name, got, want)
		}
	}
}

// TestTransfersCannotBeGuessed: with a secret a transfer's ID does not follow from another one, though
// the bits that immediates have room for differ among as many as can be open.
func TestTransfersCannotBeGuessed(t *testing.T) {
	ids := func(secret [32]byte) (all []uint64) {
		prof := smallProfile()
		pool := kvcache.NewPool(8, prof.KVGeometry.BlockTokens, false)
		sched, err := batching.NewScheduler(batching.ConfigOf(prof, false, pool))
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: prof, Transfers: 1<<24 - 3, Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			all = append(all, c.newTransfer())
		}
		return all
	}
	counted := ids([32]byte{})
	a, b := ids([32]byte{1}), ids([32]byte{2})
	for i := range a {
		if a[i]&(1<<24-1) != counted[i]&(1<<24-1) || a[i] == b[i] || i > 0 && a[i]>>24 == a[i-1]>>24 || i > 1 && a[i]-a[i-1] == a[i-1]-a[i-2] {
			t.Fatalf("transfer %d is %x after %x; with another secret %x, and without one %x", i, a[i], a[max(i-1, 0)], b[i], counted[i])
		}
	}
}
