package proxy

import (
	"fmt"
	"net/http"
	"strings"

	"kvferry/proxy/members"
	"kvferry/proxy/openai"
	"kvferry/proxy/sglang"
	"kvferry/proxy/wire"
)

// serveModels is GET /v1/models: the one model that all nodes serve, by all its names.
func (p *Proxy) serveModels(w http.ResponseWriter, _ *http.Request, c members.Cluster) error {
	wire.JSON(w, struct {
		Object string             `json:"object"`
		Data   []openai.ModelCard `json:"data"`
	}{"list", p.adapters.Cards(p.model(c), c.Model)})
	return nil
}

// serveModel is GET /v1/models/{id}; ids may have slashes, as those of Hugging Face have.
func (p *Proxy) serveModel(w http.ResponseWriter, r *http.Request, c members.Cluster) error {
	id := strings.TrimPrefix(r.URL.Path, "/v1/models/") // timedHandler goes past the mux's PathValue
	for _, card := range p.adapters.Cards(p.model(c), c.Model) {
		if card.ID == id {
			wire.JSON(w, card)
			return nil
		}
	}
	return &openai.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("model: %q is not served here; GET /v1/models lists what is", openai.Abbreviate(id)),
	}
}

func (p *Proxy) serveModelInfo(w http.ResponseWriter, _ *http.Request, c members.Cluster) error {
	wire.JSON(w, sglang.ModelInfo{
		ModelPath: c.Model, TokenizerPath: c.Model, IsGeneration: true, WeightVersion: "default",
		ServedModelName: p.servedName(c), MaxModelLen: c.MaxModelLen,
	})
	return nil
}

// servedName is what answers and metrics call the model: the first of the proxy's own names,
// or the nodes'.
func (p *Proxy) servedName(c members.Cluster) string { return p.nodes.labelOf(c.Model) }

// model is what requests to a cluster are checked against.
func (p *Proxy) model(c members.Cluster) openai.Model {
	return openai.Model{
		Name: p.servedName(c), Aliases: p.cfg.ServedNames[min(len(p.cfg.ServedNames), 1):], Adapters: p.adapters.Names(),
		MaxModelLen: c.MaxModelLen, Vocab: c.Vocab, File: p.file,
	}
}
