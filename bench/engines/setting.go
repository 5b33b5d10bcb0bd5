package engines

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Setting is a way of KV from P to D. P and D are the kv_transfer_config of the instances, as
// vLLM takes it, Ask and Take the kv_transfer_params of their requests, all in JSON. In these and in
// Env stand {port}, a free port of the instance; {p}, that of P; {folder}, an empty folder that both
// see; {request}, what a prompt is called.
type Setting struct {
	Name, Rail string
	P, D       string   // both empty: one undivided instance
	Env        []string // of both instances
	Ask        string   // P is asked with that; empty: nothing
	Take       string   // D is given that, and what P has answered; empty: nothing
	// Append is how many tokens of mono's answer both are asked with behind the prompt: a connector
	// that leaves the last tokens to D then moves all of the prompt.
	Append int
}

// Mono is the setting that the others are held to: one undivided instance.
const Mono = "mono"

// What the NIXL connectors have in common: P's answer has all that D needs.
var nixlEnv = []string{"UCX_TLS=tcp", "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT={port}"}

const (
	nixlAsk  = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	nixlUCX  = `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"backends":["UCX"]}}`
	nixlPush = `{"kv_connector":"NixlPushConnector","kv_role":"kv_both","kv_connector_extra_config":{"backends":["UCX"]}}`
	// On a CPU its connector wants a device's number; files/mooncake_on_cpu.py has one.
	mooncake = `{"kv_connector":"MooncakeConnector","kv_connector_module_path":"mooncake_on_cpu","kv_role":"%s","engine_id":"%s","kv_connector_extra_config":{"mooncake_protocol":"tcp"}}`
	example  = `{"kv_connector":"ExampleConnector","kv_role":"kv_both","kv_connector_extra_config":{"shared_storage_path":"{folder}"}}`
)

// Settings are all there are, in the order of the table.
var Settings = []Setting{
	{Name: Mono, Rail: "none"},
	{Name: "nixl-ucx", Rail: "tcp", P: nixlUCX, D: nixlUCX, Env: nixlEnv, Ask: nixlAsk},
	{Name: "nixl-push", Rail: "tcp", P: nixlPush, D: nixlPush, Env: nixlEnv, Ask: nixlAsk},
	{
		Name: "mooncake", Rail: "tcp", P: fmt.Sprintf(mooncake, "kv_producer", "prefill"), D: fmt.Sprintf(mooncake, "kv_consumer", "decode"),
		Env:  []string{"VLLM_HOST_IP=127.0.0.1", "VLLM_MOONCAKE_BOOTSTRAP_PORT={port}"},
		Ask:  `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"{request}"}`,
		Take: `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"{request}","remote_engine_id":"prefill","remote_bootstrap_addr":"http://127.0.0.1:{p}"}`,
	},
	// It moves whole blocks, as many as there are without the last two tokens.
	{Name: "example", Rail: "file", P: example, D: example, Append: 2},
}

// Names are those of Settings, each once.
func Names() (all []string) {
	for _, s := range Settings {
		if !slices.Contains(all, s.Name) {
			all = append(all, s.Name)
		}
	}
	return all
}

// choose returns mono and the settings of these names, all if there are none.
func choose(names []string) (all []Setting, err error) {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("%q: there is no such setting: use %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, s := range Settings {
		if len(names) == 0 || s.Name == Mono || slices.Contains(names, s.Name) {
			all = append(all, s)
		}
	}
	return all, nil
}

func (s *Setting) String() string {
	if s.Name == Mono {
		return Mono
	}
	return s.Name + " " + s.Rail
}

// roles are the instances of a setting. The one that answers is always there.
func (s *Setting) roles() []role {
	if s.P == "" {
		return []role{decode}
	}
	return []role{prefill, decode}
}

// A role is what an instance does; its core, too, is by it.
type role int

const (
	prefill role = iota
	decode
)

func (r role) String() string { return [...]string{"P", "D"}[r] }

// merged are the fields of two JSON objects, those of b where both have one. Either may be empty.
func merged(a string, b json.RawMessage) (json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	for _, text := range [][]byte{[]byte(a), b} {
		if len(text) == 0 {
			continue
		}
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, fmt.Errorf("kv_transfer_params %s: %w", text, err)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}
