package report

import (
	"encoding/json"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// TestInterrupted: what was in flight when a run was interrupted is no failure of the server, in
// no tool's result; what failed before is.
func TestInterrupted(t *testing.T) {
	r := plain()
	r.Interrupted = true
	r.Goodput = stats.SLO{{Metric: "ttft", MS: 1e6}}
	for i := 90; i < 100; i++ {
		r.Records[i].Status, r.Records[i].Error = client.StatusInterrupted, "given up: the run was interrupted"
	}
	r.Records[5].Status, r.Records[5].Error, r.Records[5].Fault, r.Records[5].HTTPStatus = client.StatusFailed, "HTTP 500", client.FaultStatus, 500
	r.Records[5].Text = "half of it"
	var text strings.Builder
	v, g := NewVLLM(r), NewSGLang(r)
	if err := v.WriteText(&text); err != nil || !strings.Contains(text.String(), "Failed requests:                         1  ") {
		t.Errorf("%v\n%s", err, &text)
	}
	for name, l := range map[string]interface{ JSON(bool) ([]byte, error) }{"vLLM": v, "SGLang": g} {
		line, err := l.JSON(true)
		var got struct {
			Completed  int
			Failed     *int
			Errors     []string
			Texts      []string `json:"generated_texts"`
			Attainment *float64 `json:"slo_attainment"`
		}
		if err != nil || json.Unmarshal(line, &got) != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Completed != 89 || got.Failed != nil && *got.Failed != 1 || len(got.Errors) != 90 || strings.Contains(string(line), "interrupted") || got.Texts[5] != "" {
			t.Errorf("%s: %d completed, %v failed, %d errors, text %q", name, got.Completed, got.Failed, len(got.Errors), got.Texts[5])
		}
		if a := got.Attainment; a != nil && *a != 89./90 {
			t.Errorf("%s: attained %v", name, *a)
		}
	}
	p := New(r)
	if m := p.M; m.Failed != 1 || m.Interrupted != 10 || *m.Attained != 89./90 {
		t.Errorf("%d failed, %d interrupted, attained %v", m.Failed, m.Interrupted, *m.Attained)
	}
}

// TestAcceptLength: as the tool reads it out of /server_info, of a server and of a router.
func TestAcceptLength(t *testing.T) {
	for info, want := range map[string]string{
		`{"internal_states":[{"avg_spec_accept_length":2.5}]}`:               "2.50",
		`{"decode":[{"internal_states":[{"avg_spec_accept_length":3.25}]}]}`: "3.25",
		`{"internal_states":[{"avg_spec_accept_length":null}]}`:              "",
		`{"internal_states":[]}`:                                             "",
		`["what else it may say"]`:                                           "",
		``:                                                                   "",
	} {
		r := plain()
		r.Backend, r.ServerInfo = "sglang", json.RawMessage(info)
		var text strings.Builder
		line, err := NewSGLang(r).JSON(false)
		if wrong := NewSGLang(r).WriteText(&text); err != nil || wrong != nil {
			t.Fatal(err, wrong)
		}
		if _, after, found := strings.Cut(text.String(), "Accept length:"); found != (want != "") || found && strings.Fields(after)[0] != want {
			t.Errorf("%s: %q in\n%s", info, want, &text)
		}
		if known := !strings.Contains(string(line), `"accept_length": null`); known != (want != "") {
			t.Errorf("%s: %s", info, line)
		}
	}
}

// TestReasoned: vLLM's client leaves a model's reasoning out of the text, SGLang's does not.
func TestReasoned(t *testing.T) {
	r := plain()
	content := "four"
	r.Records[0].Text, r.Records[0].Content = "two and two is four", &content
	r.Records[0].HTTPStatus, r.Records[0].LastLine = 200, 1
	if text := NewVLLM(r).requests[0].text; text != "four" {
		t.Errorf("vLLM: %q", text)
	}
	r.Backend = "sglang-oai-chat"
	if text := NewSGLang(r).requests[0].text; text != "two and two is four" {
		t.Errorf("SGLang: %q", text)
	}
}
