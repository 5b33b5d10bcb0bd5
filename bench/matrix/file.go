package matrix

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"kvferry/internal/config"
)

// A File lists what is run: every client against every server.
type File struct {
	Model   string // {model}, where a server has none of its own
	Servers []Server
	Clients []Client

	path   string  // of the file, as it was given
	dir    string  // absolute folder of the file: {dir}, and where servers run
	fields []field // in the order of the text
}

// A Server is a command, or the URL of a server that runs already. What has no name in JSON does
// not change what is measured: see [Pair].
type Server struct {
	Name    string            `json:"name"`
	Command Command           `json:"command"`
	Env     map[string]string `json:"env,omitempty"` // added to kvferry's own
	Dir     string            `json:"dir,omitempty"` // where it runs; the file's folder if empty
	// URL is {url}. A command's is http://{host}:{port} if empty.
	URL   string `json:"url,omitempty"`
	Host  string `json:"host,omitempty"`  // 127.0.0.1 if empty
	Port  int    `json:"port,omitempty"`  // 0: a free one, another for each start
	Model string `json:"model,omitempty"` // in place of the file's
	Ready Ready  `json:"-"`
	Stop  Stop   `json:"-"`
	// Share has one process serve all clients in turn. By default each pair has a server of
	// its own, so that no client finds the caches that another has filled.
	Share bool `json:"share,omitempty"`
}

// Ready says how a server announces that it is ready: by a line, a URL, or both.
type Ready struct {
	Line   string        // regular expression in its output
	URL    string        // answers 200 to 299
	Within time.Duration // DefaultReady if 0, DefaultRunning for a server that runs already
}

// Stop says how a command is ended.
type Stop struct {
	Signal string        // a name without SIG; TERM if empty
	Within time.Duration // then it is killed; DefaultStop if 0
}

// A Client is a command that is run against each server.
type Client struct {
	Name    string            `json:"name"`
	Bench   string            `json:"bench,omitempty"` // flags of kvferry bench, in place of a command
	Command Command           `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"` // where it runs; the pair's result folder if empty
	Within  time.Duration     `json:"-"`             // then it is ended, and the pair has failed; DefaultClient if 0
	Stop    Stop              `json:"-"`
}

// Defaults of a file. Loading a large model takes minutes, and so does a long run; 4 hours end
// a client that hangs before a night is over.
const (
	DefaultReady   = 15 * time.Minute
	DefaultRunning = time.Minute // as long as kvferry bench waits
	DefaultStop    = 30 * time.Second
	DefaultClient  = 4 * time.Hour
	DefaultHost    = "127.0.0.1"
)

// signals are the signals that a command can be stopped with.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "KILL": syscall.SIGKILL,
}

// signal returns the signal's name in the form that signals has.
func (s Stop) signal() string {
	if s.Signal == "" {
		return "TERM"
	}
	return strings.TrimPrefix(strings.ToUpper(s.Signal), "SIG")
}

// ReadFile reads a file in YAML or JSON. Its errors are a [config.Invalid] whose faults have
// the field "File": FILE:LINE, the field there, what is wrong and what would do.
func ReadFile(path string) (*File, error) {
	text, err := config.ReadFile(path)
	if err != nil {
		var bad config.Faults
		bad.Check("File", fmt.Errorf("%w: name one in YAML or JSON, like examples/matrix/two-handoffs.yaml", err))
		return nil, bad.Err("")
	}
	return parse(path, text)
}

// parse reads the text of a file at path.
func parse(path string, text []byte) (*File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, dir: filepath.Dir(abs)}
	var faults config.Faults
	if f.decode(text, &faults); len(faults) == 0 {
		f.check(&faults)
	}
	if len(faults) > 0 {
		return nil, faults.Err("")
	}
	return f, nil
}

// decode reads YAML, and so JSON. It reads the text twice: into nodes, which know their lines,
// and into f, where yaml refuses fields that there are not.
func (f *File) decode(text []byte, faults *config.Faults) {
	var doc yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(text))
	err := in.Decode(&doc)
	if errors.Is(err, io.EOF) {
		f.fault(faults, "", "it is empty: list servers and clients")
		return
	}
	if m := yamlError.FindStringSubmatch(fmt.Sprint(err)); m != nil {
		line, _ := strconv.Atoi(m[1]) // 0 where yaml gives none
		faults.Check("File", fmt.Errorf("%s:%d: this is neither YAML nor JSON: %s", f.path, max(line, 1), m[2]))
		return
	}
	f.locate("", 1, doc.Content[0])
	if !errors.Is(in.Decode(new(yaml.Node)), io.EOF) {
		f.fault(faults, "", "it has a second document behind ---: write one")
	}
	in = yaml.NewDecoder(bytes.NewReader(text))
	in.KnownFields(true)
	err = in.Decode(f)
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		for _, text := range types.Errors {
			faults.Check("File", fmt.Errorf("%s:%s", f.path, f.typeFault(text)))
		}
	} else if err != nil {
		f.fault(faults, "", "%v", err)
	}
}

// The forms of yaml's errors: a syntax error, and a field that there is not or a value of another type.
var (
	yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)
	typeError = regexp.MustCompile("^line (\\d+): (?:field (\\S+) not found|cannot unmarshal (\\S+)(?: `(.*?)(?:\\.\\.\\.)?`)? into (\\S+)$)")
)

// wanted says what to write for a value of a Go type. It lacks the types of mappings.
var wanted = map[string]string{
	"int": "a whole number", "bool": "true or false", "string": "a text", "map[string]string": "names with a value each, NAME: VALUE",
	"time.Duration": "a time with its unit, like 30s, 10m or 1h30m", "[]string": "a line for the shell, or a list of words",
	"[]matrix.Server": "a list", "[]matrix.Client": "a list",
}

// typeFault rewrites an error of yaml's, "line 4: ...", so that it names the field in full and
// what to write there in place of a Go type: "4: servers[0].port: write a whole number".
func (f *File) typeFault(text string) string {
	m := typeError.FindStringSubmatch(text)
	if m == nil { // a name that is given twice
		return strings.TrimPrefix(text, "line ")
	}
	line, key, tag, value := m[1], m[2], m[3], m[4] // value may be its beginning only
	what := "there is no such field: kvferry lab matrix --help lists those that there are"
	if key == "" {
		what = "write " + cmp.Or(wanted[m[5]], "fields, NAME: VALUE")
	}
	for _, at := range slices.Backward(f.fields) { // what is in a field comes after it
		switch {
		case key != "" && line == strconv.Itoa(at.line) && strings.HasSuffix("."+at.name, "."+key),
			line == strconv.Itoa(at.value.Line) && tag == at.value.ShortTag() && strings.HasPrefix(at.value.Value, value):
			if key == "" && at.value.Value != "" {
				what = strconv.Quote(at.value.Value) + ": " + what
			}
			return line + ": " + strings.TrimPrefix(at.name+": "+what, ": ")
		}
	}
	return line + ": " + what
}

// A field is a place in a file.
type field struct {
	name  string // in full: servers[0].stop
	line  int    // of its name
	value *yaml.Node
}

// locate lists the fields of a node in f.fields.
func (f *File) locate(name string, line int, n *yaml.Node) {
	f.fields = append(f.fields, field{name, line, n})
	for i, inner := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			f.locate(fmt.Sprintf("%s[%d]", name, i), inner.Line, inner)
		case i%2 == 1: // the value of the name before it
			f.locate(strings.TrimPrefix(name+"."+n.Content[i-1].Value, "."), n.Content[i-1].Line, inner)
		}
	}
}

// line returns the line of a field or, if the file does not have it, of what it would be in.
func (f *File) line(name string) int {
	for end := len(name); end > 0; end = strings.LastIndexAny(name[:end], ".[") {
		if i := slices.IndexFunc(f.fields, func(at field) bool { return at.name == name[:end] }); i >= 0 {
			return f.fields[i].line
		}
	}
	return 1
}

// fault adds what is wrong with a field.
func (f *File) fault(faults *config.Faults, field, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if field != "" {
		err = fmt.Errorf("%s: %w", field, err)
	}
	faults.Check("File", fmt.Errorf("%s:%d: %w", f.path, f.line(field), err))
}
