package matrix

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"kvferry/internal/config"
)

// values are what the placeholders of a pair stand for. Where the server's port is open, it is
// one that is free now: nothing holds it until the server listens there.
func (f *File) values(s Server, c Client, folder string) (map[string]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("matrix: %w", err)
	}
	out, err := filepath.Abs(filepath.Join(folder, resultFolder))
	if err != nil {
		return nil, err
	}
	v := map[string]string{
		"model": f.model(s), "out": out, "server": s.Name, "client": c.Name, "dir": f.dir, "kvferry": exe, "bin": filepath.Dir(exe),
	}
	if v["host"] = s.Host; s.Host == "" {
		v["host"] = DefaultHost
	}
	if !s.Command.empty() {
		port := s.Port
		if port == 0 {
			if port, err = config.FreePort(v["host"]); err != nil {
				return nil, err
			}
		}
		v["port"] = strconv.Itoa(port)
	}
	if s.URL == "" {
		v["url"] = "http://" + net.JoinHostPort(v["host"], v["port"])
		return v, nil
	}
	v["url"] = fill(s.URL, v, verbatim)
	if u, err := url.Parse(v["url"]); err == nil && s.Command.empty() {
		v["host"], v["port"] = u.Hostname(), portOf(u)
	}
	return v, nil
}

// folder is where a command runs: dir, below the file's folder, or else what is usual.
func (f *File) folder(dir, usual string) string {
	switch {
	case dir == "":
		return usual
	case filepath.IsAbs(dir):
		return dir
	}
	return filepath.Join(f.dir, dir)
}
