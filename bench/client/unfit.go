package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"kvferry/internal/config"
)

// What waiting does not mend is a [config.Fault]: it has the field of the configuration
// that would. A server that is not ready has any other error.

// unfit is a fault of the field.
func unfit(field, format string, args ...any) error {
	return &config.Fault{Field: field, Err: fmt.Errorf(format, args...)}
}

// located says which server an error is of. Of a fault it stays one.
func (c *Client) located(err error) error {
	var fault *config.Fault
	if errors.As(err, &fault) {
		return unfit(fault.Field, "server at %s: %w", c.targets[0].base, &hidden{fault.Err, c.hide(fault.Err.Error())})
	}
	return fmt.Errorf("server at %s: %w", c.targets[0].base, &hidden{err, c.hide(err.Error())})
}

// hidden is an error in words without secrets.
type hidden struct {
	error
	text string
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.error }

// hide returns a text of the server's without the keys that it was sent: some repeat them.
func (c *Client) hide(text string) string {
	if text == "" {
		return "" // as the error of most records
	}
	for name, values := range c.cfg.header() {
		for _, v := range values {
			if key := strings.TrimPrefix(v, "Bearer "); len(key) > 3 && name != "Content-Type" && name != "User-Agent" {
				text = strings.ReplaceAll(text, strings.TrimPrefix(key, "Basic "), "...")
			}
		}
	}
	return text
}

// needsKey is the fault of a server that does not let us in; nil for other errors.
func (c *Client) needsKey(err error) error {
	status := (*StatusError)(nil)
	if !errors.As(err, &status) || status.Code != http.StatusUnauthorized && status.Code != http.StatusForbidden {
		return nil
	}
	if c.cfg.APIKey == "" && c.cfg.Header.Get("Authorization") == "" {
		return unfit("APIKey", "it wants an API key, and none is given: give one, or set OPENAI_API_KEY: %w", err)
	}
	return unfit("APIKey", "it refuses this API key: %w", err)
}

// redirected is the fault of a server that sends us elsewhere when it is asked at path;
// nil for other errors, and if it is only another path of the same server.
func (c *Client) redirected(path string, err error) error {
	status := (*StatusError)(nil)
	if !errors.As(err, &status) || status.Location == "" {
		return nil
	}
	asked, wrong := url.Parse(c.targets[0].base + path)
	if wrong != nil {
		return nil
	}
	to, wrong := asked.Parse(status.Location)
	if wrong != nil || to.Scheme == asked.Scheme && to.Host == asked.Host {
		return nil
	}
	to.RawQuery, to.Fragment = "", ""
	base, same := strings.CutSuffix(to.String(), path)
	if !same {
		base = to.Scheme + "://" + to.Host
	}
	return unfit("URL", "%w: only the server that is named is asked: name %s", err, base)
}

// handshakeWait is how long a server may take to show which of the two it speaks.
const handshakeWait = 2 * time.Second

// misspoken is the fault of a server that does not speak as its URL says: TLS, or none, or a
// certificate that is not to be believed; nil for other errors.
func (c *Client) misspoken(ctx context.Context, err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var status *StatusError
	t := c.targets[0]
	switch {
	case errors.As(err, &unknown):
		return unfit("CAFile", "nobody who is trusted here has signed its certificate: name a file with the certificate of who has, or do not have it checked (--insecure): %w", err)
	case errors.As(err, &name):
		return unfit("URL", "its certificate is of another name: ask by one that it has, or do not have it checked (--insecure): %w", err)
	case errors.As(err, &certificate):
		return unfit("Insecure", "its certificate is not valid; with this it is not checked: %w", err)
	case errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &record):
		return unfit("URL", "it does not speak TLS: write http://%s: %w", t.endpoint.Host, err)
	case errors.As(err, &alert):
		return unfit("URL", "it ends the TLS handshake, as one does that wants a certificate of the client or another version: %w", err)
	case t.endpoint.Scheme == "https":
		if closes(err) && t.speaksPlainly(ctx) {
			return unfit("URL", "it does not speak TLS: write http://%s: %w", t.endpoint.Host, err)
		}
	case errors.As(err, &status):
		// Servers with TLS that answer a plain request do so in words: Go's, nginx, Apache.
		if said := strings.ToUpper(status.Message); status.Code == http.StatusBadRequest && (strings.Contains(said, "HTTPS") || strings.Contains(said, "SSL")) {
			return unfit("URL", "it speaks TLS: write https://%s: %w", t.endpoint.Host, err)
		}
	case closes(err) || strings.Contains(err.Error(), "malformed HTTP"): // others close, or answer with an alert
		if t.speaksTLS(ctx) {
			return unfit("URL", "it speaks TLS: write https://%s: %w", t.endpoint.Host, err)
		}
	}
	return nil
}

// closes reports whether a server has closed the connection instead of an answer.
func closes(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// speaksTLS reports whether a server does a handshake.
func (t *target) speaksTLS(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was asked
	return true
}

// speaksPlainly reports whether a server answers HTTP without TLS. It is told nothing that
// would be secret.
func (t *target) speaksPlainly(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	first := make([]byte, len("HTTP/"))
	if _, err = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", t.endpoint.Host); err == nil {
		_, err = io.ReadFull(conn, first)
	}
	return err == nil && string(first) == "HTTP/"
}

// listed are the first few models that the server listed, in brackets; empty if it listed none, or
// this one.
func (c *Client) listed(model string) string {
	const few = 5
	n := len(c.models)
	switch {
	case n == 0 || slices.Contains(c.models, model):
		return ""
	case n > few:
		return fmt.Sprintf(" (it lists %s and %d more)", strings.Join(c.models[:few], ", "), n-few)
	}
	return " (it lists " + strings.Join(c.models, ", ") + ")"
}

// notThere is the fault of a server that has no such path, or no such model, or speaks another
// API there; nil for other errors.
func (c *Client) notThere(model string, err error) error {
	status, fault := (*StatusError)(nil), (*faultError)(nil)
	switch {
	case errors.As(err, &fault) && (fault.kind == FaultGarbage || fault.kind == FaultEmpty):
		return unfit("Backend", "%s: what comes from %s is no answer of this API: name the right one, or another --endpoint: %w", c.backend.Name, c.targets[0].endpoint.Path, err)
	case !errors.As(err, &status):
	case status.Code == http.StatusNotFound && strings.Contains(strings.ToLower(status.Message), "model"):
		return unfit("Model", "%q: name one that it has%s: %w", model, c.listed(model), err)
	case status.Code == http.StatusNotFound, status.Code == http.StatusMethodNotAllowed, status.Code/100 == 3:
		return unfit("Endpoint", "%s: it has no such path for this API: name the right one, or another --backend: %w", c.targets[0].endpoint.Path, err)
	}
	return nil
}
