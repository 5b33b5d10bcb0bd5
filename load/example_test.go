package load_test

import (
	"fmt"
	"time"

	"kvferry/load"
)

// The beginning of a published row: 8 requests a second on average.
func Example() {
	asked, err := load.Spec{Kind: "256/q8", Requests: 200, Vocab: 151936}.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer asked.Close()
	for range 4 {
		r, ok, err := asked.Next()
		if !ok || err != nil {
			fmt.Println(ok, err)
			return
		}
		fmt.Printf("%v: %d tokens, and %d wanted\n", r.At.Round(time.Millisecond), len(r.Prompt), r.MaxTokens)
	}

	// Output:
	// 0s: 247 tokens, and 6 wanted
	// 101ms: 240 tokens, and 6 wanted
	// 259ms: 250 tokens, and 6 wanted
	// 375ms: 246 tokens, and 6 wanted
}

// The requests of a random load, at times of one's own.
func ExamplePaced() {
	asked, err := load.Spec{Requests: 3, Rate: 1, Burstiness: 1, InputLen: 100, OutputLen: 10, Vocab: 32000}.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer asked.Close()
	all, err := load.Collect(load.Paced(asked.Source, &clockwork{}))
	if err != nil {
		fmt.Println(err)
	}
	for _, r := range all {
		fmt.Println(r.At, len(r.Prompt))
	}

	// Output:
	// 0s 100
	// 1s 100
	// 2s 100
}
