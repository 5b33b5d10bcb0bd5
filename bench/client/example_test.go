package client_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"

	"kvferry/bench/client"
	"kvferry/load"
)

// A server of two tokens, asked four times by one user who waits for each answer.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const token = `data: {"choices":[{"text":" ferry"}]}` + "\n\n"
		const usage = `data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}` + "\n\n"
		fmt.Fprint(w, strings.Repeat(token, 2)+usage+"data: [DONE]\n\n")
	}))
	defer server.Close()

	asked, err := load.Spec{Requests: 4, Rate: math.Inf(1), Burstiness: 1, InputLen: 8, OutputLen: 2, Seed: 1, Vocab: 32000}.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer asked.Close()
	asked.InFlight = 1 // a closed loop; without it all four would be sent at once

	c := client.New(client.Config{URL: server.URL})
	defer c.Close()
	var meter client.Meter
	took, err := c.Run(context.Background(), "a-model", asked, func(r *client.Record) {
		fmt.Printf("request %d: %s, %d tokens\n", r.Index, r.Status, len(r.TokenTimes))
		meter.Add(r)
	})
	if err != nil {
		fmt.Println(err)
	}
	m := meter.Metrics(took.Seconds())
	fmt.Printf("%d of 4 were served, %d tokens for %d; TTFT known: %t\n", m.Successful, m.GeneratedTokens, m.InputTokens, m.MeanTTFTMS > 0)

	// Unordered output:
	// request 0: ok, 2 tokens
	// request 1: ok, 2 tokens
	// request 2: ok, 2 tokens
	// request 3: ok, 2 tokens
	// 4 of 4 were served, 8 tokens for 32; TTFT known: true
}

// A server that one knows nothing of: is it ready, which model has it, what does it take?
func ExampleClient_Probe() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"strict-7b"}]}`)
		case r.URL.Path != "/v1/completions":
			http.NotFound(w, r)
		case bytes.Contains(body, []byte("ignore_eos")) || bytes.Contains(body, []byte("return_breakdown")):
			http.Error(w, `{"error":{"message":"unknown field"}}`, http.StatusBadRequest)
		default:
			fmt.Fprint(w, `data: {"choices":[{"text":" ferry","finish_reason":"stop"}]}`+"\n\n"+`data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1}}`+"\n\ndata: [DONE]\n\n")
		}
	}))
	defer server.Close()

	c := client.New(client.Config{URL: server.URL + "/v1"})
	defer c.Close()
	model, err := c.Ready(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	found, err := c.Probe(context.Background(), model, client.Needs{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s takes %s, tokens are counted by %s\n", found.Model, found.Prompt, found.CountedBy)
	for _, refusal := range found.Refused {
		fmt.Printf("%s: %s\n", refusal.Field, refusal.Reason)
	}
	for _, note := range found.Notes {
		fmt.Println(note)
	}

	// Output:
	// strict-7b takes token ids, tokens are counted by usage
	// ignore_eos: HTTP 400 Bad Request: unknown field
	// return_breakdown: HTTP 400 Bad Request: unknown field
	// the answer ended early: lengths are the server's, not the load's
}
