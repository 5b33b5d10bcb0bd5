package proxy

import (
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
	"kvferry/tokenizer"
)

// serveTokenizer is GET /tokenizer/{file}: the files of the tokenizer by which texts are
// counted here. A client that has them in a folder counts the same: transformers'
// AutoTokenizer.from_pretrained, vllm bench serve --tokenizer, kvbench serve --tokenizer. Those
// of --tokenizer are the files themselves; kvferry's own, which has the size of the cluster's
// vocabulary, are written as they are asked for.
func (p *Proxy) serveTokenizer(w http.ResponseWriter, r *http.Request) {
	file := strings.TrimPrefix(r.URL.Path, "/tokenizer/") // timedHandler goes past the mux's PathValue
	var files tokenizer.Files
	if p.file != nil {
		files = p.file.Files
	} else {
		cluster, ok := p.nodes.info()
		if !ok {
			wire.Error(w, toAPIError(p.nodes.wait(ended)))
			return
		}
		files = openai.NewTokenizer(cluster.Vocab).Files(int(cluster.MaxModelLen))
	}
	err := fs.ErrNotExist
	if slices.Contains(tokenizer.FileNames, file) {
		w.Header().Set("Content-Type", "application/json")
		if file == tokenizer.TemplateFileName {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		err = files.Write(timedWriter{p, w}, file)
	}
	switch lost := (*fs.PathError)(nil); {
	case errors.Is(err, fs.ErrNotExist):
		w.Header().Del("Content-Type")
		wire.Error(w, &openai.Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
			Message: "no such file of the tokenizer: " + openai.Abbreviate(file) + ": ask for " + tokenizer.FileName + ", " + tokenizer.ConfigFileName + " or " + tokenizer.ModelConfigFileName,
		})
	case errors.As(err, &lost): // the system's; else the client has gone
		wire.Error(w, toAPIError(err))
	}
}

// A timedWriter gives a client timeouts.answer for each part of a long answer.
type timedWriter struct {
	p *Proxy
	w http.ResponseWriter
}

func (t timedWriter) Write(b []byte) (int, error) {
	t.p.answerSoon(t.w)
	return t.w.Write(b)
}
