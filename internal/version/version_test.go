package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	build := func(module string, settings ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{Main: debug.Module{Version: module}}
		for i := 0; i < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return info
	}
	const commit = "03824b06a3d19e84a5b8c849f6a81d07c6020977"
	platform := ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{build("v1.2.0"), "proxy v1.2.0"},
		{build("v1.2.1-0.20251121230000-03824b06a3d1", "vcs.revision", commit, "vcs.modified", "false"), "proxy v1.2.1-0.20251121230000-03824b06a3d1, commit 03824b06a3d1"},
		{build("(devel)", "vcs.revision", commit, "vcs.modified", "true"), "proxy 03824b06a3d1-modified"},
		{build("", "vcs.revision", commit), "proxy 03824b06a3d1"},
		{build("(devel)"), "proxy unknown"},
		{nil, "proxy unknown"},
	} {
		if got := line("proxy", c.info); got != c.want+platform {
			t.Errorf("%q, want %q", got, c.want+platform)
		}
	}
	if !strings.HasPrefix(Line("kvferry"), "kvferry "+String()) {
		t.Errorf("%s, %s", Line("kvferry"), String())
	}
}
