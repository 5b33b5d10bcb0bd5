// Package modelconfig reads the config.json that comes with a model, under the names of
// Hugging Face's transformers, and says what follows from it: how many weights the model has
// and how many bytes they take, how many operations a token costs, how many bytes its KV has.
package modelconfig
