package wire

import (
	"errors"
	"io/fs"
	"net/http"
	"slices"

	"kvferry/proxy/openai"
	"kvferry/tokenizer"
)

// TokenizerFile answers with one of a tokenizer's files. The error is that there is none of that name,
// or the system's.
func TokenizerFile(w http.ResponseWriter, files tokenizer.Files, file string) error {
	err := fs.ErrNotExist
	if slices.Contains(tokenizer.FileNames, file) {
		w.Header().Set("Content-Type", "application/json")
		if file == tokenizer.TemplateFileName {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		err = files.Write(w, file)
	}
	switch lost := (*fs.PathError)(nil); {
	case errors.Is(err, fs.ErrNotExist):
		return &openai.Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
			Message: "no such file of the tokenizer: " + openai.Abbreviate(file) + ": ask for " + tokenizer.FileName + ", " + tokenizer.ConfigFileName + " or " + tokenizer.ModelConfigFileName,
		}
	case errors.As(err, &lost): // else the client has gone
		return err
	}
	return nil
}
