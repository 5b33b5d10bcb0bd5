package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// serveTokenize is vLLM's POST /tokenize: the ids of a prompt or a conversation.
func (p *Proxy) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Model    *string         `json:"model"`
		Prompt   json.RawMessage `json:"prompt"`
		Messages []messageBody   `json:"messages"`
	}
	cluster, hold, ok := p.readSmall(w, r, &b)
	if !ok {
		return
	}
	defer hold.release()
	err := checkModel(b.Model, cluster)
	var ids []uint32
	switch {
	case err != nil:
	case b.Messages != nil:
		err = p.parse(func() (err error) { ids, err = parseMessages(b.Messages, cluster.tokenizer()); return err })
	case string(b.Prompt) == `""`:
	default:
		err = p.parse(func() (err error) { ids, err = parsePrompt("prompt", b.Prompt, cluster.tokenizer()); return err })
	}
	if err != nil {
		writeError(w, toAPIError(err))
		return
	}
	p.writePieces(w, len(ids), `{"tokens":[`, func(b []byte, i int) []byte {
		if i > 0 {
			b = append(b, ',')
		}
		return strconv.AppendUint(b, uint64(ids[i]), 10)
	}, `],"count":`+strconv.Itoa(len(ids))+`,"max_model_len":`+uintString(cluster.MaxModelLen)+"}\n")
}

// serveDetokenize is vLLM's POST /detokenize: the text of ids.
func (p *Proxy) serveDetokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Model  *string         `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	cluster, hold, ok := p.readSmall(w, r, &b)
	if !ok {
		return
	}
	defer hold.release()
	err := checkModel(b.Model, cluster)
	var ids []uint32
	if err == nil && string(b.Tokens) != "[]" {
		if len(b.Tokens) == 0 || b.Tokens[0] != '[' {
			err = badField("tokens", "want a list of token ids")
		} else {
			err = p.parse(func() (err error) { ids, err = parsePrompt("tokens", b.Tokens, cluster.tokenizer()); return err })
		}
	}
	if err != nil {
		writeError(w, toAPIError(err))
		return
	}
	tok := cluster.tokenizer()
	p.writePieces(w, len(ids), `{"prompt":"`, func(b []byte, i int) []byte { return tok.AppendToken(b, ids[i]) }, "\"}\n")
}

// pieceBytes is what writePieces writes at a time.
const pieceBytes = 32 << 10

// writePieces writes n pieces between head and tail, as JSON. A list of two million
// ids is not made into one text first, and a client has timeouts.answer for each 32
// KiB of it, not for all.
func (p *Proxy) writePieces(w http.ResponseWriter, n int, head string, piece func(b []byte, i int) []byte, tail string) {
	w.Header().Set("Content-Type", "application/json")
	b := append(make([]byte, 0, min(pieceBytes+64, len(head)+16*n+len(tail))), head...)
	for i := range n {
		if len(b) >= pieceBytes {
			p.answerSoon(w)
			if _, err := w.Write(b); err != nil {
				return
			}
			b = b[:0]
		}
		b = piece(b, i)
	}
	p.answerSoon(w)
	_, _ = w.Write(append(b, tail...))
}

// readSmall reads the body of a request that needs no node; the caller releases the
// hold when it is done with v. It has answered the client if it returns false.
func (p *Proxy) readSmall(w http.ResponseWriter, r *http.Request, v any) (clusterInfo, *bodyHold, bool) {
	cluster, ok := p.registry.info()
	if !ok {
		writeError(w, toAPIError(p.registry.wait(ended)))
		return cluster, nil, false
	}
	body, err := p.readBody(w, r)
	if err != nil {
		writeError(w, toAPIError(err))
		return cluster, nil, false
	}
	if err := p.parse(func() error { return parseJSON(body.bytes, v) }); err != nil {
		body.release()
		writeError(w, toAPIError(err))
		return cluster, nil, false
	}
	return cluster, body.hold, true
}

func uintString(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
