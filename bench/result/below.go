package result

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// ReadBelow reads the results at path: those of the file, or, below a folder, those of kvferry bench and, if
// there are none, those in other files of JSON. It leaves out rows that were never measured. Files of
// other things and a path that is not there have no results.
func ReadBelow(path string) ([]Run, error) {
	var summaries, others []string
	err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		switch ext := filepath.Ext(file); {
		case err != nil || d.IsDir():
			return err
		case filepath.Base(file) == SummaryFile:
			summaries = append(summaries, file)
		case ext == ".json" || ext == ".jsonl" || file == path:
			others = append(others, file)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, files := range [][]string{summaries, others} {
		var all []Run
		for _, file := range files {
			found, err := Read(file)
			if _, other := errors.AsType[*FormatError](err); err != nil && !other {
				return nil, err
			}
			for _, r := range found {
				if len(r.Figures) > 0 {
					all = append(all, r)
				}
			}
		}
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, nil
}
