package proxy

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"kvferry/proxy/openai"
	"kvferry/tokenizer"
)

// serveTokenizer is GET /tokenizer/{file}: the files of the tokenizer by which texts are
// counted here. A client that has them in a folder counts the same: transformers'
// AutoTokenizer.from_pretrained, vllm bench serve --tokenizer, kvbench serve --tokenizer. Those
// of --tokenizer are the files themselves; kvferry's own, which has the size of the cluster's
// vocabulary, are written as they are asked for.
func (p *Proxy) serveTokenizer(w http.ResponseWriter, r *http.Request) {
	file := strings.TrimPrefix(r.URL.Path, "/tokenizer/") // timedHandler goes past the mux's PathValue
	cluster, ok := p.nodes.info()
	if p.file == nil && !ok {
		writeError(w, toAPIError(p.nodes.wait(ended)))
		return
	}
	kind := "application/json"
	switch file {
	case tokenizer.FileName, tokenizer.ConfigFileName:
	case tokenizer.TemplateFileName:
		kind = "text/plain; charset=utf-8"
	default:
		p.noTokenizerFile(w, file)
		return
	}
	w.Header().Set("Content-Type", kind)
	switch {
	case p.file != nil:
		p.serveModelFile(w, file)
	case file == tokenizer.FileName:
		_ = openai.NewTokenizer(cluster.Vocab).WriteFile(timedWriter{p, w}) // the client may go
	case file == tokenizer.ConfigFileName:
		_, _ = w.Write(tokenizer.Settings(int(cluster.MaxModelLen)))
	default:
		p.noTokenizerFile(w, file) // the template is in the configuration
	}
}

// serveModelFile sends a file of --tokenizer's.
func (p *Proxy) serveModelFile(w http.ResponseWriter, file string) {
	path := p.cfg.Tokenizer
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, file)
	} else if file != tokenizer.FileName {
		p.noTokenizerFile(w, file)
		return
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && file != tokenizer.FileName:
		p.noTokenizerFile(w, file)
		return
	case err != nil:
		writeError(w, toAPIError(err))
		return
	}
	defer f.Close()
	_, _ = io.Copy(timedWriter{p, w}, f) // the client may go
}

func (p *Proxy) noTokenizerFile(w http.ResponseWriter, file string) {
	w.Header().Del("Content-Type")
	writeError(w, &openai.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
		Message: "no such file of the tokenizer: " + openai.Abbreviate(file) + ": ask for " + strings.Join([]string{tokenizer.FileName, tokenizer.ConfigFileName}, " or "),
	})
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
