package proxy

import (
	"net/http"
	"strconv"
	"strings"

	"kvferry/proxy/members"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
	"kvferry/tokenizer"
)

// serveTokenize is vLLM's POST /tokenize: the ids of a prompt or a conversation.
func (p *Proxy) serveTokenize(w http.ResponseWriter, r *http.Request) error {
	ids, cluster, body, err := p.readTokens(w, r, openai.ParseTokenize)
	if err != nil {
		return err
	}
	defer body.Release()
	wire.Pieces(timedWriter{p, w}, len(ids), `{"tokens":[`, func(b []byte, i int) []byte {
		if i > 0 {
			b = append(b, ',')
		}
		return strconv.AppendUint(b, uint64(ids[i]), 10)
	}, `],"count":`+strconv.Itoa(len(ids))+`,"max_model_len":`+strconv.FormatUint(uint64(cluster.MaxModelLen), 10)+"}\n")
	return nil
}

// serveDetokenize is vLLM's POST /detokenize: the text of ids.
func (p *Proxy) serveDetokenize(w http.ResponseWriter, r *http.Request) error {
	ids, cluster, body, err := p.readTokens(w, r, openai.ParseDetokenize)
	if err != nil {
		return err
	}
	defer body.Release()
	text := openai.Unbroken{Tokenizer: p.model(cluster).Tokenizer()}
	wire.Pieces(timedWriter{p, w}, len(ids), `{"prompt":"`, func(b []byte, i int) []byte { return text.AppendToken(b, ids[i], i == len(ids)-1) }, "\"}\n")
	return nil
}

// readTokens reads the body of a request that needs no node; the caller releases the body
// when it has answered: the ids are in the memory that was taken for the body. It does not
// wait for nodes, as a generation does: without any, no vocabulary is known, and that is the error.
func (p *Proxy) readTokens(w http.ResponseWriter, r *http.Request, parse func([]byte, openai.Model) ([]uint32, error)) (ids []uint32, cluster members.Cluster, body *wire.Body, err error) {
	cluster, ok := p.nodes.info()
	if !ok {
		return nil, cluster, nil, p.nodes.wait(ended)
	}
	if body, err = p.readBody(w, r); err != nil {
		return nil, cluster, nil, err
	}
	err = p.parse(r.Context(), func() (err error) { ids, err = parse(body.Bytes, p.model(cluster)); return err })
	if err != nil {
		body.Release()
	}
	return ids, cluster, body, err
}

// serveTokenizer is GET /tokenizer/{file}: the files of the tokenizer by which texts are
// counted here. A client that has them in a folder counts the same: transformers'
// AutoTokenizer.from_pretrained, vllm bench serve --tokenizer, kvferry bench --tokenizer. Those
// of --tokenizer are the files themselves; kvferry's own, which has the size of the cluster's
// vocabulary, are written as they are asked for.
func (p *Proxy) serveTokenizer(w http.ResponseWriter, r *http.Request) error {
	file := strings.TrimPrefix(r.URL.Path, "/tokenizer/") // timedHandler goes past the mux's PathValue
	var files tokenizer.Files
	if p.file != nil {
		files = p.file.Files
	} else {
		cluster, ok := p.nodes.info()
		if !ok {
			return p.nodes.wait(ended)
		}
		files = openai.NewTokenizer(cluster.Vocab).Files(int(cluster.MaxModelLen))
	}
	return wire.TokenizerFile(timedWriter{p, w}, files, file)
}
