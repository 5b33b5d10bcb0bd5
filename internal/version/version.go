// Package version says which build of the project a program is, from what the go command
// has written into it: the module's version where it was built from a release,
// else the commit it was built from.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// String is the build in a word: "v1.2.0", "03824b06a3d1", "03824b06a3d1-modified" of a
// tree with changes, or "unknown" of what was built outside of version control.
func String() string {
	info, _ := debug.ReadBuildInfo()
	return short(info)
}

// Line is what --version prints of a program: version, commit, Go and platform.
func Line(program string) string {
	info, _ := debug.ReadBuildInfo()
	return line(program, info)
}

func line(program string, info *debug.BuildInfo) string {
	var commit string
	if revision, modified := commitOf(info); revision != "" && !strings.HasPrefix(short(info), revision) {
		commit = ", commit " + revision + modified
	}
	return fmt.Sprintf("%s %s%s, %s %s/%s", program, short(info), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func short(info *debug.BuildInfo) string {
	if info == nil {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if revision, modified := commitOf(info); revision != "" {
		return revision + modified
	}
	return "unknown"
}

// commitOf is the first 12 digits of the commit, and "-modified" if the tree had changes.
func commitOf(info *debug.BuildInfo) (revision, modified string) {
	if info == nil {
		return "", ""
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	return revision, modified
}
