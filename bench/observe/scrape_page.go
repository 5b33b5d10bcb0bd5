package observe

import (
	"cmp"
	"net"
	"net/url"
	"strings"
)

// SamePage reports whether two URLs are of one page, whose counts would be added up: of the same
// server, whatever it is called there.
func SamePage(a, b string) bool {
	one, err1 := url.Parse(a)
	two, err2 := url.Parse(b)
	return err1 == nil && err2 == nil && sameServer(one, two) && cmp.Or(one.Path, "/") == cmp.Or(two.Path, "/") && one.RawQuery == two.RawQuery
}

// SameServer reports whether two URLs are of one server: the same scheme, host and port, which may
// be the scheme's own. This machine is one host by all the names of its loopback interface.
func SameServer(a, b string) bool {
	one, err1 := url.Parse(a)
	two, err2 := url.Parse(b)
	return err1 == nil && err2 == nil && sameServer(one, two)
}

func sameServer(a, b *url.URL) bool { return a.Scheme == b.Scheme && address(a) == address(b) }

// address is where a URL's server listens, written in one way.
func address(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if ip := net.ParseIP(host); ip != nil {
		host = ip.String() // ::1 has other spellings
	}
	switch host {
	case "localhost", "::1":
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
}
