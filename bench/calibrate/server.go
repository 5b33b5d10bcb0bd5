package calibrate

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"

	"kvferry/bench/client"
	"kvferry/internal/config"
	"kvferry/proxy/serverinfo"
)

// Limits are what a server says of itself, as far as it does: what it does not say is 0.
type Limits struct {
	MaxModelLen int // vLLM's /v1/models, kvferry's /server_info
	BlockTokens int // of KV: vLLM's /metrics, kvferry's /server_info
	Blocks      int // likewise
}

var (
	cacheConfig = regexp.MustCompile(`(?m)^vllm:cache_config_info\{(.*)\}`)
	cacheLabel  = regexp.MustCompile(`(block_size|num_gpu_blocks)="(\d+)"`)
)

// AskLimits asks a server for its limits. One that modelled nodes are behind has to be one node,
// which computes prompts and tokens: of several, nobody knows which one a request was placed on.
func AskLimits(ctx context.Context, c *client.Client) (l Limits, err error) {
	info, err := c.ServerInfo(ctx)
	if err != nil {
		return l, err
	}
	if info != nil {
		nodes := info.Working()
		if info.Serving != serverinfo.NonDisagg || len(nodes) != 1 {
			return l, config.NewFault("From", info.Describe(func(text string) serverinfo.Link { return serverinfo.Link{Name: text} }), "a profile is of one engine: ask one that serves alone (decode --role both)")
		}
		l.MaxModelLen, l.BlockTokens, l.Blocks = info.MaxModelLen, info.BlockTokens, nodes[0].KVBlocks
		return l, nil
	}
	var models struct {
		Data []struct {
			MaxModelLen int `json:"max_model_len"`
		} `json:"data"`
	}
	if body, err := c.Get(ctx, "/v1/models"); err == nil && json.Unmarshal(body, &models) == nil && len(models.Data) > 0 {
		l.MaxModelLen = models.Data[0].MaxModelLen
	}
	if body, err := c.Get(ctx, "/metrics"); err == nil {
		for _, label := range cacheLabel.FindAllSubmatch(cacheConfig.Find(body), -1) {
			n, _ := strconv.Atoi(string(label[2]))
			if string(label[1]) == "block_size" {
				l.BlockTokens = n
			} else {
				l.Blocks = n
			}
		}
	}
	return l, ctx.Err()
}
