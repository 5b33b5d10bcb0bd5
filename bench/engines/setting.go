package engines

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Setting is a way of KV from P to D. P and D are the kv_transfer_config of the instances, as
// vLLM takes it, Ask and Take the kv_transfer_params of their requests, all in JSON. In these and in
// Env stand the names of a [values] in braces.
type Setting struct {
	Name, Rail string
	P, D       string   // both empty: one undivided instance
	Env        []string // of both instances
	Needs      need
	Backend    string // of NIXL; empty: NIXL is not used
	Pushes     bool   // P's NIXL moves the KV, and not D's
	Ask        string // P is asked with that; empty: nothing
	Take       string // D is given that, and what P has answered; empty: nothing
	Together   bool   // D is asked at the same time as P, and is given Take alone
	// Append is how many tokens of mono's answer both are asked with behind the prompt: a connector
	// that leaves the last tokens to D then moves all of the prompt.
	Append int
}

// values are what stands in a setting by name, and is known only when its instances start.
type values struct {
	port      string // a free port of the instance
	host      string // its address
	p         string // host and port of P's
	rails     string // kvferry's, by the setting's Rail
	nics      string // NICs, as UCX names them
	backend   string // of NIXL
	checksums string // true or false: of each block, by kvferry's connector
	timeout   string // seconds that a transfer may take
	lease     string // seconds that P keeps blocks that nobody has taken
	plugins   string // folder of NIXL's plugins
	folder    string // empty, and both instances see it
	request   string // what a prompt is called
}

func (v values) fill() *strings.Replacer {
	return strings.NewReplacer("{port}", v.port, "{host}", v.host, "{p}", v.p, "{rails}", v.rails, "{nics}", v.nics, "{backend}", v.backend,
		"{checksums}", v.checksums, "{timeout}", v.timeout, "{lease}", v.lease,
		"{plugins}", v.plugins, "{folder}", v.folder, "{request}", v.request)
}

// Mono is the setting that the others are held to: one undivided instance.
const Mono = "mono"

// Rails of settings. Each of kvferry's is one that [place.rails] knows.
const (
	tcp    = "tcp"
	twoTCP = "tcp,tcp"
	cma    = "cma"
)

// Hand-offs of kvferry's connector.
const (
	pull      = "pull"
	layerwise = "layerwise"
)

// What the NIXL connectors have in common: P's answer has all that D needs.
var (
	nixlEnv     = []string{"VLLM_NIXL_SIDE_CHANNEL_HOST={host}", "VLLM_NIXL_SIDE_CHANNEL_PORT={port}"}
	ucxEnv      = append([]string{"UCX_TLS=tcp", "UCX_NET_DEVICES={nics}"}, nixlEnv...)
	nixlKVFerry = append([]string{"NIXL_PLUGIN_DIR={plugins}", "KVFERRY_RAILS={rails}", "KVFERRY_TIMEOUT={timeout}"}, nixlEnv...)
)

const (
	askP = `{"do_remote_decode":true,"do_remote_prefill":false`
	// Both are told what the transfer is called, and D where P is to be asked.
	askID  = askP + `,"transfer_id":"{request}"}`
	takeID = `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"{request}","remote_bootstrap_addr":"http://{p}"`

	nixlAsk = askP + `,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	nixl    = `{"kv_connector":"%s","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"backends":["{backend}"],"kv_lease_duration":{lease}}}`
	// On a CPU its connector wants a device's number; files/mooncake_on_cpu.py has one.
	mooncake = `{"kv_connector":"MooncakeConnector","kv_connector_module_path":"mooncake_on_cpu","kv_role":"%s","engine_id":"%s","kv_connector_extra_config":{"mooncake_protocol":"tcp"}}`
	example  = `{"kv_connector":"ExampleConnector","kv_role":"kv_both","kv_connector_extra_config":{"shared_storage_path":"{folder}"}}`
)

// kvferry is a setting of kvferry's own connector.
func kvferry(handoff, rail string) Setting {
	s, more := Setting{Name: "kvferry-" + handoff, Rail: rail, Needs: library, Ask: askP + "}"}, ""
	config := func(role string) string {
		return fmt.Sprintf(`{"kv_connector":"KvferryConnector","kv_connector_module_path":"kvferry.vllm","kv_role":"%s","kv_load_failure_policy":"recompute",`+
			`"kv_connector_extra_config":{"handoff":"%s","rails":"{rails}",%s"timeout":{timeout},"lease":{lease},"checksums":{checksums}}}`, role, handoff, more)
	}
	if handoff == layerwise {
		s.Ask, s.Take, s.Together = askID, takeID+"}", true
		more = `"bootstrap":"{host}:{port}","allow":"{p}",`
	}
	s.P, s.D = config("kv_producer"), config("kv_consumer")
	return s
}

// ownBackend is kvferry's of NIXL. The wrapper around another has its name too.
const ownBackend = "KVFERRY"

// stock is a setting of one of vLLM's NIXL connectors.
func stock(name, rail, connector, backend string, needs need, env []string) Setting {
	s := Setting{Name: name, Rail: rail, P: fmt.Sprintf(nixl, connector), Backend: backend, Needs: needs, Env: env, Ask: nixlAsk}
	s.D, s.Pushes = s.P, connector == "NixlPushConnector"
	return s
}

// Settings are all there are, in the order of the table.
var Settings = []Setting{
	{Name: Mono, Rail: "none"},
	kvferry(pull, tcp),
	kvferry(pull, twoTCP),
	kvferry(pull, cma),
	kvferry(layerwise, tcp),
	kvferry(layerwise, cma),
	stock("nixl-kvferry", tcp, "NixlConnector", ownBackend, plugin, nixlKVFerry),
	stock("nixl-kvferry", cma, "NixlConnector", ownBackend, plugin, nixlKVFerry),
	stock("nixl-ucx", tcp, "NixlConnector", "UCX", nothing, ucxEnv),
	stock("nixl-push", tcp, "NixlPushConnector", "UCX", nothing, ucxEnv),
	{
		Name: "mooncake", Rail: tcp, P: fmt.Sprintf(mooncake, "kv_producer", "prefill"), D: fmt.Sprintf(mooncake, "kv_consumer", "decode"),
		Env: []string{"VLLM_HOST_IP={host}", "VLLM_MOONCAKE_BOOTSTRAP_PORT={port}", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT={lease}"},
		Ask: askID, Take: takeID + `,"remote_engine_id":"prefill"}`,
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

// choose returns mono and the settings of these names, all if there are none; with a link, those that
// go over one. A name may have a rail behind it, as kvferry-pull/cma.
func choose(names []string, link bool) (all []Setting, err error) {
	names = joined(names)
	for _, name := range names {
		if err := known(name, link); err != nil {
			return nil, err
		}
	}
	for _, s := range Settings {
		asked := len(names) == 0 || slices.ContainsFunc(names, s.is)
		if s.Name == Mono || asked && (!link || s.linked()) {
			all = append(all, s)
		}
	}
	return all, nil
}

// joined puts together what a flag takes for two names, as there is a comma in a rail: kvferry-pull/tcp,tcp.
func joined(names []string) (all []string) {
	for _, name := range names {
		if n := len(all) - 1; name == tcp && n >= 0 && strings.HasSuffix(all[n], "/"+tcp) {
			all[n] += "," + name
		} else {
			all = append(all, name)
		}
	}
	return all
}

// known says what is wrong with a name that no setting has, or with a link none that can run.
func known(name string, link bool) error {
	base, rail, _ := strings.Cut(name, "/")
	var rails []string // of the settings called base
	linked := name == Mono
	for _, s := range Settings {
		if s.Name == base {
			rails = append(rails, fmt.Sprintf("%q", s.Rail))
		}
		linked = linked || s.is(name) && s.linked()
	}
	switch {
	case rails == nil:
		return fmt.Errorf("%q: there is no such setting: use %s, with a rail behind it or without, as kvferry-pull/cma", name, strings.Join(Names(), ", "))
	case !slices.ContainsFunc(Settings, func(s Setting) bool { return s.is(name) }):
		return fmt.Errorf("%q: %s is not there with the rail %q: use %s, or leave the rail out for all", name, base, rail, strings.Join(rails, " or "))
	case link && !linked:
		return fmt.Errorf("%q: it does not go over a link, only settings over tcp do: leave it out, or leave --link out", name)
	}
	return nil
}

// linked says that it can go over a link between P and D.
func (s *Setting) linked() bool { return s.Rail == tcp || s.Rail == twoTCP }

// is says that the setting has that name.
func (s *Setting) is(name string) bool { return name == s.Name || name == s.Name+"/"+s.Rail }

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
