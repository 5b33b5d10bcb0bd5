package serve

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/report"
)

// save writes the files that are functions of the records, as far as there are any. It is called
// when a target is done and not at the end alone, so that a crash in the second one's run leaves
// the first one's report.
func (x *run) save() {
	files := report.Document(x.reports...).Files()
	if x.found != nil {
		files = append(files, document.File{Name: searchFile, Write: func(w io.Writer) error {
			return document.WriteJSON(w, map[string]any{"search": x.found, "command": x.Setup.Command})
		}})
	}
	x.out.Save(files...)
}

// searchFile has every point of a search, in the folder of results.
const searchFile = "search.json"

// finish prints the reports, writes the files in the tools' formats, and says what went wrong.
// It prints before it writes, and goes on after an error: a full disk costs the files and not the
// figures.
func (x *run) finish() error {
	var failed error
	for _, p := range x.reports {
		failed = errors.Join(failed, x.print(p))
	}
	if len(x.reports) == 2 {
		fmt.Fprintf(x.Stdout, "\n%s", report.Clocks(x.reports).Text())
	}
	if x.found != nil {
		found := *x.found
		if len(x.reports) > 0 {
			found.Notes = nil // they are the report's
		}
		fmt.Fprintf(x.Stdout, "\n%s", found.Text())
	}
	if len(x.reports) > 0 {
		for _, res := range x.Results {
			if err := res.write(x.reports[0].Run); err != nil {
				failed = errors.Join(failed, &document.OutputError{Err: err})
			}
		}
	}
	if err := x.out.Close(); err != nil {
		return errors.Join(failed, err)
	}
	if len(x.reports) == 0 && x.found == nil {
		return failed
	}
	// A search in which no value kept the SLO has no report.
	names := document.Present(x.Out, document.RecordsFile, document.SummaryFile, document.TableFile, document.ReportFile, searchFile, document.LogFile)
	_, err := fmt.Fprintf(x.Stdout, "\n%s\n", document.Listing(x.Out, names...))
	if failed == nil {
		failed = cmp.Or(x.nothing(), x.tooMany())
	}
	return errors.Join(failed, err)
}

// nothing is the error of a run in which no request succeeded; nil if one did. The report of
// such a run is printed all the same, but a script that looks at the exit status alone must not
// take its zeros for figures.
func (x *run) nothing() error {
	var first, what string
	for _, p := range x.reports {
		for i := range p.Records {
			if p.Records[i].Status == client.StatusInterrupted {
				continue
			}
			why := p.Records[i].Failure()
			if why == "" {
				return nil
			}
			if first == "" {
				first, what = why, "answered"
			}
			if p.Records[i].Fault == client.FaultShort {
				what = "answered in full"
			}
		}
	}
	if first == "" {
		return nil
	}
	return fmt.Errorf("no request was %s; the first: %s", what, first)
}

// tooMany returns the error of a run of which more than MaxFailures requests failed.
func (x *run) tooMany() error {
	var failed, all int
	var first string
	for _, p := range x.reports {
		all += len(p.Records)
		for i := range p.Records {
			if r := &p.Records[i]; r.Failure() != "" && r.Status != client.StatusInterrupted && r.Fault != client.FaultShort {
				failed++
				first = cmp.Or(first, fmt.Sprintf("request %d: %s", r.Index, r.Failure()))
			}
		}
	}
	if failed <= x.MaxFailures {
		return nil
	}
	return fmt.Errorf("%d of %d requests failed, and --max-failures is %d; the first, %s", failed, all, x.MaxFailures, first)
}

// layout is a run as one of the tools reports it: what it prints, what it writes, and what it calls
// its file if nobody names it.
type layout interface {
	WriteText(w io.Writer) error
	JSON(detailed bool) ([]byte, error)
	FileName() string
}

// laidOut is a run in the layout of that name.
func laidOut(r *report.Run, name string) layout {
	if name == LayoutSGLang {
		return report.NewSGLang(r)
	}
	return report.NewVLLM(r)
}

// print writes a run in the layout that was asked for, and what is to be said of it, in one Write:
// lines of other goroutines do not come between.
func (x *run) print(p *report.Report) error {
	var b bytes.Buffer
	err := errors.Join(laidOut(p.Run, x.Layout).WriteText(&b), p.WriteNotes(&b))
	_, lost := x.Stdout.Write(b.Bytes())
	return errors.Join(err, lost)
}

// write writes the file of a run, and beside it vLLM's file in PyTorch's format where the variable
// is set that vLLM has for it.
func (res Result) write(r *report.Run) error {
	l := laidOut(r, res.Layout)
	text, err := l.JSON(res.Detailed)
	if err != nil {
		return err
	}
	name := cmp.Or(res.Name, l.FileName())
	if err := res.put(name, text); err != nil {
		return err
	}
	v, isVLLM := l.(*report.VLLM)
	if !isVLLM || os.Getenv(report.PyTorchVariable) == "" {
		return nil
	}
	if text, err = v.PyTorch(res.Detailed, name); err != nil {
		return err
	}
	res.Append = false // vLLM replaces it, too
	return res.put(report.PyTorchName(name), text)
}

// put writes a line, or the whole file.
func (res Result) put(name string, text []byte) error {
	path := filepath.Join(res.Dir, name)
	if res.Append {
		return report.AppendLine(path, text)
	}
	if err := document.MakeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	return document.WriteFiles(filepath.Dir(path), document.File{Name: filepath.Base(path), Write: func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}})
}
