// Package model finds and reads the files that come with a model.
//
// [Find] finds them in the cache of the Hugging Face hub, by the name that users of vLLM know: Qwen/Qwen3-8B. It
// downloads nothing, and looks where huggingface_hub keeps what it has downloaded:
//
//	$HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub
//	  models--Qwen--Qwen3-8B/refs/main            the commit that was downloaded last
//	  models--Qwen--Qwen3-8B/snapshots/COMMIT/    the files, links to blobs
//
// [Read] reads config.json, under the names of Hugging Face's transformers. [Config.Shape] computes from it the
// model's number of weights and their bytes, the operations that a token costs, and the bytes of its KV.
package model
