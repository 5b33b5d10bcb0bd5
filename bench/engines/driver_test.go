package engines

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvferry/internal/proc"
)

// TestDriver: the program in Python, with what stands for vLLM: it takes orders and gives events
// and nothing else, takes idle steps as long as vLLM would, and ends with its input.
func TestDriver(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 here")
	}
	vllm, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	arrivals := make(chan arrival)
	log := filepath.Join(t.TempDir(), "log")
	cmd := proc.Cmd{Args: []string{python, filepath.Join("files", "driver.py")}, Env: append(os.Environ(), "PYTHONPATH="+vllm, "PYTHONDONTWRITEBYTECODE=1")}
	i, err := place{}.start(decode, cmd, spec{Model: "m", DType: "auto", Core: 5, Blocks: 9, Transfer: json.RawMessage(`{"a":1}`)}, log, patience, arrivals)
	if err != nil {
		t.Fatal(err)
	}
	defer i.end(true)
	next := func() arrival {
		t.Helper()
		select {
		case a := <-arrivals:
			return a
		case <-time.After(patience):
			t.Fatalf("it says nothing more: %q", i.Tail())
		}
		return arrival{}
	}
	said := func(want event) {
		t.Helper()
		a := next()
		if a.CPU = 0; !reflect.DeepEqual(a.event, want) || a.from != decode {
			t.Fatalf("%+v, want %+v: %q", a, want, i.Tail())
		}
	}
	ask := func(o order) {
		t.Helper()
		if err := i.send(o); err != nil {
			t.Fatal(err)
		}
	}
	null := json.RawMessage("null")
	said(event{Event: saysReady, Vocabulary: 50, Special: []int{0, 1}, BlockTokens: 4, BlockBytes: 100})
	ask(order{Do: "generate", ID: "a", Tokens: []int{4, 5}, MaxTokens: 1})
	said(event{Event: saysFirst, ID: "a"})
	said(event{Event: saysDone, ID: "a", Tokens: []int{1}, Params: null, Finish: "length"})
	// Its answer took three steps, and there are five more.
	await(t, "idle steps", func() bool {
		ask(order{Do: "count"})
		a := next()
		return a.Event == saysCounted && a.CPU > 0 && a.Received == 8 && a.Free == 7
	})
	ask(order{Do: "generate", ID: "b", Tokens: []int{4}, MaxTokens: 3, Params: json.RawMessage(`{"x":7}`)})
	said(event{Event: saysFirst, ID: "b"})
	said(event{Event: saysDone, ID: "b", Tokens: []int{1, 2, 3}, Params: json.RawMessage(`{"kv_transfer_params": {"x": 7}}`), Finish: "length"})
	// Two at once, of which one is never answered, and is cancelled.
	ask(order{Do: "generate", ID: "d", Tokens: []int{14}, MaxTokens: 3})
	ask(order{Do: "generate", ID: "e", Tokens: []int{4}, MaxTokens: 1})
	said(event{Event: saysFirst, ID: "e"})
	said(event{Event: saysDone, ID: "e", Tokens: []int{1}, Params: null, Finish: "length"})
	ask(order{Do: "cancel", ID: "d"})
	said(event{Event: saysCancelled, ID: "d"})
	ask(order{Do: "generate", ID: "c", Tokens: []int{13}, MaxTokens: 3})
	said(event{Event: saysError, Text: "ValueError: unlucky"})
	if a := next(); a.over == nil {
		t.Errorf("it goes on: %+v", a)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.HasPrefix(string(text), "printed to standard output\nblocks: 9\n") || !strings.Contains(string(text), "Traceback") {
		t.Errorf("the log has %s", text)
	}
}
