package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/bench/client/clienttest"
)

const smallLoad = " --dataset-name random --random-input-len 8 --random-output-len 4 --num-prompts 40"

// breaking is a server that breaks off each answer whose request's number, after the probe, is a multiple
// of five.
func breaking(t *testing.T, end string) string {
	var n atomic.Int32
	f := &clienttest.Server{}
	f.Behave = func(w http.ResponseWriter, _ *http.Request, _ *clienttest.Completion) bool {
		if i := n.Add(1) - 1; i == 0 || i%5 != 0 {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\" tok\",\"finish_reason\":null}]}\n\n"+end)
		return true
	}
	return clienttest.NewServer(t, f).URL
}

// TestServeFailedIsFailedEverywhere: answers that broke off in a status 200 failed in every file and
// layout, a note says what the tool would count, and the exit status is 1 beyond --max-failures.
func TestServeFailedIsFailedEverywhere(t *testing.T) {
	const broken = "data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n"
	for _, c := range []struct{ compat, more, end, note string }{
		{"vllm", "", broken, "vLLM's client would count 40 successful and 0 failed"},
		{"vllm", "", "", "vLLM's client would count 40 successful and 0 failed"},
		{"sglang", " --backend sglang-oai --num-warmups 0", "", "SGLang's client would count 40 successful and 0 failed"},
	} {
		for most, want := range map[string]int{"": ExitFailed, " --max-failures 7": ExitFailed, " --max-failures 8": 0} {
			name := fmt.Sprintf("%s%s %d", c.compat, c.more, len(c.end))
			files := t.TempDir()
			args := "--compat " + c.compat + c.more + most + " --base-url " + breaking(t, c.end) + smallLoad +
				" --save-result --result-filename vllm.json --result-dir " + files + " --output-file " + filepath.Join(files, "sglang.jsonl")
			rows, stdout, stderr := rowsOf(t, want, strings.Fields(args)...)
			if m := rows[0].Metrics; m["successful_requests"] != 32.0 || m["failed_requests"] != 8.0 {
				t.Errorf("%s: %v successful, %v failed", name, m["successful_requests"], m["failed_requests"])
			}
			if !strings.Contains(stdout, "Successful requests:                     32 ") || !strings.Contains(stdout, c.note) {
				t.Errorf("%s: not a word of %q, or not 32 successful:\n%s", name, c.note, stdout)
			}
			if want != 0 && !strings.Contains(stderr, "8 of 40 requests failed, and --max-failures is ") {
				t.Errorf("%s: %s", name, stderr)
			}
			for _, file := range []string{"vllm.json", "sglang.jsonl"} {
				text, err := os.ReadFile(filepath.Join(files, file))
				if err != nil || !strings.Contains(string(text), `"completed": 32,`) || file == "vllm.json" && !strings.Contains(string(text), `"failed": 8,`) {
					t.Errorf("%s: %s: %v\n%s", name, file, err, text)
				}
			}
		}
	}
}

// TestServeShortIsNoFailure: short answers stay what docs/reports.md says, and are none of --max-failures.
func TestServeShortIsNoFailure(t *testing.T) {
	var n atomic.Int32
	f := &clienttest.Server{}
	f.Behave = func(w http.ResponseWriter, _ *http.Request, req *clienttest.Completion) bool {
		if i := n.Add(1) - 1; i == 0 || i%5 != 0 {
			return false
		}
		f.Stream(w, req, req.MaxTokens-1)
		fmt.Fprint(w, "data: [DONE]\n\n")
		return true
	}
	clienttest.NewServer(t, f)
	rows, stdout, _ := rowsOf(t, 0, strings.Fields("--base-url "+f.URL+smallLoad)...)
	if m := rows[0].Metrics; m["failed_requests"] != 8.0 || !strings.Contains(stdout, "Failed requests:                         0 ") {
		t.Errorf("%v failed\n%s", m["failed_requests"], stdout)
	}
}

// TestServeABillionTokens: a count that nobody can mean fails its request, and costs no memory.
func TestServeABillionTokens(t *testing.T) {
	usage := `"usage":{"prompt_tokens":8,"completion_tokens":1000000000}}` + "\n\n"
	for _, end := range []string{
		"data: {\"choices\":[]," + usage + "data: [DONE]\n\n",
		"data: {\"choices\":[{\"index\":0,\"text\":\" tok\",\"finish_reason\":\"length\"}]," + usage + "data: [DONE]\n\n",
	} {
		_, stdout, stderr := rowsOf(t, ExitFailed, strings.Fields("--base-url "+breaking(t, end)+smallLoad)...)
		if !strings.Contains(stderr, "8 of 40 requests failed") || !strings.Contains(stdout, "usage: 8 prompt tokens, 1000000000 of the answer") {
			t.Errorf("%s\n%s", stdout, stderr)
		}
	}
}
