package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// timeout is for one POST, as OTLP's specification has it.
const timeout = 10 * time.Second

// newTransport is an exporter's own, so that its connections end with it: the library's is
// shared by all of a process and keeps them. With a transport of ours the library leaves
// certificates to us; they come from the same variables.
func newTransport() (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if file := variable("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s: %w", file, errNoCertificate)
		}
	}
	if file := variable("CLIENT_CERTIFICATE"); file != "" {
		pair, err := tls.LoadX509KeyPair(file, variable("CLIENT_KEY"))
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

var errNoCertificate = errors.New("no certificate in PEM in it")

// variable is one of OTLP exporters' variables: that for traces, or that for all.
func variable(name string) string {
	if v := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
}
