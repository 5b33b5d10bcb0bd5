package client

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// A target is where requests go.
type target struct {
	base     string   // without /v1, for /health, /v1/models and the like
	endpoint *url.URL // of the requests
	address  string   // host and port
	head     []byte   // what the head of each request begins with
}

// targets are those of the configuration's URLs.
func (cfg *Config) targets(b Backend) ([]*target, error) {
	path := cmp.Or(cfg.Endpoint, b.Path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	var all []*target
	for _, text := range cfg.URLs {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%q: use http://HOST:PORT or https://HOST:PORT", text)
		}
		for _, b := range Backends {
			if base, has := strings.CutSuffix(strings.TrimRight(text, "/"), b.Path); has {
				return nil, fmt.Errorf("%q: leave out %s, which --backend says: name %s", text, b.Path, base)
			}
		}
		// People write the URL with /v1, as OpenAI's library wants it, and without, as vLLM's.
		text = strings.TrimRight(text, "/")
		base := strings.TrimSuffix(text, "/v1")
		endpoint := base + path
		if base != text && cfg.Endpoint != "" && !strings.HasPrefix(path, "/v1/") {
			endpoint = text + path
		}
		t := &target{base: base, address: u.Host}
		if t.endpoint, err = url.Parse(endpoint); err != nil {
			return nil, err
		}
		if u.Port() == "" {
			t.address = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
		}
		var head strings.Builder
		fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: %s\r\n", t.endpoint.RequestURI(), t.endpoint.Host)
		_ = cfg.header().Write(&head) // a Builder takes everything
		t.head = []byte(head.String())
		all = append(all, t)
	}
	return all, nil
}

// header is what every request has.
func (cfg *Config) header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"kvferry"}}
	if cfg.APIKey != "" {
		h.Set("Authorization", "Bearer "+cfg.APIKey)
	}
	for name, values := range cfg.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	return h
}

// tls is how https servers are believed.
func (cfg *Config) tls() (*tls.Config, error) {
	t := &tls.Config{InsecureSkipVerify: cfg.Insecure}
	if cfg.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	t.RootCAs = x509.NewCertPool()
	if !t.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", cfg.CAFile)
	}
	return t, nil
}

// httpClient is net/http as it serves a benchmark. It speaks HTTP/1.1, as the clients do
// that this one is compared with: over HTTP/2 all streams would share a connection.
func httpClient(t *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			// No Proxy: what stands between the client and the server is
			// part of what is measured.
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSClientConfig:        t,
			TLSHandshakeTimeout:    10 * time.Second,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    math.MaxInt,
			IdleConnTimeout:        4 * time.Second, // as package wire has it
			MaxResponseHeaderBytes: 64 << 10,
			WriteBufferSize:        16 << 10, // a 1024-token prompt is 7 KB of JSON: one write
		},
		// Another server than the one that was named is not what is to be measured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request is a copy of the headers of every request, with those of one.
func withHeader(all http.Header, id, trace string) http.Header {
	h := maps.Clone(all)
	h.Set("X-Request-Id", id)
	if trace != "" {
		h.Set("Traceparent", trace)
	}
	return h
}
