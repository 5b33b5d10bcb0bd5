package engines

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// This binary stands for an instance too, and for a kvferry that is killed.
func TestMain(m *testing.M) {
	if faults, ok := os.LookupEnv(fakeEnv); ok {
		fake(faults)
	}
	if out := os.Getenv(benchEnv); out != "" {
		cfg := Config{Prompts: 6, Rounds: 1, Out: out, Settings: []string{"nixl-ucx"}, Progress: os.Stderr}
		fmt.Fprintln(os.Stderr, fakes("NixlConnector P waits", out).run(context.Background(), cfg.withDefaults()))
		os.Exit(1)
	}
	// Under the race detector each process would stay for a second more, and these are many.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

const (
	fakeEnv  = "KVFERRY_FAKE_ENGINE" // faults of instances, "CONNECTOR ROLE FAULT" each, with commas between; "then" before it: not for the first prompt
	pidsEnv  = "KVFERRY_FAKE_PIDS"   // a folder for the process ids of instances
	benchEnv = "KVFERRY_FAKE_BENCH"
)

// fakes are instances that are this binary, with a kvferry that a wheel has installed.
func fakes(faults, pids string) environment {
	return environment{
		command: []string{os.Args[0]}, env: append(os.Environ(), fakeEnv+"="+faults, pidsEnv+"="+pids), model: "none", identical: true,
		kvferry: func(string) (kvferryFolder, error) { return installed(pids) },
		watch: func(all []int) func() string {
			return func() string {
				if n := len(all); strings.Contains(faults, "disturbed") && n == 2 {
					return "others took the CPUs"
				}
				return ""
			}
		},
	}
}

// installed is a folder with what a wheel installs.
func installed(dir string) (kvferryFolder, error) {
	f := kvferryFolder(filepath.Join(dir, "site-packages"))
	err := os.MkdirAll(filepath.Join(f.module(), "vllm"), 0o700)
	for _, name := range []string{libraryFile, pluginFile, "vllm/__init__.py"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(f.module(), name), nil, 0o600))
	}
	return f, err
}

// forever is what a process does that only a kill ends.
func forever() {
	for range time.Tick(time.Hour) {
	}
}

const fakeBlock = 16 // tokens

// fake is an instance: the tokens and the KV of a prompt follow from it, and a D without a fault says
// that it has computed one token and was given the others.
func fake(faults string) {
	in := bufio.NewReader(os.Stdin)
	var s struct {
		spec
		Transfer struct {
			Connector string `json:"kv_connector"`
		} `json:"kv_transfer_config"`
	}
	line, _ := in.ReadBytes('\n')
	if err := json.Unmarshal(line, &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	r := role(s.Core)
	computed, received, answered := 0, 0, 0
	fault := func(name string) bool {
		has := func(name string) bool {
			return strings.Contains(","+faults+",", fmt.Sprintf(",%s %v %s,", s.Transfer.Connector, r, name))
		}
		return has(name) || answered > 0 && has("then "+name)
	}
	say := func(v map[string]any) {
		text, _ := json.Marshal(v)
		fmt.Printf("%s\n", text)
	}
	// Its process id, and the folder that it was started from.
	_ = os.WriteFile(fmt.Sprintf("%s/pid-%d", os.Getenv(pidsEnv), os.Getpid()), []byte(filepath.Dir(filepath.Dir(os.Args[1]))), 0o600)
	if fault("breaks") {
		fmt.Fprintln(os.Stderr, "ImportError: there is no such library")
		os.Exit(3)
	}
	say(map[string]any{"event": "ready", "vocabulary": 100, "special": []int{0}, "block_tokens": fakeBlock, "block_bytes": 1000})
	misbehave(s.Blocks)
	sums := map[string]string{}
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var o struct {
			order
			Tokens json.RawMessage `json:"tokens"`
		}
		if err := json.Unmarshal(line, &o); err != nil {
			panic(err)
		}
		switch o.Do {
		case "count":
			free := 100
			if fault("leaks") {
				free -= answered
			}
			say(map[string]any{"event": "counted", "cpu_s": 0.5, "computed": computed, "received": received, "free": free})
		case "cancel":
			say(map[string]any{"event": "cancelled", "id": o.ID})
		case "flip":
			say(map[string]any{"event": "flipped", "id": o.ID})
		case "digest":
			say(map[string]any{"event": "digested", "digest": sums[o.ID] + map[bool]string{true: "flipped"}[fault("flips")]})
		default:
			if fault("waits") {
				forever()
			}
			if fault("dies") {
				fmt.Fprintln(os.Stderr, "a last word")
				os.Exit(9)
			}
			if fault("raises") {
				say(map[string]any{"event": "error", "text": "RuntimeError: no KV came"})
				forever()
			}
			var prompt []int
			_ = json.Unmarshal(o.Tokens, &prompt)
			n := len(prompt)
			// Where some of the answer stands behind the prompt, the rest follows.
			h := fnv.New32()
			fmt.Fprint(h, prompt[:n/fakeBlock*fakeBlock])
			first := int(h.Sum32() % 100)
			all := []int{first}
			for len(all) < output {
				all = append(all, (all[len(all)-1]*7+1)%100)
			}
			all = all[n%fakeBlock:][:o.MaxTokens]
			if fault("errs") {
				all[1]++
			}
			sums[o.ID] = fmt.Sprint(first)
			if r == decode && s.Transfer.Connector != "" && !fault("computes") {
				left := map[bool]int{false: 1, true: 2}[s.Transfer.Connector == "ExampleConnector"]
				computed, received = computed+left, received+n-left
			} else {
				computed += n
			}
			if fault("starves") {
				received = 0
			}
			if fault("computes two") {
				computed++
			}
			quits := fault("quits")
			answered++
			say(map[string]any{"event": "first", "id": o.ID})
			say(map[string]any{"event": "done", "id": o.ID, "tokens": all, "params": nil})
			if quits {
				os.Exit(9)
			}
		}
	}
}

// misbehave does what the wrapper around NIXL's backend does, as far as anybody sees. What lands late wants blocks that
// are used again.
func misbehave(blocks int) {
	name := os.Getenv("KVFERRY_FAULTS")
	if name == "" {
		return
	}
	var schedule struct {
		Backend string
		Log     string
		Faults  []struct{ Fault string }
	}
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &schedule)
	}
	if err == nil && len(schedule.Faults) > 0 && schedule.Faults[0].Fault != "stall" { // that one does not come
		err = os.WriteFile(schedule.Log, []byte("{}\n"), 0o600)
	}
	if len(schedule.Faults) > 0 && schedule.Faults[0].Fault == "replay" && blocks != 131 { // of 16 tokens: for 2,065, and one more
		err = fmt.Errorf("there are %d blocks", blocks)
	}
	if err != nil || schedule.Backend != "UCX" || os.Getenv("NIXL_PLUGIN_DIR") == "" {
		fmt.Fprintln(os.Stderr, schedule, err)
		os.Exit(4)
	}
}
