package proxy

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"kvferry/handoff"
	"kvferry/proto"
)

func TestMetrics(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	p, _ := c.addPair()
	if status, body, _ := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"stream":true}`); status != 200 {
		t.Fatal(body)
	}
	if _, err := c.reg.KeepAlive(context.Background(), &proto.KeepAliveRequest{
		Lease: p.lease, Load: &proto.Load{
			Running: 2, Waiting: 3, KvBlocksUsed: 250, KvBlocksTotal: 1000, PrefixHits: 5, KvTransfersFailed: 6, KvBytes: 7, HostHits: 8, DiskHits: 9, KvBytesLoaded: 10, KvBytesStored: 11, DiskBytesRead: 12, DiskBytesWritten: 13,
			Adapters: []string{"a", "b", "c"}, AdapterSlots: 4, AdapterLoads: 5, AdapterLoadUs: 6_500_000, RunningAdapters: []string{"a", "c"}, WaitingAdapters: []string{"c", "d"},
		},
		Rails: []*proto.RailLoad{{Rail: "tcp/eth0", BytesWritten: 7, BytesRead: 8, BytesResent: 9, Errors: 10, Downs: 11, Paths: 3, PathsUp: 2, BytesInFlight: 12, Rate: 13, Strikes: 14, Rests: 15, PathsResting: 16, Congestion: map[string]uint32{"cubic": 17}, CongestionChanges: 18}},
	}); err != nil {
		t.Fatal(err)
	}
	c.waitRails()
	c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"timeout":-1}`)
	_, body := c.get("/metrics")
	for _, line := range []string{
		`vllm:prompt_tokens_total{engine="0",model_name="test-model"} 2`,
		`vllm:generation_tokens_total{engine="0",model_name="test-model"} 3`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="test-model"} 1`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="test-model"} 1`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="test-model"} 2`,
		`vllm:e2e_request_latency_seconds_count{engine="0",model_name="test-model"} 1`,
		`vllm:nixl_bytes_transferred_sum{engine="0",model_name="test-model"} 1.048576e+06`,
		`vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="test-model"} 4e-05`,
		`kvferry:request_stage_seconds_sum{model_name="test-model",stage="prefill"} 0.0002`,
		`vllm:num_requests_running{engine="prefill-1",model_name="test-model"} 2`,
		`vllm:num_requests_waiting{engine="prefill-1",model_name="test-model"} 3`,
		`vllm:kv_cache_usage_perc{engine="prefill-1",model_name="test-model"} 0.25`,
		`vllm:prefix_cache_hits_total{engine="prefill-1",model_name="test-model"} 5`,
		`vllm:prompt_tokens_cached_by_source_total{engine="prefill-1",model_name="test-model",source="device"} 5`,
		`vllm:prompt_tokens_cached_by_source_total{engine="prefill-1",model_name="test-model",source="host"} 8`,
		`vllm:prompt_tokens_cached_by_source_total{engine="prefill-1",model_name="test-model",source="disk"} 9`,
		`vllm:kv_offload_load_bytes_total{engine="prefill-1",model_name="test-model"} 10`,
		`vllm:kv_offload_store_bytes_total{engine="prefill-1",model_name="test-model"} 11`,
		`vllm:kv_offload_tiering_read_bytes_total{engine="prefill-1",model_name="test-model",tier="1:fs"} 12`,
		`vllm:kv_offload_tiering_write_bytes_total{engine="prefill-1",model_name="test-model",tier="1:fs"} 13`,
		`vllm:cache_config_info{block_size="16",engine="decode-1",model_name="test-model",num_gpu_blocks="1000"} 1`,
		`vllm:request_success_total{engine="0",finished_reason="error",model_name="test-model"} 0`,
		`vllm:request_max_num_generation_tokens_sum{engine="0",model_name="test-model"} 3`,
		`vllm:request_params_n_count{engine="0",model_name="test-model"} 1`,
		`vllm:prompt_tokens_cached_total{engine="0",model_name="test-model"} 1`,
		`vllm:nixl_num_failed_transfers_total{engine="prefill-1",model_name="test-model"} 6`,
		`vllm:iteration_tokens_total_count{engine="decode-1",model_name="test-model"} 1`,
		`vllm:engine_sleep_state{engine="decode-1",model_name="test-model",sleep_state="awake"} 1`,
		`kvferry:request_failures_total{code="invalid_request_error",model_name="test-model"} 1`,
		`kvferry:kv_bytes_total{engine="prefill-1",model_name="test-model"} 7`,
		`kvferry:kv_bad_blocks_total{model_name="test-model",owner="wire"} 0`,
		`kvferry:lora_loads_total{engine="prefill-1",model_name="test-model"} 5`,
		`kvferry:lora_load_seconds_total{engine="prefill-1",model_name="test-model"} 6.5`,
		`kvferry:rail_bytes_total{engine="prefill-1",op="write",rail="tcp/eth0"} 7`,
		`kvferry:rail_bytes_total{engine="prefill-1",op="read",rail="tcp/eth0"} 8`,
		`kvferry:rail_resent_bytes_total{engine="prefill-1",rail="tcp/eth0"} 9`,
		`kvferry:rail_slice_errors_total{engine="prefill-1",rail="tcp/eth0"} 10`,
		`kvferry:rail_downs_total{engine="prefill-1",rail="tcp/eth0"} 11`,
		`kvferry:rail_strikes_total{engine="prefill-1",rail="tcp/eth0"} 14`,
		`kvferry:rail_rests_total{engine="prefill-1",rail="tcp/eth0"} 15`,
		`kvferry:rail_paths_resting{engine="prefill-1",rail="tcp/eth0"} 16`,
		`kvferry:rail_paths{engine="prefill-1",rail="tcp/eth0",state="up"} 2`,
		`kvferry:rail_paths{engine="prefill-1",rail="tcp/eth0",state="down"} 1`,
		`kvferry:rail_in_flight_bytes{engine="prefill-1",rail="tcp/eth0"} 12`,
		`kvferry:rail_rate_bytes_per_second{engine="prefill-1",rail="tcp/eth0"} 13`,
		`kvferry:rail_connections{congestion="cubic",engine="prefill-1",rail="tcp/eth0"} 17`,
		`kvferry:rail_congestion_changes_total{engine="prefill-1",rail="tcp/eth0"} 18`,
		`kvferry:nodes{role="decode"} 1`,
		`kvferry:nodes{role="nondisagg"} 0`,
		`kvferry:request_retries_total{model_name="test-model"} 0`,
		`kvferry:prompts_ahead_total{engine="0",model_name="test-model"} 0`,
		`kvferry:prompts_undirected_total{engine="0",model_name="test-model"} 0`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	// Its value is the time: of series that vLLM leaves there, the latest counts.
	if _, rest, ok := strings.Cut(body, `vllm:lora_requests_info{engine="prefill-1",max_lora="4",model_name="test-model",running_lora_adapters="a,c",waiting_lora_adapters="c,d"} `); !ok {
		t.Error("no vllm:lora_requests_info")
	} else if at, err := strconv.ParseFloat(rest[:strings.IndexByte(rest, '\n')], 64); err != nil || math.Abs(at-float64(time.Now().Unix())) > 600 {
		t.Errorf("vllm:lora_requests_info is %v: %v", at, err)
	}
	if strings.Contains(body, `vllm:lora_requests_info{engine="decode-1"`) {
		t.Error("a node without adapters tells of them")
	}
	if t.Failed() {
		t.Log(body)
	}
}

// waitRails waits for the first heartbeat that tells of a rail.
func (c *testCluster) waitRails() {
	c.t.Helper()
	c.poll("a heartbeat", func() bool {
		return slices.ContainsFunc(c.proxy.Nodes(), func(n NodeState) bool { return len(n.Rails) > 0 })
	})
}

// TestMetricsLint holds a scrape to what promtool check metrics says. Only vLLM's own
// spelling may be minded: a colon in every name, a histogram whose name ends as a
// counter's.
func TestMetricsLint(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	p, _ := c.addPair()
	if status, body, _ := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"stream":true}`); status != 200 {
		t.Fatal(body)
	}
	c.post("/v1/completions", `{"prompt":"hi there","timeout":-1}`)
	if _, err := c.reg.KeepAlive(context.Background(), &proto.KeepAliveRequest{Lease: p.lease, Rails: []*proto.RailLoad{{Rail: "tcp/eth0", Paths: 1}}}); err != nil {
		t.Fatal(err)
	}
	c.waitRails()
	_, body := c.get("/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	linted := 0
	for _, p := range problems {
		switch {
		case p.Text == "metric names should not contain ':'":
			linted++
		case p.Metric == "vllm:iteration_tokens_total" && p.Text == `non-counter metrics should not have "_total" suffix`:
		default:
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if families := strings.Count(body, "# TYPE vllm:") + strings.Count(body, "# TYPE kvferry:"); linted != families || families < 40 {
		t.Errorf("%d of %d families were linted", linted, families)
	}
}

// TestMetricsOfVLLM: names and labels that vLLM's dashboards and clients ask for.
// Each is as in a scrape of vLLM: a counter with its suffix, a histogram without.
func TestMetricsOfVLLM(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	if status, body, _ := c.post("/v1/completions", `{"prompt":"hi there"}`); status != 200 {
		t.Fatal(body)
	}
	_, body := c.get("/metrics")
	for _, name := range []string{
		"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state", "cache_config_info",
		"prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total", "num_preemptions_total",
		"prefix_cache_queries_total", "prefix_cache_hits_total", "external_prefix_cache_queries_total", "external_prefix_cache_hits_total",
		"time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
		"request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
		"request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n",
		"iteration_tokens_total", "nixl_xfer_time_seconds", "nixl_post_time_seconds", "nixl_bytes_transferred", "nixl_num_descriptors",
		"nixl_num_failed_transfers_total",
	} {
		if !strings.Contains(body, "\n# TYPE vllm:"+name+" ") {
			t.Errorf("no vllm:%s", name)
		}
	}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "vllm:") && (!strings.Contains(line, `engine="`) || !strings.Contains(line, `model_name="test-model"`)) {
			t.Errorf("labels: %s", line)
		}
	}
}
