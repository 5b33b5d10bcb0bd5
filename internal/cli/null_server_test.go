package cli

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestNullServer: it says where it is, serves as it is told, and says at its end how late it
// was.
func TestNullServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	code := make(chan int, 1)
	var text strings.Builder
	go func() {
		code <- kvferry(false).Run(ctx, []string{"null-server", "--listen", "127.0.0.1:0", "--ttft", "1ms", "--itl", "1ms", "--key", "k", "--strict"}, in, io.Discard)
		in.Close()
	}()
	buf := make([]byte, 4096)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	text.Write(buf[:n])
	_, url, _ := strings.Cut(text.String(), " at ")
	url, _, _ = strings.Cut(url, ": TTFT")
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"a","max_tokens":3,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || strings.Count(string(answer), "tok") != 3 {
		t.Errorf("%s: %s, %v", resp.Status, answer, err)
	}
	cancel()
	rest, err := io.ReadAll(out)
	if err != nil || !strings.Contains(string(rest), "3 tokens; late by") || <-code != 0 {
		t.Errorf("%s, %v", rest, err)
	}
}
