package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"kvferry/bench/document"
)

// What a pair's folder has. serverFile is in the server's folder if its clients share it.
const (
	pairFile     = "pair.json"
	stdoutFile   = "stdout"
	stderrFile   = "stderr"
	serverFile   = "server.log" // its standard output and error, in the order of writing
	resultFolder = "result"
)

// Values of Pair.Status.
const (
	StatusRunning     = "running" // or kvferry was killed
	StatusDone        = "done"
	StatusFailed      = "failed"
	StatusInterrupted = "interrupted"
)

// A Pair is a server and a client and how they got on: pair.json.
type Pair struct {
	Server string `json:"server"`
	Client string `json:"client"`
	Status string `json:"status"`
	Error  string `json:"error,omitempty"`
	// Recipe is what the file said. A pair that is done counts as done while the file says the
	// same.
	Recipe Recipe `json:"recipe"`
	// Commands are what was run: the recipe's, with all put in.
	ServerCommand []string  `json:"server_command,omitempty"`
	ClientCommand []string  `json:"client_command"`
	URL           string    `json:"url"`
	Started       time.Time `json:"started"`
	ReadyS        float64   `json:"ready_s"`  // from the server's start to its being ready; 0 of one that ran already
	ClientS       float64   `json:"client_s"` // from the client's start to its end
	ClientEnd     *end      `json:"client_end,omitempty"`
	ServerEnd     *end      `json:"server_end,omitempty"`
	Figures       []Figures `json:"figures,omitempty"`
}

// A Recipe is all of a file that what a pair measures depends on.
type Recipe struct {
	ServerCommand string            `json:"server_command,omitempty"`
	ServerEnv     map[string]string `json:"server_env,omitempty"`
	ServerDir     string            `json:"server_dir,omitempty"`
	URL           string            `json:"url,omitempty"`
	Host          string            `json:"host,omitempty"`
	Port          int               `json:"port,omitempty"`
	Share         bool              `json:"share,omitempty"`
	ClientCommand string            `json:"client_command"`
	ClientEnv     map[string]string `json:"client_env,omitempty"`
	ClientDir     string            `json:"client_dir,omitempty"`
	Model         string            `json:"model,omitempty"`
}

// recipe is that of a pair.
func (f *File) recipe(s Server, c Client) Recipe {
	r := Recipe{
		ServerCommand: s.Command.String(), ServerEnv: s.Env, ServerDir: s.Dir, URL: s.URL, Host: s.Host, Port: s.Port, Share: s.Share,
		ClientCommand: c.line().String(), ClientEnv: c.Env, ClientDir: c.Dir, Model: f.model(s),
	}
	// As it is read back, where an empty map is none.
	if len(r.ServerEnv) == 0 {
		r.ServerEnv = nil
	}
	if len(r.ClientEnv) == 0 {
		r.ClientEnv = nil
	}
	return r
}

// model is what {model} stands for beside a server.
func (f *File) model(s Server) string {
	if s.Model != "" {
		return s.Model
	}
	return f.Model
}

// readPair reads the pair.json of a folder; nil if there is none.
func readPair(folder string) (*Pair, error) {
	text, err := os.ReadFile(filepath.Join(folder, pairFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var p Pair
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(folder, pairFile), err)
	}
	return &p, nil
}

// isDone says that a pair need not be run again.
func (p *Pair) isDone(r Recipe) bool {
	return p != nil && p.Status == StatusDone && reflect.DeepEqual(p.Recipe, r)
}

// write writes the pair.json of a folder. Its error is a [document.OutputError].
func (p *Pair) write(folder string) error {
	return document.WriteFiles(folder, document.File{Name: pairFile, Write: func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(p)
	}})
}

// clearFolder makes a pair's folder anew. What an earlier run of the pair has left is removed, so that
// no figure of it is taken for one of this run; a folder with something else in it is left
// alone, and an error.
func clearFolder(folder string) error {
	before, err := readPair(folder)
	if before == nil {
		entries, _ := os.ReadDir(folder) // none if it is not there
		if err == nil && len(entries) > 0 {
			err = errors.New("it has files and no " + pairFile + ": it is not of a matrix; choose another --out")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", folder, err)
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		return &document.OutputError{Err: err}
	}
	return document.MakeFolder(filepath.Join(folder, resultFolder))
}
