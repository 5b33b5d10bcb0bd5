package matrix

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"kvferry/internal/config"
)

// A File is what is to be run: every client against every server.
type File struct {
	Model   string // {model}, where a server has none of its own
	Servers []Server
	Clients []Client

	path  string         // of the file, as it was given
	dir   string         // absolute folder of the file: {dir}, and where servers run
	lines map[string]int // from a field, "servers[0].stop", to its line
}

// A Server is a command, or the URL of a server that runs already.
type Server struct {
	Name    string            `json:"name"`
	Command Command           `json:"command"`
	Env     map[string]string `json:"env,omitempty"` // besides kvferry's own
	Dir     string            `json:"dir,omitempty"` // where it runs; the file's folder if empty
	// URL is {url}; of a command it is http://{host}:{port} if empty.
	URL   string `json:"url,omitempty"`
	Host  string `json:"host,omitempty"`  // 127.0.0.1 if empty
	Port  int    `json:"port,omitempty"`  // 0: one that is free, another for each start
	Model string `json:"model,omitempty"` // instead of the file's
	Ready Ready  `json:"ready"`
	Stop  Stop   `json:"stop"`
	// Share has one process serve all clients in turn. By default each pair gets a server of
	// its own, so that no client finds the caches that another has filled.
	Share bool `json:"share,omitempty"`
}

// Ready is how a server tells that it is ready: by a line, a URL, or both.
type Ready struct {
	Line   string        `json:"line,omitempty"`   // regular expression in its output
	URL    string        `json:"url,omitempty"`    // answers 200 to 299
	Within time.Duration `json:"within,omitempty"` // DefaultReady if 0, DefaultRunning of a server that runs already
}

// Stop is how a command is ended.
type Stop struct {
	Signal string        `json:"signal,omitempty"` // a name without SIG; TERM if empty
	Within time.Duration `json:"within,omitempty"` // then it is killed; DefaultStop if 0
}

// A Client is a command that is run against each server.
type Client struct {
	Name    string            `json:"name"`
	Bench   string            `json:"bench,omitempty"` // flags of kvferry bench, instead of a command
	Command Command           `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`    // where it runs; the pair's result folder if empty
	Within  time.Duration     `json:"within,omitempty"` // then it is ended, and the pair has failed; DefaultClient if 0
	Stop    Stop              `json:"stop"`
}

// A Command is a line for the shell, or words that are run as they are.
type Command struct {
	Line  string   `json:"line,omitempty"`
	Words []string `json:"words,omitempty"`
}

// What is waited for. Loading a large model takes minutes, and so does a long run; 4 hours end
// a client that hangs before a night is over.
const (
	DefaultReady   = 15 * time.Minute
	DefaultRunning = time.Minute // as long as kvferry bench waits
	DefaultStop    = 30 * time.Second
	DefaultClient  = 4 * time.Hour
	DefaultHost    = "127.0.0.1"
)

// signals are those that a command can be stopped with.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "KILL": syscall.SIGKILL,
}

// name is a folder's name, without what a shell or a file system takes amiss.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+=,-]*$`)

// ReadFile reads a file in YAML or JSON. Its errors are a [config.Invalid] whose faults have
// the field "File": FILE:LINE, the field there, what is wrong and what would do.
func ReadFile(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		var bad config.Faults
		bad.Check("File", fmt.Errorf("%q: %w", path, plainRead(err)))
		return nil, bad.Err("")
	}
	return parse(path, text)
}

// parse reads the text of a file that lies at path.
func parse(path string, text []byte) (*File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, dir: filepath.Dir(abs), lines: map[string]int{}}
	var faults config.Faults
	f.decode(text, &faults)
	if len(faults) == 0 {
		f.validate(&faults)
	}
	if len(faults) > 0 {
		return nil, faults.Err("")
	}
	return f, nil
}

// plainRead says in plain words why a file cannot be read.
func plainRead(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("there is no such file: name one in YAML or JSON, like examples/matrix/two-handoffs.yaml")
	case errors.Is(err, syscall.EISDIR):
		return errors.New("it is a folder: name a file in YAML or JSON")
	}
	return err
}

// fault notes what is wrong with a field, at its line or that of the next field around it.
func (f *File) fault(faults *config.Faults, field string, err error) {
	if field != "" {
		err = fmt.Errorf("%s: %w", field, err)
	}
	faults.Check("File", fmt.Errorf("%s:%d: %w", f.path, f.line(field), err))
}

// line is that of a field, or of the next field around it.
func (f *File) line(field string) int {
	for end := len(field); end > 0; end = strings.LastIndexAny(field[:end], ".[") {
		if n, ok := f.lines[field[:end]]; ok {
			return n
		}
	}
	return 1
}

// place says where the file has a server: FILE:LINE: server NAME.
func (f *File) place(s Server) string {
	i := slices.IndexFunc(f.Servers, func(one Server) bool { return one.Name == s.Name })
	return fmt.Sprintf("%s:%d: server %s", f.path, f.line(fmt.Sprintf("servers[%d]", i)), s.Name)
}

// validate looks at what could be read.
func (f *File) validate(faults *config.Faults) {
	bad := func(field, format string, args ...any) {
		f.fault(faults, field, fmt.Errorf(format, args...))
	}
	if len(f.Servers) == 0 {
		bad("servers", "none given: list a server with a name and a command or url")
	}
	if len(f.Clients) == 0 {
		bad("clients", "none given: list a client with a name and a bench line or a command")
	}
	names := func(kind, one string, i int, seen []string) []string {
		field := fmt.Sprintf("%s[%d]", kind, i)
		switch {
		case one == "":
			bad(field, "it has no name: give it one, which is a folder's too")
		case !name.MatchString(one):
			bad(field+".name", "%q: it is a folder's name too: use letters, digits and . _ + = , -", one)
		case slices.Contains(seen, one):
			bad(field+".name", "%q: it is given twice: two would have one folder", one)
		}
		return append(seen, one)
	}
	var seen []string
	for i, s := range f.Servers {
		seen = names("servers", s.Name, i, seen)
		f.validateServer(s, fmt.Sprintf("servers[%d]", i), bad)
	}
	seen = nil
	for i, c := range f.Clients {
		seen = names("clients", c.Name, i, seen)
		field := fmt.Sprintf("clients[%d]", i)
		switch {
		case c.Bench == "" && c.Command.empty():
			bad(field, "it has nothing to run: give it a bench line (flags of kvferry bench) or a command")
		case c.Bench != "" && !c.Command.empty():
			bad(field+".command", "it has a bench line too: leave one of them out")
		}
		f.validateCommand(c.line(), field, bad)
		validateStop(c.Stop, field, bad)
	}
	f.validatePlaceholders(bad)
}

func (f *File) validateServer(s Server, field string, bad func(field, format string, args ...any)) {
	runs := !s.Command.empty()
	switch {
	case !runs && s.URL == "":
		bad(field, "it has neither command nor url: give it one")
	case runs && s.Ready.Line == "" && s.Ready.URL == "":
		bad(field+".ready", "none given: say what tells that it is ready: line, a regular expression in its output, or url, which answers 200")
	case !runs && s.Ready.Line != "":
		bad(field+".ready.line", "a server that runs already has no output here: use ready.url, or leave it out")
	case !runs && s.Share:
		bad(field+".share", "a server that runs already serves all clients anyway: leave it out")
	case !runs && (s.Stop != Stop{}):
		bad(field+".stop", "a server that runs already is not stopped: leave it out")
	}
	if _, err := regexp.Compile(s.Ready.Line); err != nil {
		bad(field+".ready.line", "%q: it is no regular expression (RE2): %s", s.Ready.Line, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	for at, text := range map[string]string{field + ".url": s.URL, field + ".ready.url": s.Ready.URL} {
		u, err := url.Parse(expand(text, func(string) string { return "1" }))
		if text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") && !strings.HasPrefix(text, "{url}") {
			bad(at, "%q: write http://host:port or https://host:port, with a path if need be", text)
		}
	}
	if s.Port < 0 || s.Port > 65535 {
		bad(field+".port", "%d: use 1 to 65535, or leave it out for one that is free", s.Port)
	}
	f.validateCommand(s.Command, field, bad)
	validateStop(s.Stop, field, bad)
}

// validateCommand refuses the words of an argv that have nothing to run.
func (f *File) validateCommand(c Command, field string, bad func(field, format string, args ...any)) {
	if len(c.Words) > 0 && strings.TrimSpace(c.Words[0]) == "" {
		bad(field+".command", "its first word is empty: name a program")
	}
}

func validateStop(s Stop, field string, bad func(field, format string, args ...any)) {
	if _, ok := signals[s.signal()]; !ok {
		names := make([]string, 0, len(signals))
		for n := range signals {
			names = append(names, n)
		}
		slices.Sort(names)
		bad(field+".stop.signal", "%q: use %s", s.Signal, config.Or(names))
	}
}

// signal is the name of the signal, in the form that signals has.
func (s Stop) signal() string {
	if s.Signal == "" {
		return "TERM"
	}
	return strings.TrimPrefix(strings.ToUpper(s.Signal), "SIG")
}

func (c Command) empty() bool { return c.Line == "" && len(c.Words) == 0 }

// line is what a client runs: its own command, or kvferry bench with what it needs besides.
func (c Client) line() Command {
	if c.Bench == "" {
		return c.Command
	}
	line := "exec {kvferry} bench " + c.Bench
	given := strings.Fields(strings.ReplaceAll(c.Bench, "=", " "))
	if !slices.ContainsFunc(given, func(w string) bool { return w == "--base-url" || w == "--host" || w == "--port" }) {
		line += " --base-url {url}"
	}
	if !slices.Contains(given, "--out") {
		line += " --out {out}"
	}
	return Command{Line: line}
}

// Pairs is how many pairs the file makes.
func (f *File) Pairs() int { return len(f.Servers) * len(f.Clients) }
