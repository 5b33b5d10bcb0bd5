package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

const addressForms = "write host:port, like 127.0.0.1:8000, [::1]:8000 or :0 for a free port"

// Address reads host:port. The host may be empty, a name or an IP address, one of IPv6 in
// brackets; the port is a number up to 65535.
func Address(text string) (host string, port uint16, err error) {
	if text == "" {
		return "", 0, errors.New("none given: " + addressForms)
	}
	host, number, err := net.SplitHostPort(text)
	switch {
	case strings.Contains(text, "://"):
		return "", 0, fmt.Errorf("%q: it is no URL: %s", text, addressForms)
	case err != nil && strings.Count(text, ":") > 1 && !strings.Contains(text, "["):
		return "", 0, fmt.Errorf("%q: an IPv6 address stands in brackets: %s", text, addressForms)
	case err != nil:
		return "", 0, fmt.Errorf("%q: %s", text, addressForms)
	case strings.ContainsAny(host, " \t\r\n/?#@"):
		return "", 0, fmt.Errorf("%q: %q is no host: %s", text, host, addressForms)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q: the port is %q: use a number up to 65535", text, number)
	}
	return host, uint16(n), nil
}

// PeerAddress reads host:port for others to dial: a host that is empty, 0.0.0.0 or [::] is
// this machine only to itself.
func PeerAddress(text string) error {
	host, _, err := Address(text)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("%q: names no host, and others are told to dial it: write the address that they reach, like 10.0.0.3:9100", text)
	}
	return nil
}

// ServerAddress reads host:port of a server to dial, whose port is not 0.
func ServerAddress(text string) error {
	host, port, err := Address(text)
	switch {
	case err != nil:
		return err
	case host == "":
		return fmt.Errorf("%q: names no host: write host:port, like 10.0.0.1:%d", text, max(port, 1))
	case port == 0:
		return fmt.Errorf("%q: names no port: write the one that the server listens at", text)
	}
	return nil
}

// BaseURL reads the address of an HTTP server, adds http:// where there is no scheme, and drops a
// trailing slash.
func BaseURL(text string) (string, error) {
	full := text
	if !strings.Contains(text, "://") {
		full = "http://" + text
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: it is no server's address: write host:port or http://host:port", withoutUser(text))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("%q: the port is %q: use a number from 1 to 65535", withoutUser(text), port)
		}
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// withoutUser hides what may be the user and password of a text that is no URL.
func withoutUser(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		return "..." + text[i:]
	}
	return text
}

// PublicURL is BaseURL for an address that others are shown, which has no user and no password.
func PublicURL(text string) (string, error) {
	base, err := BaseURL(text)
	if public, user := Credentials(base); user != "" {
		return "", fmt.Errorf("%q: metrics, logs and files show it: leave user and password out", public)
	}
	return base, err
}

// secretUser matches the user and the password of URLs and of addresses without a scheme.
var secretUser = regexp.MustCompile(`(://)[^/\s]*@|[^\s/,="'\[:]+:[^\s/]*@`)

// Public returns a text with "..." for the user and the password of each URL in it, for files and logs.
func Public(text string) string { return secretUser.ReplaceAllString(text, "${1}...@") }

// Credentials splits a URL into the URL without its user and password, and the value of an Authorization
// header that has them, empty if there are none.
func Credentials(text string) (public, authorization string) {
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		return text, ""
	}
	password, _ := u.User.Password()
	authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	u.User = nil
	return u.String(), authorization
}

// Listen listens at a field's address. The [Invalid] that it returns says in plain words
// why it cannot.
func Listen(field, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, Faults{{field, fmt.Errorf("%q: %w", addr, CannotListen(err))}}.Err("")
	}
	return l, nil
}

// CannotListen says in plain words why net.Listen failed, and unwraps to its error.
func CannotListen(err error) error {
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return plain{"another process listens there: end it, or choose another port", err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return plain{"no interface of this machine has that address: use one of its own (ip address)", err}
	case errors.Is(err, syscall.EACCES):
		return plain{"this user may not listen there: choose a port from 1024", err}
	case errors.As(err, &dns):
		return plain{fmt.Sprintf("the host %q is not known here: write an address of this machine", dns.Name), err}
	}
	return err
}

// plain is an error in other words.
type plain struct {
	text  string
	cause error
}

func (p plain) Error() string { return p.text }

func (p plain) Unwrap() error { return p.cause }
