package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/client"
	"kvferry/internal/config"
)

// Paths that empty a server's prefix cache, vLLM's and SGLang's. vLLM has its own with
// VLLM_SERVER_DEV_MODE=1 only. SGLang waits up to its timeout until it has no requests.
const (
	resetPath = "/reset_prefix_cache"
	flushPath = "/flush_cache"
)

// flush empties the prefix caches of all servers. By the name of the backend one path is asked
// first, as sglang.bench_serving has it, and the other one where there is no such path.
func (s *server) flush(ctx context.Context, wait time.Duration) error {
	flush := flushPath + "?timeout=" + url.QueryEscape(strconv.FormatFloat(wait.Seconds(), 'f', -1, 64))
	paths := []string{flush, resetPath}
	if !strings.HasPrefix(s.accept.Backend, "sglang") {
		paths = []string{resetPath, flush}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait+flushSlack, fmt.Errorf("it did not answer within %v", wait+flushSlack))
	defer cancel()
	for i, base := range s.client.Pages("") {
		var err error
		for _, path := range paths {
			err = s.client.Post(ctx, i, path)
			status := (*client.StatusError)(nil)
			if !errors.As(err, &status) || status.Code != http.StatusNotFound && status.Code != http.StatusMethodNotAllowed {
				break
			}
		}
		if err != nil {
			return &config.Fault{Field: "FlushCache", Err: fmt.Errorf("server at %s: its prefix cache was not emptied (vLLM can with VLLM_SERVER_DEV_MODE=1 only): leave this out to measure with the cache as it is: %w", base, err)}
		}
	}
	return nil
}

// flushSlack is how much longer an answer may take than the server waits.
const flushSlack = 10 * time.Second
