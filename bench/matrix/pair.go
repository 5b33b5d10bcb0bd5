package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/result"
	"kvferry/internal/config"
	"kvferry/internal/proc"
)

// Files of a pair's folder. serverFile is in the server's folder if its clients share it.
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

// A Pair is a server and a client and what came of them: pair.json.
type Pair struct {
	Server string `json:"server"`
	Client string `json:"client"`
	Status string `json:"status"` // empty before the pair is run
	Error  string `json:"error,omitempty"`
	// From is the part of the file, as JSON, that what the pair measures depends on. A pair
	// that is done is not run again while the file has the same.
	From          string    `json:"from"`
	ServerCommand []string  `json:"server_command,omitempty"` // with placeholders filled in
	ClientCommand []string  `json:"client_command"`
	URL           string    `json:"url"`
	Started       time.Time `json:"started"`
	ReadyS        float64   `json:"ready_s"`               // from the server's start until it was ready
	ClientS       float64   `json:"client_s"`              // from the client's start to its end
	ServerStop    string    `json:"server_stop,omitempty"` // why the server had to be killed
	Figures       []Figures `json:"figures,omitempty"`

	server Server
	client Client
	folder string
}

// Figures are what a client reports of a run, by its own definitions, under the names of
// report.Metrics. What it does not report is missing.
type Figures struct {
	Source string             `json:"source"` // the file that they are from, in the pair's folder
	Tool   string             `json:"tool"`   // whose definitions they have: one of report's Tools
	Values map[string]float64 `json:"values"`
}

// pairs returns the file's pairs, server by server, with what earlier runs have left of them in the
// folder out. With force, no pair is done.
func (f *File) pairs(out string, force bool) (all []*Pair, err error) {
	for _, s := range f.Servers {
		for _, c := range f.Clients {
			from, err := json.Marshal([]any{s, c, f.Model})
			if err != nil {
				return nil, err
			}
			p := &Pair{Server: s.Name, Client: c.Name, From: string(from), folder: filepath.Join(out, s.Name, c.Name)}
			before, err := readPair(p.folder)
			if err != nil {
				return nil, err
			}
			if before.Status == StatusDone && before.From == p.From && !force {
				before.folder = p.folder
				p = before
			}
			p.server, p.client = s, c
			all = append(all, p)
		}
	}
	return all, nil
}

// readPair reads the pair.json of a folder. If there is none, it returns a Pair without a status.
func readPair(folder string) (p *Pair, err error) {
	p = new(Pair)
	path := filepath.Join(folder, pairFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = config.Unmarshal(text, p, false)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// write writes pair.json. Its error is a [document.OutputError].
func (p *Pair) write() error {
	return document.WriteFiles(p.folder, document.File{Name: pairFile, Write: func(w io.Writer) error { return document.WriteJSON(w, p) }})
}

// begin makes the pair's folder anew, with a pair.json. What an earlier run of the pair has
// left is removed, so that no figure of it is taken for one of this run. A folder with something
// else in it is an error and left alone.
func (p *Pair) begin() error {
	_, err := os.Stat(filepath.Join(p.folder, pairFile))
	entries, _ := os.ReadDir(p.folder) // none if it is not there
	if err != nil && len(entries) > 0 {
		return fmt.Errorf("%s: it has files and no %s: it is not of a matrix; choose another --out", p.folder, pairFile)
	}
	if err := os.RemoveAll(p.folder); err != nil {
		return &document.OutputError{Err: err}
	}
	p.Status, p.Started = StatusRunning, time.Now()
	if err := p.write(); err != nil {
		return err
	}
	return document.MakeFolder(filepath.Join(p.folder, resultFolder))
}

// stopped stops the server and records if it had to be killed.
func (p *Pair) stopped(s *proc.Proc) {
	if err := s.Stop(); err != nil && s.Err() == nil {
		p.ServerStop = err.Error()
	}
}

// end records how the pair ended, with what its client has reported: in its result folder or, if
// there is nothing, on its standard output.
func (p *Pair) end(status string, why error) error {
	p.Status = status
	runs, err := result.ReadBelow(filepath.Join(p.folder, resultFolder))
	if err == nil && len(runs) == 0 {
		runs, err = result.ReadBelow(filepath.Join(p.folder, stdoutFile))
	}
	for _, run := range runs {
		source := strings.TrimPrefix(run.Source, p.folder+string(filepath.Separator))
		p.Figures = append(p.Figures, Figures{Source: source, Tool: run.Tool, Values: run.Figures})
	}
	if why = errors.Join(why, err); why != nil && status != StatusInterrupted {
		p.Status, p.Error = StatusFailed, why.Error()
	}
	return p.write()
}
