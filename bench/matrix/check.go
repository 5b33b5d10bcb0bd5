package matrix

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// folderName is a folder's name, without what a shell or a file system takes amiss.
var folderName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+=,-]*$`)

// check reports what is wrong with a file that could be decoded.
func (f *File) check(faults *config.Faults) {
	bad := func(field, format string, args ...any) { f.fault(faults, field, format, args...) }
	if len(f.Servers) == 0 {
		bad("servers", "none given: list a server with a name and a command or url")
	}
	if len(f.Clients) == 0 {
		bad("clients", "none given: list a client with a name and a bench line or a command")
	}
	seen := map[string]bool{}
	common := func(field, name string, c Command, stop Stop, known values) {
		kind, _, _ := strings.Cut(field, "[")
		switch {
		case name == "":
			bad(field, "it has no name: give it one, which is a folder's too")
		case !folderName.MatchString(name):
			bad(field+".name", "%q: it is a folder's name too: use letters, digits and . _ + = , -", name)
		case seen[kind+name]:
			bad(field+".name", "%q: it is given twice: two would have one folder", name)
		}
		seen[kind+name] = true
		if len(c.Words) > 0 && strings.TrimSpace(c.Words[0]) == "" {
			bad(field+".command", "its first word is empty: name a program")
		}
		if _, ok := signals[stop.signal()]; !ok {
			bad(field+".stop.signal", "%q: use %s", stop.Signal, config.Or(slices.Sorted(maps.Keys(signals))))
		}
		f.checkValues(field, known, bad)
	}
	for i, s := range f.Servers {
		field := fmt.Sprintf("servers[%d]", i)
		known := f.values(&Pair{server: s}, "")
		if s.Share {
			delete(known, "client")
			delete(known, "out")
		}
		common(field, s.Name, s.Command, s.Stop, known)
		s.check(field, bad)
	}
	for i, c := range f.Clients {
		field := fmt.Sprintf("clients[%d]", i)
		common(field, c.Name, c.Command, c.Stop, f.values(&Pair{}, ""))
		if c.Bench == "" && c.Command.empty() {
			bad(field, "it has nothing to run: give it a bench line (flags of kvferry bench) or a command")
		}
		if c.Bench != "" && !c.Command.empty() {
			bad(field+".command", "it has a bench line too: leave one of them out")
		}
	}
}

// check reports what is wrong with a server.
func (s Server) check(field string, bad func(field, format string, args ...any)) {
	runs := !s.Command.empty()
	switch {
	case !runs && s.URL == "":
		bad(field, "it has neither command nor url: give it one")
	case runs && s.Ready.Line == "" && s.Ready.URL == "":
		bad(field+".ready", "none given: say what tells that it is ready: line, a regular expression in its output, or url, which answers 200")
	case !runs && (s.Ready.Line != "" || s.Share || s.Stop != Stop{}):
		bad(field, "a server that runs already has no output here, serves all clients and is not stopped: leave out ready.line, share and stop")
	}
	if _, err := regexp.Compile(s.Ready.Line); err != nil {
		why := strings.TrimPrefix(err.Error(), "error parsing regexp: ")
		bad(field+".ready.line", "%q: it is no regular expression (RE2): %s", s.Ready.Line, why)
	}
	for at, text := range map[string]string{".url": s.URL, ".ready.url": strings.Replace(s.Ready.URL, "{url}", "http://h", 1)} {
		u, err := url.Parse(expand(text, func(string) string { return "1" }))
		if text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			bad(field+at, "%q: write http://host:port or https://host:port, with a path if need be", text)
		}
	}
	if s.Port < 0 || s.Port > 65535 {
		bad(field+".port", "%d: use 1 to 65535, or leave it out for one that is free", s.Port)
	}
}

// checkValues refuses times below 0, and names in braces that are not known: a misspelt {prot} would
// reach the server as it is. A regular expression may have any braces.
func (f *File) checkValues(in string, known values, bad func(field, format string, args ...any)) {
	for _, at := range f.fields {
		text := at.value.Value // empty if the field has fields or items of its own
		if !strings.HasPrefix(at.name, in+".") || at.name == in+".ready.line" {
			continue
		}
		if strings.HasSuffix(at.name, ".within") && strings.HasPrefix(text, "-") {
			bad(at.name, "%s: use more than 0s, or leave it out for the default", text)
		}
		expand(text, func(name string) string {
			if _, ok := known[name]; !ok {
				names := slices.Sorted(maps.Keys(known))
				bad(at.name, "{%s} stands for nothing here: use {%s}, or write { %[1]s } if braces are meant", name, strings.Join(names, "}, {"))
			}
			return ""
		})
	}
}
