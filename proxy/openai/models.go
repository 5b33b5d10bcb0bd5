package openai

// ModelCard is one model of GET /v1/models, as vLLM has it: each name of the model, then the
// adapters with the model as their parent.
type ModelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"` // what the nodes call it; an adapter's path
	Parent      *string `json:"parent"`
	MaxModelLen *uint32 `json:"max_model_len"` // null of an adapter: its parent's
	Rank        uint32  `json:"rank,omitzero"` // of an adapter alone
}
