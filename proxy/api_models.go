package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvferry/proxy/members"
	"kvferry/proxy/openai"
)

// modelCard is one model of GET /v1/models, as vLLM has it: each name of the model, then the
// adapters with the model as their parent.
type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"` // what the nodes call it; an adapter's path
	Parent      *string `json:"parent"`
	MaxModelLen *uint32 `json:"max_model_len"` // null of an adapter: its parent's
}

func (p *Proxy) modelCards(c members.Cluster) []modelCard {
	now := time.Now().Unix()
	m := p.model(c)
	var cards []modelCard
	for _, name := range append([]string{m.Name}, m.Aliases...) {
		cards = append(cards, modelCard{ID: name, Object: "model", Created: now, OwnedBy: "kvferry", Root: c.Model, MaxModelLen: &c.MaxModelLen})
	}
	for _, l := range p.cfg.LoRAs {
		cards = append(cards, modelCard{ID: l.Name, Object: "model", Created: now, OwnedBy: "kvferry", Root: l.Path, Parent: &m.Name})
	}
	return cards
}

// serveModels is GET /v1/models: the one model that all nodes serve, by all its names.
func (p *Proxy) serveModels(w http.ResponseWriter, _ *http.Request) {
	// Clients wait for this list until it is there, and take an empty one for ready.
	if err := p.Ready(); err != nil {
		writeError(w, toAPIError(err))
		return
	}
	c, _ := p.nodes.info()
	writeJSON(w, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", p.modelCards(c)})
}

// serveModel is GET /v1/models/{id}; ids may have slashes, as those of Hugging Face have.
func (p *Proxy) serveModel(w http.ResponseWriter, r *http.Request) {
	if err := p.Ready(); err != nil {
		writeError(w, toAPIError(err))
		return
	}
	c, _ := p.nodes.info()
	cards := p.modelCards(c)
	id := strings.TrimPrefix(r.URL.Path, "/v1/models/") // timedHandler goes past the mux's PathValue
	i := slices.IndexFunc(cards, func(m modelCard) bool { return m.ID == id })
	if i < 0 {
		writeError(w, &openai.Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
			Message: fmt.Sprintf("model: %q is not served here; GET /v1/models lists what is", openai.Abbreviate(id)),
		})
		return
	}
	writeJSON(w, cards[i])
}

// modelInfo is SGLang's GET /model_info.
type modelInfo struct {
	ModelPath               string  `json:"model_path"`
	TokenizerPath           string  `json:"tokenizer_path"`
	IsGeneration            bool    `json:"is_generation"`
	PreferredSamplingParams *string `json:"preferred_sampling_params"` // none
	WeightVersion           string  `json:"weight_version"`
	HasImageUnderstanding   bool    `json:"has_image_understanding"`
	HasAudioUnderstanding   bool    `json:"has_audio_understanding"`
	ServedModelName         string  `json:"served_model_name"`
	MaxModelLen             uint32  `json:"max_model_len"`
}

func (p *Proxy) serveModelInfo(w http.ResponseWriter, _ *http.Request) {
	if err := p.Ready(); err != nil {
		writeError(w, toAPIError(err))
		return
	}
	c, _ := p.nodes.info()
	writeJSON(w, modelInfo{
		ModelPath: c.Model, TokenizerPath: c.Model, IsGeneration: true, WeightVersion: "default",
		ServedModelName: p.servedName(c), MaxModelLen: c.MaxModelLen,
	})
}
