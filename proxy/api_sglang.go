package proxy

import (
	"time"

	"kvferry/proxy/openai"
	"kvferry/proxy/sglang"
)

// native is SGLang's own endpoint.
var native = api{
	parse:  sglang.Parse,
	events: func(req *openai.Request, id string, _ time.Time) eventStream { return sglang.NewEvents(req, id) },
	answer: func(b []byte, req *openai.Request, id string, _ time.Time, results []openai.Result, _ openai.Usage) []byte {
		return sglang.AppendAnswer(b, req, id, results)
	},
}
