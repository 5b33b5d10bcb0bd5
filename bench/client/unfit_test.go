package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/bench/nullserver"
	"kvferry/internal/config"
)

// expired is a certificate that was valid in 2020, and the file that says to trust it.
func expired(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2020, 2, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// quiet is a server that is yet to be started, and logs nothing of handshakes that fail.
func quiet(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	return s
}

// closing is a server that speaks TLS, and closes the connections of who does not.
func closing(t *testing.T, certificate tls.Certificate) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.(*tls.Conn).HandshakeContext(t.Context()) // it may be none
				_, _ = c.Read(make([]byte, 1))                  // until the other side has seen it
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestUnfit: what waiting does not mend is said at once, by the field that does.
func TestUnfit(t *testing.T) {
	plain, secure, old := quiet(t, http.NotFoundHandler()), quiet(t, http.NotFoundHandler()), quiet(t, http.NotFoundHandler())
	certificateOfOld, oldFile := expired(t)
	old.TLS = &tls.Config{Certificates: []tls.Certificate{certificateOfOld}}
	old.StartTLS()
	secure.StartTLS()
	plain.Start()
	moved := quiet(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://api.example.com"+r.URL.Path, http.StatusPermanentRedirect)
	}))
	moved.Start()
	page := quiet(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>welcome</html>") }))
	page.Start()
	trusted := certificate(t, secure)
	for _, c := range []struct {
		name  string
		cfg   Config
		field string
		says  []string
	}{
		{"a CA that nobody knows", Config{URL: secure.URL}, "CAFile", []string{"nobody who is trusted here", "--insecure"}},
		{"another name", Config{URL: strings.Replace(secure.URL, "127.0.0.1", "localhost", 1), CAFile: trusted}, "URL", []string{"of another name", "example.com, not localhost", "--insecure"}},
		{"an old certificate", Config{URL: old.URL, CAFile: oldFile}, "Insecure", []string{"not valid", "expired"}},
		{"no TLS", Config{URL: strings.Replace(plain.URL, "http:", "https:", 1)}, "URL", []string{"write " + plain.URL}},
		{"no TLS, and no word", Config{URL: strings.Replace(null(t, nullserver.Config{}).URL(), "http:", "https:", 1)}, "URL", []string{"it does not speak TLS: write http://127.0.0.1"}},
		{"TLS", Config{URL: strings.Replace(secure.URL, "https:", "http:", 1), Model: "m"}, "URL", []string{"write " + secure.URL}},
		{"TLS, and no word", Config{URL: closing(t, certificateOfOld), Model: "m"}, "URL", []string{"it speaks TLS: write https://127.0.0.1"}},
		{"a page", Config{URL: page.URL}, "URL", []string{"no list of models", "--model", "welcome"}},
		{"elsewhere", Config{URL: moved.URL, Model: "m"}, "URL", []string{"redirects to https://api.example.com/health", "name https://api.example.com"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			k := New(c.cfg)
			defer k.Close()
			_, err := k.Ready(ctx)
			var fault *config.Fault
			if !errors.As(err, &fault) || fault.Field != c.field {
				t.Fatalf("%v, want a fault of %s", err, c.field)
			}
			for _, part := range append(c.says, "server at "+c.cfg.URL) {
				if !strings.Contains(fault.Err.Error(), part) {
					t.Errorf("%v does not say %q", fault, part)
				}
			}
		})
	}
}

// TestUnfitRequests: the same of the first request, where /health and /v1/models said nothing.
func TestUnfitRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		field  string
		says   string
	}{
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "//api.example.com"+r.URL.Path, http.StatusTemporaryRedirect)
		}, "URL", "name http://api.example.com"},
		{"another path", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"/", http.StatusTemporaryRedirect)
		}, "Endpoint", "it redirects to /v1/completions/"},
		{"no such model", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"The model 'm' does not exist."}}`, http.StatusNotFound)
		}, "Model", `"m": name one that it has`},
		{"another API", func(w http.ResponseWriter, _ *http.Request) { says("data: {\"generated\":\"x\"}\n\n", doneAt)(w) }, "Backend", "openai: what comes from /v1/completions is no answer of this API"},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>\nwelcome\n</html>\n") }, "Backend", "no stream of events"},
		{"no such method", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusMethodNotAllowed) }, "Endpoint", "/v1/completions: it has no such path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet { // a page for people
					http.Redirect(w, r, "/welcome", http.StatusFound)
					return
				}
				c.answer(w, r)
			}))
			defer s.Close()
			k := New(Config{URL: s.URL, Model: "m"})
			defer k.Close()
			model, err := k.Ready(t.Context())
			if err != nil || model != "m" {
				t.Fatalf("%q, %v", model, err)
			}
			_, err = k.Probe(t.Context(), model, Needs{})
			var fault *config.Fault
			if !errors.As(err, &fault) || fault.Field != c.field || !strings.Contains(fault.Err.Error(), c.says) {
				t.Errorf("%v, want %s: %q", err, c.field, c.says)
			}
		})
	}
}

// TestSampling: what no backend takes, or not this one, is named.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		backend string
		params  []Parameter
		want    string
	}{
		{"vllm", []Parameter{{"top_k", 5}, {"min_p", 0.1}, {"frequency_penalty", -1}}, ""},
		{"sglang", []Parameter{{"top_p", 0.5}, {"temperature", 1}}, ""},
		{"sglang", []Parameter{{"top_k", 5}}, "Sampling.top_k: 5: it is for OpenAI's API, and sglang is SGLang's own"},
		{"openai", []Parameter{{"top_k", 0.5}}, "Sampling.top_k: 0.5: write a whole number"},
		{"openai", []Parameter{{"seed", 1}}, "Sampling.seed: 1: it is no parameter of sampling"},
		{"openai", []Parameter{{"top_p", 1}, {"top_p", 1}}, "given twice"},
	} {
		err := Config{URL: "http://localhost", Backend: c.backend, Sampling: c.params}.Validate()
		if got := fmt.Sprint(err); (c.want == "") != (err == nil) || !strings.Contains(got, c.want) {
			t.Errorf("%s %v: %v, want %q", c.backend, c.params, err, c.want)
		}
	}
}
