package client_test

import (
	"context"
	"fmt"
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

	// Output:
	// request 0: ok, 2 tokens
	// request 1: ok, 2 tokens
	// request 2: ok, 2 tokens
	// request 3: ok, 2 tokens
	// 4 of 4 were served, 8 tokens for 32; TTFT known: true
}
