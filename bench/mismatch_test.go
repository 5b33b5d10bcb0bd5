package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/client/clienttest"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
)

// clusterInfo is /server_info of a proxy over nodes, each "role link rails" with
// "chunked", "down" and another profile's name after it.
func clusterInfo(handoff string, nodes ...string) string {
	info := serverinfo.Info{
		Version: "v1", Mode: "auto", Serving: ModeDisagg, Handoff: handoff, Placement: "least-loaded", Model: "m", Vocab: 500,
		BlockTokens: 16, MaxModelLen: 10000, Profile: "a10", Fingerprint: "0a",
	}
	for i, text := range nodes {
		f := strings.Fields(text)
		n := serverinfo.Node{ID: fmt.Sprintf("%s-%d", f[0], i), Role: f[0], Up: true, Profile: "a10", Fingerprint: "0a", Link: f[1], Rails: strings.Split(f[2], "+"), Version: "v1"}
		for _, word := range f[3:] {
			switch word {
			case "chunked":
				n.Chunked = true
			case "down":
				n.Up = false
			default:
				n.Profile, n.Fingerprint = word, "ff"
			}
		}
		if n.Role == ModeNonDisagg && n.Up {
			info.Serving = ModeNonDisagg
		}
		info.Nodes = append(info.Nodes, n)
	}
	text, err := json.Marshal(map[string]any{"model_path": "m", "internal_states": []any{map[string]any{}}, "kvferry": info})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// links has the rates of a profile.
func links(text string) serverinfo.Link {
	rates := map[string]float64{"tcp": 1.38e9, "rdma": 4e9}
	if text == "fast" {
		return serverinfo.Link{BytesPerSecond: 9e9}
	}
	return serverinfo.Link{Name: text, Native: text == "native", BytesPerSecond: rates[text]}
}

// engineInfo is what a proxy of real engines says of itself.
func engineInfo(serving string, roles ...string) string {
	var engines []string
	for i, role := range roles {
		engines = append(engines, fmt.Sprintf(`{"id":"10.0.0.%d:8000","url":"http://10.0.0.%d:8000","role":%q,"up":true}`, i, i, role))
	}
	return fmt.Sprintf(`{"kvferry":{"compute":"measured","handoff":"connector","serving":%q,"nodes":[%s]}}`, serving, strings.Join(engines, ","))
}

// TestServerSaysWhatItIs: rows are labelled by what the server says, and a setting
// that it is none of is refused, with what to do.
func TestServerSaysWhatItIs(t *testing.T) {
	tcp := []string{"prefill tcp tcp/lo", "decode tcp tcp/lo"}
	for _, c := range []struct {
		name, setting, info string
		handoff, transfer   string
		label, note         string
		refused             []string
	}{
		{name: "tcp", setting: "tcp", info: clusterInfo("v0", tcp...), handoff: "v0", transfer: "paced", label: "compute modelled (a10), transfer on tcp/lo paced to 1.38 GB/s (tcp)"},
		{name: "layerwise over RDMA", setting: "layerwise", info: clusterInfo("layerwise", "prefill native rdma/mlx5_0+rdma/mlx5_1", "decode native rdma/mlx5_0"), handoff: "layerwise", transfer: "measured", label: "transfer measured on rdma/mlx5_0+rdma/mlx5_1, rdma/mlx5_0"},
		{name: "native sockets", setting: "tcp", info: clusterInfo("v0", "prefill native tcp/eth0", "decode native tcp/eth0"), handoff: "v0", transfer: "measured", label: "transfer measured on tcp/eth0"},
		{name: "a rate of one's own", setting: "rdma2", info: clusterInfo("v0", "prefill fast tcp/eth0", "decode fast tcp/eth0"), handoff: "v0", transfer: "paced", label: "paced to 9 GB/s"},
		{name: "a name nobody knows here", setting: "tcp", info: clusterInfo("v0", "prefill theirs tcp/eth0", "decode theirs tcp/eth0"), handoff: "v0", transfer: "paced", label: "transfer on tcp/eth0 paced to theirs"},
		{name: "chunked", setting: "chunked", info: clusterInfo("v0", "nondisagg native tcp/lo chunked"), handoff: "none", transfer: "none", label: "compute modelled (a10), no KV transfer"},
		{name: "one node is down", setting: "tcp", info: clusterInfo("v0", append(tcp, "decode rdma rdma/x down h800")...), handoff: "v0", transfer: "paced", label: "tcp/lo"},
		{name: "unlike nodes", setting: "tcp", info: clusterInfo("v0", "prefill tcp tcp/lo", "decode tcp tcp/lo h800"), handoff: "v0", transfer: "paced", label: "(a10, h800)", note: "the nodes differ in profile: prefill-0 a10 0a, decode-1 h800 ff"},
		{name: "unlike links", setting: "tcp", info: clusterInfo("v0", "prefill tcp tcp/lo", "decode native tcp/lo"), handoff: "v0", transfer: "unknown", label: "nodes with different links: tcp and native", note: "differ in link"},
		{name: "a setting besides", setting: "tcp", info: strings.Replace(clusterInfo("v0", tcp...), `"nodes":`, `"settings":{"conditional_disaggregation":512,"placement":"least-loaded","migration":"none"},"nodes":`, 1), handoff: "v0", transfer: "paced", label: "tcp/lo", note: "link tcp on tcp/lo, conditional-disaggregation=512: nothing published to compare with"},
		{name: "two of each", setting: "tcp", info: clusterInfo("v0", append(tcp, tcp...)...), handoff: "v0", transfer: "paced", label: "tcp/lo", note: "2 prefill + 2 decode, hand-off v0, link tcp on tcp/lo: nothing published to compare with"},

		{name: "another hand-off", setting: "tcp", info: clusterInfo("layerwise", tcp...), refused: []string{"tcp is not what serves", "1 prefill + 1 decode, hand-off layerwise", "name layerwise", "--handoff v0"}},
		{name: "another link", setting: "rdma", info: clusterInfo("v0", tcp...), refused: []string{"link tcp on", "name tcp,", "--link rdma"}},
		{name: "sockets are no RDMA", setting: "rdma", info: clusterInfo("v0", "prefill native tcp/eth0", "decode native tcp/eth0"), refused: []string{"name tcp,", "--link rdma"}},
		{name: "RDMA is no tcp", setting: "tcp", info: clusterInfo("v0", "prefill native rdma/x", "decode native rdma/x"), refused: []string{"name rdma or rdma2,", "--link tcp"}},
		{name: "not chunked", setting: "chunked", info: clusterInfo("v0", "nondisagg native tcp/lo"), refused: []string{"1 non-disaggregated:", "name nondisagg,", "with --enable-chunked-prefill"}},
		{name: "chunked, not asked for", setting: "nondisagg", info: clusterInfo("v0", "nondisagg native tcp/lo chunked"), refused: []string{"chunked prefill:", "name chunked,", "without --enable-chunked-prefill"}},
		{name: "one node serves alone", setting: "layerwise", info: clusterInfo("layerwise", "nondisagg native tcp/lo"), refused: []string{"name nondisagg,", "prefill and a decode node"}},
		{name: "two nodes serve", setting: "nondisagg", info: clusterInfo("pull", tcp...), refused: []string{"name pull,", "--role both nodes"}},
		{name: "nothing serves", setting: "tcp", info: `{"kvferry":{"mode":"auto"}}`, refused: []string{"no nodes that can serve: start a prefill and a decode node"}},

		{name: "real engines", setting: "rdma", info: engineInfo("disagg", "prefill", "decode"), handoff: "connector", transfer: "measured", label: "compute and transfer measured, real engines: 1 prefill + 1 decode, KV by their connector", note: "compared with rdma because it was named so"},
		{name: "one real engine", setting: "chunked", info: engineInfo("nondisagg", "nondisagg"), handoff: "none", transfer: "none", label: "compute measured, no KV transfer, real engines that serve alone: 1", note: "compared with chunked because it was named so"},
		{name: "real engines of another mode", setting: "nondisagg", info: engineInfo("disagg", "prefill", "decode"), refused: []string{"real engines: 1 prefill + 1 decode", "--upstream alone"}},
		{name: "one real engine is no pair", setting: "tcp", info: engineInfo("nondisagg", "nondisagg"), refused: []string{"serve alone: 1", "--upstream-prefill and --upstream-decode"}},

		{name: "no endpoint", setting: "tcp", handoff: "unknown", transfer: "unknown", label: "unknown", note: "does not say what it is: it is compared with tcp because it was named so"},
		{name: "SGLang", setting: "layerwise", info: `{"model_path":"m","internal_states":[]}`, handoff: "unknown", transfer: "unknown", label: "unknown", note: "compared with layerwise"},
		{name: "no JSON", setting: "tcp", info: "hello", handoff: "unknown", transfer: "unknown", label: "unknown", note: "compared with tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &clienttest.Server{Info: c.info, KVBytes: 1 << 20}
			if c.handoff == "none" {
				f.KVBytes = 0
			}
			clienttest.NewServer(t, f)
			var stdout bytes.Buffer
			r, err := Run(t.Context(), Config{
				Workloads: []load.Workload{scaled}, Settings: settings(t, c.setting), NumPrompts: 2, Out: t.TempDir(), Stdout: &stdout, ParseLink: links,
				Start: func(context.Context, Setting) (Cluster, error) { return fakeCluster{url: f.URL, asked: true}, nil },
			})
			if c.refused != nil {
				mismatch := (*MismatchError)(nil)
				if !errors.As(err, &mismatch) || len(f.Requests()) > 0 {
					t.Fatalf("err = %v after %d requests, want a mismatch before any", err, len(f.Requests()))
				}
				wantError(t, c.name, err, append(c.refused, f.URL)...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			row := r.Cells[0].Row
			if row.Handoff != c.handoff || row.Transfer != c.transfer || !strings.Contains(row.Label, c.label) || !strings.Contains(strings.Join(row.Notes, "\n"), c.note) {
				t.Errorf("hand-off %s, %+v, notes %q", row.Handoff, row.Link, row.Notes)
			}
			compute := "modelled"
			switch {
			case row.Server == nil:
				compute = "unknown"
			case row.Server.Engines():
				compute = "measured"
			}
			if (row.Server == nil) != (c.handoff == "unknown") || row.Compute != compute {
				t.Errorf("compute %s of %+v", row.Compute, row.Server)
			}
			if !strings.Contains(stdout.String(), "(hand-off "+c.handoff+"; "+row.Label) {
				t.Errorf("printed:\n%s", stdout.String())
			}
		})
	}
}

// TestVocabularyOfTheServer: prompts hold the ids that the server knows, of one that
// does not say those that every model knows.
func TestVocabularyOfTheServer(t *testing.T) {
	for info, want := range map[string]int{clusterInfo("v0", "prefill tcp tcp/lo", "decode tcp tcp/lo"): 500, "": serverinfo.SafeVocabulary} {
		for _, asked := range []bool{true, false} {
			f := clienttest.NewServer(t, &clienttest.Server{Info: info, KVBytes: 1})
			if _, err := Run(t.Context(), Config{
				Workloads: []load.Workload{scaled}, Settings: settings(t, "tcp"), NumPrompts: 10, Out: t.TempDir(),
				Start: func(context.Context, Setting) (Cluster, error) { return fakeCluster{url: f.URL, asked: asked}, nil },
			}); err != nil {
				t.Fatal(err)
			}
			top := 0
			for _, r := range f.Requests() {
				top = max(top, int(slices.Max(r.Prompt)))
			}
			if top >= want || top < want*9/10 {
				t.Errorf("the highest of 2,700 ids is %d, want one below %d and near it", top, want)
			}
		}
	}
}

// FuzzServerInfo: whatever a server says of itself, it is labelled or refused.
func FuzzServerInfo(f *testing.F) {
	f.Add([]byte(clusterInfo("v0", "prefill tcp tcp/lo", "decode native rdma/x", "nondisagg fast cma chunked")))
	f.Add([]byte(`{"kvferry":{"vocab":-1,"nodes":[{"up":true}]}}`))
	f.Add([]byte(`{"kvferry":null}`))
	f.Add([]byte(`{"kvferry":7}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		info, err := serverinfo.Parse(body)
		if info == nil {
			return
		}
		if err != nil || info.Vocabulary() < 1 {
			t.Fatalf("%v, vocabulary %d", err, info.Vocabulary())
		}
		for _, s := range Settings() {
			c := &Cell{Row: Row{Server: info}}
			err := c.askedOf("http://x", s, links)
			if err == nil && (c.Label == "" || c.Handoff != s.Handoff && s.Mode == ModeDisagg) {
				t.Errorf("%s: hand-off %q, %+v", s.Name, c.Handoff, c.Link)
			}
			if mismatch := (*MismatchError)(nil); err != nil && (!errors.As(err, &mismatch) || len(mismatch.Todo) == 0) {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	})
}
