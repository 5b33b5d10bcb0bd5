package kvcache

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAvailable: the least of what the machine has and its control groups leave.
func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal:  8388608 kB\nMemFree:  1048576 kB\nMemAvailable:  4194304 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		ok    bool
	}{
		"nothing is known": {nil, 0, false},
		"no group":         {map[string]string{"proc/meminfo": meminfo}, 4 << 30, true},
		"no limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/user\n", "sys/fs/cgroup/user/memory.max": "max\n", "sys/fs/cgroup/user/memory.current": "5\n",
		}, 4 << 30, true},
		"version 2": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/user/session\n",
			"sys/fs/cgroup/user/session/memory.max": "3221225472\n", "sys/fs/cgroup/user/session/memory.current": "2147483648\n",
			"sys/fs/cgroup/user/session/memory.stat": "anon 7\ninactive_file 1073741824\n",
		}, 2 << 30, true},
		"a group around it": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/user/session\n",
			"sys/fs/cgroup/user/session/memory.max": "3221225472\n", "sys/fs/cgroup/user/session/memory.current": "0\n",
			"sys/fs/cgroup/user/memory.max": "1073741824\n", "sys/fs/cgroup/user/memory.current": "2147483648\n",
		}, 0, true},
		"version 1, the host's path": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "12:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1048576\n",
		}, 1<<30 - 1<<20, true},
		"version 1, no limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1048576\n",
		}, 4 << 30, true},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			file = filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if n, ok := systemAt(root).available(); n != c.want || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", name, n, ok, c.want, c.ok)
		}
	}
	if n, ok := Available(); !ok || n <= 0 {
		t.Errorf("here: %d, %v", n, ok)
	}
}
