package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/engine"
	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/kvcache"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy"
	"kvferry/proxy/openai"
	"kvferry/sim"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// Roles of programs that take knobs.
const (
	Proxy  knob.Roles = 1 << iota // kvferry proxy
	Node                          // kvferry node
	Serve                         // kvferry serve: a cluster of processes
	Bench                         // kvferry bench, which measures one
	Sim                           // the model of a cluster, in kvferry sim and kvferry bench
	own    = Serve | Bench
	every  = own | Sim
	onNode = Node | every
)

// Groups of knobs, as help lists them.
const (
	nodesGroup   = "Cluster"
	requestGroup = "Requests"
	gpuGroup     = "Modelled GPU"
	kvGroup      = "KV cache"
	networkGroup = "Network"
	loraGroup    = "LoRA adapters"
	apiGroup     = "API"
	engineGroup  = "Real engines in place of nodes"
	limitGroup   = "Limits"
	logGroup     = "Logs"
)

// handsOff returns why a setting of hand-offs has no effect in s.
func handsOff(s *Spec) string {
	if s.Nondisagg > 0 {
		return "non-disaggregated nodes hand off no KV: leave it out"
	}
	return ""
}

// movesKV returns why a setting of transfers has no effect in s.
func movesKV(s *Spec) string {
	if !s.MovesKV() {
		return "non-disaggregated nodes move no KV but with --migration: leave it out"
	}
	return ""
}

// chunks returns why chunked prefill has no effect in s.
func chunks(s *Spec) string {
	if s.Nondisagg == 0 && s.Prefill > 0 {
		return "it is for --both nodes: prefill nodes compute whole prompts"
	}
	return ""
}

func durationText(d time.Duration) string { return d.String() }

// Knobs lists the settings of a [Spec]. A new one is a row here, a field of what it configures,
// and its behaviour there.
var Knobs = knob.Table[Spec]{
	{Name: "id", Group: nodesGroup, Roles: Node, Fields: []string{"ID"}, Value: knob.Text(func(s *Spec) *string { return &s.Node.ID }), Help: "name of this node, unique in the cluster (required), like decode-1"},
	{Name: "role", Group: nodesGroup, Roles: Node, First: Node, Fields: []string{"Role"}, Value: func(s *Spec) pflag.Value { return (*roleValue)(&s.Node.Role) }, Values: roleNames, Help: "what the node does: prefill, decode or both"},
	{Name: "prefill", Group: nodesGroup, Roles: every, First: every, Fields: []string{"Prefill"}, Value: knob.Int(func(s *Spec) *int { return &s.Prefill }), Help: "number of prefill nodes"},
	{Name: "decode", Group: nodesGroup, Roles: every, First: every, Fields: []string{"Decode"}, Value: knob.Int(func(s *Spec) *int { return &s.Decode }), Help: "number of decode nodes"},
	{Name: "both", Group: nodesGroup, Roles: every, First: every, Fields: []string{"Nondisagg"}, Value: knob.Int(func(s *Spec) *int { return &s.Nondisagg }), Help: "number of nodes that compute prompts and generate, instead of prefill and decode nodes"},
	{Name: "mode", Group: nodesGroup, Roles: Proxy, Fields: []string{"Mode"}, Default: proxy.ModeAuto, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Mode }), Values: words(proxy.ModeAuto, proxy.ModeDisagg, proxy.ModeNondisagg), Help: "auto (a prefill and a decode node if both are there, else one that does both), disagg or nondisagg"},
	{Name: "handoff", Group: nodesGroup, Roles: Proxy | every, First: every, Fields: []string{"Handoff"}, Default: handoff.Layerwise.Name, Unused: handsOff, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Handoff }), Values: handoff.Names, Help: "how KV moves from prefill to decode nodes: " + handoff.List() + "; v0 is the published system"},
	{Name: "placement", Group: nodesGroup, Roles: Proxy | every, First: every, Fields: []string{"Placement"}, Default: placement.LeastLoaded, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Placement }), Values: placement.Names, Help: "which node takes a request: " + placement.Help()},
	{Name: "conditional-disaggregation", Aliases: []string{"conditional"}, Group: nodesGroup, Roles: Proxy | every, Fields: []string{"ConditionalDisaggregation"}, Unused: handsOff, Value: knob.Int(func(s *Spec) *int { return &s.Proxy.ConditionalDisaggregation }), Help: placement.ConditionalHelp},
	{Name: "migration", Group: nodesGroup, Roles: Proxy | every, Fields: []string{"Migration", "Migration.Policy"}, Default: placement.NoMigration, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Migration.Policy }), Values: placement.Migrations, Help: "which running requests move to other nodes, with their KV: " + placement.MigrationHelp()},
	{Name: "migration-interval", Group: nodesGroup, Roles: Proxy | every, Fields: []string{"Migration.Interval"}, Default: durationText(placement.MigrationConfig{}.WithDefaults().Interval), Positive: true, Needs: "migration", Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Proxy.Migration.Interval }), Help: "time between two decisions about migration"},
	{Name: "migration-threshold", Group: nodesGroup, Roles: Proxy | every, Fields: []string{"Migration.Threshold"}, Default: strconv.Itoa(placement.MigrationConfig{}.WithDefaults().Threshold), Positive: true, Needs: "migration", Value: knob.Int(func(s *Spec) *int { return &s.Proxy.Migration.Threshold }), Help: "number of requests by which two nodes must differ for one to move"},
	{Name: "proxy", Group: nodesGroup, Roles: Node, Fields: []string{"Proxy"}, Value: knob.Text(func(s *Spec) *string { return &s.Node.Proxy }), Default: "127.0.0.1:9000", Help: "host:port where the proxy takes registrations"},
	{Name: "http", Group: nodesGroup, Roles: Proxy | Serve, First: Serve, Fields: []string{"HTTPAddr"}, Default: proxyDefaults.HTTPAddr, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.HTTPAddr }), Help: "host:port for clients; port 0 picks a free one"},
	{Name: "grpc", Group: nodesGroup, Roles: Proxy, Fields: []string{"GRPCAddr"}, Default: proxyDefaults.GRPCAddr, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.GRPCAddr }), Help: "host:port for nodes to register at"},
	{Name: "grpc", Group: nodesGroup, Roles: Node, Fields: []string{"GRPCAddr"}, Default: "127.0.0.1:0", Value: knob.Text(func(s *Spec) *string { return &s.Node.GRPCAddr }), Help: "host:port where the proxy and other nodes reach this one; port 0 picks a free one"},
	{Name: "allow-mixed-profiles", Group: nodesGroup, Roles: Proxy, Fields: []string{"AllowMixedProfiles"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Proxy.AllowMixedProfiles }), Help: "accept nodes whose profiles differ, of the same model and KV layout"},

	{Name: "profile", Group: gpuGroup, Roles: onNode, First: every, Fields: []string{"Profile"}, Default: engine.DefaultProfile, Value: knob.Text(func(s *Spec) *string { return &s.Profile }), Values: words(engine.DefaultProfile, "zero"), Help: "costs of the modelled GPU: a shipped profile (" + engine.DefaultProfile + ", zero) or a JSON file"},
	{Name: "scheduler", Group: gpuGroup, Roles: onNode, Fields: []string{"Scheduler", "Profile.engine.scheduler"}, Value: knob.Text(func(s *Spec) *string { return &s.Scheduler }), Values: engine.Schedulers, Help: "scheduler that forms the steps: " + strings.Join(engine.Schedulers(), ", ") + " (default the profile's, which has its options)"},
	{Name: "enable-chunked-prefill", Aliases: []string{"chunked"}, Group: gpuGroup, Roles: onNode, Fields: []string{"Chunked"}, Unused: chunks, Value: knob.Bool(func(s *Spec) *bool { return &s.Node.Chunked }), Help: "compute prompts in chunks beside decodes instead of prompts first, on nodes that do both, with scheduler vllm-v0"},
	{Name: "max-model-len", Group: gpuGroup, Roles: onNode, Fields: []string{"MaxModelLen"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.MaxModelLen }), Help: "longest prompt and output together, in tokens (default the profile's; for a load from a file, what its longest request needs and the pool holds)"},
	{Name: "max-num-seqs", Group: gpuGroup, Roles: onNode, Fields: []string{"MaxNumSeqs", "Profile.max_num_seqs"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.MaxNumSeqs }), Help: "maximum number of sequences in a batch (default the profile's)"},
	{Name: "max-num-batched-tokens", Group: gpuGroup, Roles: onNode, Fields: []string{"MaxBatchedTokens", "Profile.max_num_batched_tokens", "Profile.engine.max_num_batched_tokens"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.MaxBatchedTokens }), Help: "maximum number of prompt tokens in a step, with vllm-v1 of decodes too (default the profile's)"},
	{Name: "tokens-from-kv", Group: gpuGroup, Roles: Node | own, Fields: []string{"TokensFromKV"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Node.TokensFromKV }), Help: "draw each token from all KV bytes of its sequence, so that a wrong byte gives wrong tokens; every step reads all of them; for all nodes of a cluster or none"},

	{Name: "enable-prefix-caching", Group: kvGroup, Roles: onNode, First: every, Fields: []string{"PrefixCaching"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Node.PrefixCaching }), Help: "reuse the KV blocks of equal prompt prefixes"},
	{Name: "kv-blocks", Aliases: []string{"num-gpu-blocks-override"}, Group: kvGroup, Roles: onNode, Fields: []string{"KVBlocks"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.Node.KVBlocks }), Help: "number of KV blocks of a node (default what the profile's GPU memory holds)"},
	{Name: "kv-offloading-size", Group: kvGroup, Roles: onNode, Fields: []string{"Tiers.HostGiB"}, Value: knob.Float(func(s *Spec) *float64 { return &s.Node.Tiers.HostGiB }), Help: "modelled host memory of a node for KV that the GPU evicts, in GiB; with --enable-prefix-caching; 0: none"},
	{Name: "max-local-disk-size", Group: kvGroup, Roles: onNode, Fields: []string{"Tiers.DiskGiB"}, Value: knob.Float(func(s *Spec) *float64 { return &s.Node.Tiers.DiskGiB }), Help: "modelled disk of a node below its host memory, in GiB; 0: none"},
	{Name: "pcie-gb-s", Group: kvGroup, Roles: onNode, Fields: []string{"Tiers.PCIe"}, Default: number(kvcache.DefaultPCIe), Needs: "kv-offloading-size", Value: knob.Float(func(s *Spec) *float64 { return &s.Node.Tiers.PCIe }), Help: "bandwidth each way between GPU and host memory, in GB/s, which modelled NICs share; 25 is PCIe 4.0 x16"},
	{Name: "disk-gb-s", Group: kvGroup, Roles: onNode, Fields: []string{"Tiers.Disk"}, Default: number(kvcache.DefaultDisk), Needs: "max-local-disk-size", Value: knob.Float(func(s *Spec) *float64 { return &s.Node.Tiers.Disk }), Help: "bandwidth of the disk, reads and writes together, in GB/s"},
	{Name: "kv-checks", Group: kvGroup, Roles: Node | own, Fields: []string{"KVChecks"}, Default: node.DefaultKVChecks, Value: knob.Text(func(s *Spec) *string { return &s.Node.KVChecks }), Help: "when KV blocks are compared with their digests: landing (from another node) and, separated by commas, hit (found in the prefix cache), first (before a decode node's first token), last (before its last token), every=N (every N tokens); or none, on all nodes or on none of them"},
	{Name: "kv-warm-mib", Group: kvGroup, Roles: Node | own, Fields: []string{"WarmBytes"}, Value: func(s *Spec) pflag.Value { return (*mebibytes)(&s.Node.WarmBytes) }, Default: strconv.Itoa(node.DefaultWarmBytes >> 20), Help: "part of the KV pool to back with memory before serving, in MiB, so that a burst does not wait for it; 0: none"},

	{Name: "link", Group: networkGroup, Roles: onNode, First: every, Fields: []string{"Link", "NIC"}, Unused: movesKV, Default: "native", Value: knob.Text(func(s *Spec) *string { return &s.Link }), Values: linkNames, Help: "native for this machine's network as it is (not in virtual time), or the model of one NIC, which transfers are paced to: a link of the profile (tcp, rdma, rdma2), a rate such as 100gbit, or rate=1.29GB/s,latency=10us"},
	{Name: "decode-links", Group: networkGroup, Roles: every, Fields: []string{"DecodeLinks", "DecodeNICs"}, Unused: handsOff, Value: knob.List(func(s *Spec) *[]string { return &s.DecodeLinks }), Help: "links of the decode nodes where they differ from --link: of the first node, the second, and so on, then from the first again"},
	{Name: "nics", Group: networkGroup, Roles: Sim, Fields: []string{"NICs"}, Default: "1", Positive: true, Unused: movesKV, Value: knob.Int(func(s *Spec) *int { return &s.NICs }), Help: "number of NICs of a node that moves KV; a transfer is spread over all of them"},
	{Name: "rpc", Group: networkGroup, Roles: Sim, Fields: []string{"RPC"}, Default: durationText(sim.DefaultRPC), Value: knob.DurationOrNone(func(s *Spec) *time.Duration { return &s.RPC }), Help: "latency of a control message between the proxy and a node, or two nodes; 0: none"},
	{Name: "oversubscription", Group: networkGroup, Roles: Sim, Fields: []string{"Oversubscription"}, Default: "1", Unused: handsOff, Value: knob.Float(func(s *Spec) *float64 { return &s.Oversubscription }), Help: "oversubscription of the leaf switches, one above the prefill nodes and one above the decode nodes: 4 is uplinks that carry a quarter of what the NICs below do"},
	{Name: "rail", Group: networkGroup, Roles: Node | own, First: Serve, Fields: []string{"Rails"}, Default: node.DefaultRail, Unused: movesKV, Value: func(s *Spec) pflag.Value { return (*rails.Specs)(&s.Node.Rails) }, Values: words(rails.TCP+"/", rails.RDMA+"/", rails.CMA, rails.SHM), Help: "what KV moves over, one for each NIC, separated by commas or with the flag again: " + rails.Flag()},
	{Name: "select", Group: networkGroup, Roles: Node | Serve, Fields: []string{"Select"}, Default: string(transport.Affinity), Value: knob.Text(func(s *Spec) *transport.Selection { return &s.Node.Select }), Values: selections, Help: "how KV is spread over several rails: affinity (the one that finishes first, near the memory), static, round-robin, single"},
	{Name: "kv-location", Group: networkGroup, Roles: Node | Serve, Fields: []string{"KVLocation"}, Default: topology.Any, Value: knob.Text(func(s *Spec) *string { return &s.Node.KVLocation }), Help: "NUMA node of the KV pool's memory, such as cpu:1; its transfers prefer the NICs near it (kvferry rail topo lists them)"},
	{Name: "matrix", Group: networkGroup, Roles: Node | Serve, Fields: []string{"Matrix"}, Value: knob.Text(func(s *Spec) *string { return &s.Node.Matrix }), Help: "JSON file with rows that replace those of kvferry rail topo, in Mooncake's format"},
	{Name: "link-ledger", Group: networkGroup, Roles: Node, Fields: []string{"Ledger"}, Value: knob.Text(func(s *Spec) *string { return &s.Node.Ledger }), Help: "file that makes modelled NICs contend across the nodes of this machine: give every node the same path; it is made if it is not there (default none: only a node's own transfers contend)"},

	{Name: "max-loras", Group: loraGroup, Roles: onNode, Fields: []string{"MaxLoRAs", "Profile.lora.max_loras"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.MaxLoRAs }), Help: "maximum number of LoRA adapters on a node's GPU, and in a batch (default the profile's, or any number)"},
	{Name: "max-cpu-loras", Group: loraGroup, Roles: onNode, Fields: []string{"MaxCPULoRAs", "Profile.lora.max_cpu_loras"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.MaxCPULoRAs }), Help: "maximum number of LoRA adapters in a node's host memory; others are loaded from disk (default the profile's, or any number)"},
	{Name: "merge-loras", Group: loraGroup, Roles: onNode, Fields: []string{"MergeLoRAs", "Profile.lora.merged"}, Value: knob.Text(func(s *Spec) *engine.Merging { return &s.MergeLoRAs }), Values: engine.Mergings, Help: "when a LoRA adapter is merged into the model's weights: " + strings.Join(engine.Mergings(), ", ") + " (default the profile's, or never)"},
	{Name: "lora-modules", Group: loraGroup, Roles: Proxy | Serve, Fields: []string{"LoRAs", "Ranks"}, Value: func(s *Spec) pflag.Value { return (*loras)(&s.Proxy.LoRAs) }, Help: "LoRA adapters that clients may ask for, as name=path, separated by blanks or commas, with KV and prefixes of their own; the adapter's rank may stand in place of a path, of which nothing is read (default 16); POST /v1/load_lora_adapter adds more"},

	{Name: "served-model-name", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"ServedNames"}, Value: knob.List(func(s *Spec) *[]string { return &s.Proxy.ServedNames }), Help: "names that clients ask for, separated by blanks or commas: the first is the one in answers and metrics, /v1/models lists all (default what the nodes call the model)"},
	{Name: "served-model-name", Group: apiGroup, Roles: Node, Fields: []string{"Model"}, Value: knob.Text(func(s *Spec) *string { return &s.Node.Model }), Help: "model name that clients ask for (default the profile's)"},
	{Name: "tokenizer", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"Tokenizer"}, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Tokenizer }), Help: "a model's tokenizer.json, its folder, or a model in the Hugging Face cache, such as Qwen/Qwen3-8B, by which texts are counted and generated (default kvferry's own, which is served at /tokenizer/tokenizer.json)"},
	{Name: "eos", Group: apiGroup, Roles: Proxy | own | Sim, First: Serve, Fields: []string{"EOS"}, Value: func(s *Spec) pflag.Value { return (*lengths)(&s.Proxy.EOS) }, Default: eos.Default.String(), Help: "lengths after which answers end by themselves unless a request has ignore_eos: log-normal, drawn from the prompt and a seed; none: they go on to max_tokens"},
	{Name: "allowed-origins", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"CORS"}, Value: func(s *Spec) pflag.Value { return &origins{to: &s.Proxy.CORS.Origins} }, Help: "origins of web pages that may use the API from a browser, such as https://chat.example, separated by commas or as a JSON list; * for all, empty for none; only those named may flush caches, profile and load adapters"},
	{Name: "allowed-methods", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"CORS.Methods"}, Value: func(s *Spec) pflag.Value { return &origins{to: &s.Proxy.CORS.Methods} }, Help: "HTTP methods that such pages may use"},
	{Name: "allowed-headers", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"CORS.Headers"}, Value: func(s *Spec) pflag.Value { return &origins{to: &s.Proxy.CORS.Headers} }, Help: "headers that such pages may send"},
	{Name: "allow-credentials", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"CORS.Credentials"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Proxy.CORS.Credentials }), Help: "let browsers send cookies along"},
	{Name: "otlp-traces-endpoint", Group: apiGroup, Roles: Proxy | Serve, Fields: []string{"OTLPTracesEndpoint"}, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.OTLPTracesEndpoint }), Help: "URL at which an OpenTelemetry collector takes requests' spans, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces (default none: nothing is traced)"},

	{Name: "upstream-prefill", Group: engineGroup, Roles: Proxy, Fields: []string{"Upstreams.Prefill"}, Value: knob.List(func(s *Spec) *[]string { return &s.Proxy.Upstreams.Prefill }), Help: "URLs of engines that compute prompts, such as http://10.0.0.2:8000 of vllm serve with a KV connector: they and --upstream-decode answer in place of nodes, which cannot register then"},
	{Name: "upstream-decode", Group: engineGroup, Roles: Proxy, Fields: []string{"Upstreams.Decode"}, Value: knob.List(func(s *Spec) *[]string { return &s.Proxy.Upstreams.Decode }), Help: "URLs of engines that take a prompt's KV from one of --upstream-prefill, by their own connector, and answer"},
	{Name: "upstream", Group: engineGroup, Roles: Proxy, Fields: []string{"Upstreams", "Upstreams.Both"}, Value: knob.List(func(s *Spec) *[]string { return &s.Proxy.Upstreams.Both }), Help: "URLs of engines that serve by themselves; beside a pair they serve while that is not up (--mode auto)"},
	{Name: "upstream-bootstrap", Group: engineGroup, Roles: Proxy, Fields: []string{"Upstreams.Bootstrap"}, Value: knob.List(func(s *Spec) *[]string { return &s.Proxy.Upstreams.Bootstrap }), Help: "URLs of the prefill engines' connectors, one for each of --upstream-prefill in that order: the decode engine is asked at the same time, and KV is written while it is computed (kvferry's connector with handoff layerwise, vLLM's MooncakeConnector)"},
	{Name: "upstream-report", Group: engineGroup, Roles: Proxy, Fields: []string{"Upstreams.Report"}, Value: knob.Text(func(s *Spec) *string { return &s.Proxy.Upstreams.Report }), Help: "URL of this proxy as the engines reach it, where kvferry's connector reports how KV was transferred (default --http, or if that is every address, the one that an engine sees)"},

	{Name: "request-timeout", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"RequestTimeout"}, Default: durationText(proxyDefaults.RequestTimeout), Positive: true, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Proxy.RequestTimeout }), Help: "deadline of a request that does not ask for less"},
	{Name: "drain-timeout", Group: limitGroup, Roles: Proxy | Node | Serve, Fields: []string{"DrainTimeout"}, Default: durationText(proxyDefaults.DrainTimeout), Value: func(s *Spec) pflag.Value { return drain{s} }, Help: "time that running requests have to end on SIGTERM; 0: they are ended at once"},
	{Name: "node-wait", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"NodeWait"}, Default: durationText(proxyDefaults.NodeWait), Value: knob.DurationOrNone(func(s *Spec) *time.Duration { return &s.Proxy.NodeWait }), Help: "time that a request waits for its first nodes; one whose node was lost waits --lease-ttl for another; 0: not at all"},
	{Name: "lease-ttl", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"LeaseTTL"}, Default: durationText(proxyDefaults.LeaseTTL), Positive: true, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Proxy.LeaseTTL }), Help: "time that a node may be silent before it is lost"},
	{Name: "max-queue", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"MaxQueue"}, Default: strconv.Itoa(proxyDefaults.MaxQueue), Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.Proxy.MaxQueue }), Help: "maximum number of requests that wait; beyond it clients get 429 with a Retry-After; running streams do not count"},
	{Name: "max-queue-time", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"MaxQueueTime"}, Positive: true, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Proxy.MaxQueueTime }), Help: "reject a request with 429 if its estimated queue time exceeds this (default no limit)"},
	{Name: "max-connections", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"MaxConnections"}, Default: strconv.Itoa(proxyDefaults.MaxConnections), Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.Proxy.MaxConnections }), Help: "maximum number of clients' connections, and with them requests; one address gets three quarters of them at most"},
	{Name: "max-body", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"MaxBodyBytes"}, Default: strconv.FormatInt(proxyDefaults.MaxBodyBytes, 10), Positive: true, Value: knob.Int64(func(s *Spec) *int64 { return &s.Proxy.MaxBodyBytes }), Help: "longest request body, in bytes"},
	{Name: "max-retries", Group: limitGroup, Roles: Proxy | Serve, Fields: []string{"MaxRetries"}, Default: strconv.Itoa(proxyDefaults.MaxRetries), Value: knob.IntOrNone(func(s *Spec) *int { return &s.Proxy.MaxRetries }), Help: "number of times that a request is placed again after a node failed it; 0: never"},
	{Name: "transfer-timeout", Group: limitGroup, Roles: Node | own, Fields: []string{"TransferTimeout"}, Default: "10s", Positive: true, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Node.TransferTimeout }), Help: "deadline of one KV transfer"},
	{Name: "hold-timeout", Group: limitGroup, Roles: Node | Serve, Fields: []string{"HoldTimeout"}, Default: "1m0s", Positive: true, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Node.HoldTimeout }), Help: "time that computed blocks wait for the node that decodes them"},

	{Name: "log-level", Group: logGroup, Roles: Proxy | Node | Serve, First: Serve, Fields: []string{"LogLevel"}, Default: "info", Value: knob.Text(func(s *Spec) *string { return &s.LogLevel }), Values: words("debug", "info", "warn", "error"), Help: "least level to log: debug (a line for every request), info, warn, error"},
	{Name: "log-format", Group: logGroup, Roles: Proxy | Node | Serve, Fields: []string{"LogFormat"}, Default: "text", Value: knob.Text(func(s *Spec) *string { return &s.LogFormat }), Values: words("text", "json"), Help: "format of the log on standard error: text or json"},
}

var proxyDefaults = proxy.Config{}.WithDefaults()

// Names are the flags of all fields, for [config.Named].
var Names = Knobs.Names()

func words(all ...string) func() []string { return func() []string { return all } }

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func selections() (names []string) {
	for _, s := range transport.Selections {
		names = append(names, string(s))
	}
	return names
}

func linkNames() []string {
	links := []string{"native", "rate="}
	if p, err := engine.LoadProfile(engine.DefaultProfile); err == nil {
		links = append(links, slices.Sorted(maps.Keys(p.Links))...)
	}
	return links
}

// roles are the names of what a node does.
var roles = []struct {
	name string
	role proto.Role
}{{"prefill", proto.Role_ROLE_PREFILL}, {"decode", proto.Role_ROLE_DECODE}, {"both", proto.Role_ROLE_NONDISAGG}}

func roleNames() (names []string) {
	for _, r := range roles {
		names = append(names, r.name)
	}
	return names
}

type roleValue proto.Role

func (v *roleValue) Set(text string) error {
	for _, r := range roles {
		if r.name == text {
			*v = roleValue(r.role)
			return nil
		}
	}
	return fmt.Errorf("use %s", config.Or(roleNames()))
}

func (v *roleValue) String() string {
	for _, r := range roles {
		if r.role == proto.Role(*v) {
			return r.name
		}
	}
	return ""
}

func (v *roleValue) Type() string { return "role" }

// mebibytes is a number of bytes that is given in MiB, of which 0 is none as in [config.OrNone].
type mebibytes int

func (v *mebibytes) Set(text string) error {
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n > math.MaxInt>>20:
		err = strconv.ErrRange
	case err == nil && n < 0:
		err = knob.ErrNegative
	}
	if err == nil {
		*v = mebibytes(config.OrNone(n << 20))
	}
	return err
}

func (v *mebibytes) String() string {
	switch {
	case *v == 0:
		return ""
	case *v < 0:
		return "0"
	}
	return strconv.Itoa(int(*v) >> 20)
}

func (v *mebibytes) Type() string { return "int" }

// drain is the time to drain of a Spec's proxy and its nodes.
type drain struct{ s *Spec }

func (v drain) value() pflag.Value {
	return knob.DurationOrNone(func(s *Spec) *time.Duration { return &s.Proxy.DrainTimeout })(v.s)
}

func (v drain) Set(text string) error {
	err := v.value().Set(text)
	v.s.Node.DrainTimeout = v.s.Proxy.DrainTimeout
	return err
}

func (v drain) String() string { return v.value().String() }
func (v drain) Type() string   { return "duration" }

// lengths is eos.Lengths without a text for the default.
type lengths eos.Lengths

func (v *lengths) Set(text string) error { return (*eos.Lengths)(v).Set(text) }
func (v *lengths) Type() string          { return (*eos.Lengths)(v).Type() }
func (v *lengths) String() string {
	if *v == (lengths{}) {
		return ""
	}
	return eos.Lengths(*v).String()
}

// origins is a list of texts: with commas, as a JSON list as in vLLM, or the flag again. Empty is
// none, and nil all.
type origins struct {
	to    *[]string
	given bool // and so no more the default
}

func (l *origins) Set(text string) error {
	more := []string{}
	switch {
	case strings.HasPrefix(text, "["):
		if err := json.Unmarshal([]byte(text), &more); err != nil {
			return fmt.Errorf("it is no JSON list of texts: %w", err)
		}
	case text != "":
		more = strings.Split(text, ",")
	}
	if l.given {
		more = append(*l.to, more...)
	}
	*l.to, l.given = more, true
	return nil
}

func (l *origins) String() string {
	if *l.to == nil {
		return "*"
	}
	return strings.Join(*l.to, ",")
}

func (l *origins) Type() string { return "strings" }

// loras is a list of adapters that grows each time it is given.
type loras []proxy.LoRA

func (l *loras) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		lora, err := openai.ParseLoRA(one)
		if err != nil {
			return err
		}
		*l = append(*l, lora)
	}
	return nil
}

func (l *loras) String() string {
	var all []string
	for _, one := range *l {
		all = append(all, one.String())
	}
	return strings.Join(all, ",")
}

func (l *loras) Type() string { return "name=path" }
