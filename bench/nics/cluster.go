package nics

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// httpAddress is the proxy's, on host 1's management link, where its clients are.
var httpAddress = lab.ManagementAddress(1) + ":8000"

// findDaemons sets bin to this program's folder if it is empty, and looks for the cluster's
// programs there.
func findDaemons(bin *string) error {
	if *bin == "" {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		*bin = filepath.Dir(exe)
	}
	for _, name := range []string{"proxy", "prefill", "decode", "kvferry"} {
		if _, err := os.Stat(filepath.Join(*bin, name)); err != nil {
			return fmt.Errorf("the cluster's program %s: %w: make build, and run bin/kvferry", name, err)
		}
	}
	return nil
}

// startCluster starts a lab with a proxy and a prefill node on host 1 and a decode node on host 2, whose KV
// goes over all links. at returns the address of their control plane on a host. stop ends the cluster and the lab.
func startCluster(ctx context.Context, bin, handoff string, cfg lab.Config, at func(host int) string) (l *lab.Lab, stop func(), err error) {
	cfg.Timeout = time.Hour
	if l, err = lab.Start(ctx, cfg); err != nil {
		return nil, nil, err
	}
	var rails []string
	for i := range cfg.Rates {
		rails = append(rails, "tcp/"+lab.Name(i))
	}
	registry := at(1) + ":9000"
	node := func(id, grpc string) []string {
		return []string{"--id", id, "--proxy", registry, "--grpc", grpc, "--rail", strings.Join(rails, ","), "--log-level", "warn"}
	}
	var all []*proc.Proc
	stop = func() {
		for _, p := range slices.Backward(all) {
			_ = p.Stop()
		}
		l.Close()
	}
	for _, d := range []struct {
		host int
		name string
		args []string
	}{
		{1, "proxy", []string{"--handoff", handoff, "--mode", "disagg", "--http", httpAddress, "--grpc", registry, "--log-level", "warn"}},
		{1, "prefill", node("prefill-0", at(1)+":9101")},
		{2, "decode", node("decode-0", at(2)+":9100")},
	} {
		p, err := start(ctx, l, d.host, proc.Cmd{Args: append([]string{filepath.Join(bin, d.name)}, d.args...)})
		if err != nil {
			stop()
			return nil, nil, err
		}
		all = append(all, p)
	}
	return l, stop, nil
}
