package proxy

import (
	"net/http"
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
			wire.Error(w, wire.ErrorOf(p.nodes.wait(ended)))
			return
		}
		files = openai.NewTokenizer(cluster.Vocab).Files(int(cluster.MaxModelLen))
	}
	if err := wire.TokenizerFile(timedWriter{p, w}, files, file); err != nil { // the system's; else the client has gone
		wire.Error(w, wire.ErrorOf(err))
	}
}

// A timedWriter gives a client timeouts.answer for each part of a long answer.
type timedWriter struct {
	p *Proxy
	http.ResponseWriter
}

func (t timedWriter) Write(b []byte) (int, error) {
	t.p.answerSoon(t.ResponseWriter)
	return t.ResponseWriter.Write(b)
}
