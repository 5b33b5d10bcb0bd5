package load_test

import (
	"strings"
	"testing"
	"time"

	"kvferry/load"
	"kvferry/load/loadtest"
)

func TestBursts(t *testing.T) {
	s := load.New()
	s.Kind, s.Requests, s.InputLen, s.OutputLen, s.Vocab = "bursts", 1000, 500, 10, 1000
	loadtest.TestSource(t, s.Open, loadtest.Bounds{Requests: 1000, Prompt: 500, MaxTokens: 10, Vocab: 1000})

	l, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	all, err := load.Collect(l)
	if err != nil || all[7].At != 0 || all[8].At != 2*time.Second || all[15].At != 2*time.Second {
		t.Errorf("%v, the second burst comes at %v", err, all[8].At)
	}
	if err := load.AllKnobs().Set(&s, "burst-size", "0"); err == nil || !strings.Contains(err.Error(), "more than 0") {
		t.Errorf("bursts of none: %v", err)
	}
}
