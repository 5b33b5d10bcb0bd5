package sglang

// ModelInfo is SGLang's GET /model_info.
type ModelInfo struct {
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
