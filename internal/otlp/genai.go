package otlp

import (
	"encoding/binary"
	"math/rand/v2"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// A Generation is what the semantic conventions for generative AI have attributes for
// (OpenTelemetry's v1.41.0), of a request for text. What is zero is not known and left
// out.
type Generation struct {
	Chat         bool // gen_ai.operation.name is chat, and else text_completion
	Model        string
	Provider     string // gen_ai.provider.name: whose API is spoken
	Address      string // of the server: its host
	Port         int
	RequestID    string // gen_ai.response.id
	MaxTokens    int
	Streams      bool
	InputTokens  int
	CachedTokens int // of these, found in a cache
	OutputTokens int
	Finish       string  // finish reason
	FirstChunk   float64 // seconds from sending to the first chunk
	ErrorType    string  // error.type
}

// Name is the name of its span: the operation and the model.
func (g *Generation) Name() string {
	name := g.operation().Value.AsString()
	if g.Model != "" {
		name += " " + g.Model
	}
	return name
}

func (g *Generation) operation() attribute.KeyValue {
	if g.Chat {
		return semconv.GenAIOperationNameChat
	}
	return semconv.GenAIOperationNameTextCompletion
}

// Attributes are those of its span, by the conventions' names. A count of 0 is left out like what is
// not known.
func (g *Generation) Attributes() []attribute.KeyValue {
	all := []attribute.KeyValue{g.operation(), semconv.GenAIRequestStream(g.Streams)}
	text := func(of func(string) attribute.KeyValue, v string) {
		if v != "" {
			all = append(all, of(v))
		}
	}
	number := func(of func(int) attribute.KeyValue, v int) {
		if v != 0 {
			all = append(all, of(v))
		}
	}
	text(semconv.GenAIProviderNameKey.String, g.Provider)
	text(semconv.GenAIRequestModel, g.Model)
	text(semconv.GenAIResponseID, g.RequestID)
	text(semconv.ServerAddress, g.Address)
	text(semconv.ErrorTypeKey.String, g.ErrorType)
	text(func(v string) attribute.KeyValue { return semconv.GenAIResponseFinishReasons(v) }, g.Finish)
	number(semconv.ServerPort, g.Port)
	number(semconv.GenAIRequestMaxTokens, g.MaxTokens)
	number(semconv.GenAIUsageInputTokens, g.InputTokens)
	number(semconv.GenAIUsageOutputTokens, g.OutputTokens)
	number(semconv.GenAIUsageCacheReadInputTokens, g.CachedTokens)
	if g.FirstChunk > 0 {
		all = append(all, semconv.GenAIResponseTimeToFirstChunk(g.FirstChunk))
	}
	return all
}

// Host takes a server's host and port from its URL; the scheme's port if it has none.
func Host(server string) (address string, port int) {
	u, err := url.Parse(server)
	if err != nil {
		return "", 0
	}
	if port, err = strconv.Atoi(u.Port()); err != nil {
		port = map[string]int{"http": 80, "https": 443}[u.Scheme]
	}
	return u.Hostname(), port
}

// Child is a new span of a parent's trace, or of a trace of its own without one.
func Child(parent trace.SpanContext) trace.SpanContext {
	c := trace.SpanContextConfig{TraceID: parent.TraceID(), TraceFlags: trace.FlagsSampled}
	if !c.TraceID.IsValid() {
		c.TraceID = trace.TraceID(random16())
	}
	for c.SpanID == (trace.SpanID{}) {
		half := random16()
		copy(c.SpanID[:], half[:])
	}
	return trace.NewSpanContext(c)
}

// random16 are 16 bytes that are not all 0, which no id may be. They are no secret, and need no
// more than to differ.
func random16() (b [16]byte) {
	for b == [16]byte{} {
		binary.BigEndian.PutUint64(b[:8], rand.Uint64())
		binary.BigEndian.PutUint64(b[8:], rand.Uint64())
	}
	return b
}
