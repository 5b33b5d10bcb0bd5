package observe

import "testing"

// TestSame: which URLs are of one server, and of one page.
func TestSame(t *testing.T) {
	for _, c := range []struct {
		a, b         string
		server, page bool
	}{
		{"http://localhost:8000/metrics", "http://127.0.0.1:8000/metrics", true, true},
		{"http://LocalHost:8000/metrics", "http://[::1]:8000/metrics", true, true},
		{"http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000/", true, true},
		{"http://a/metrics", "http://A:80/metrics", true, true},
		{"https://a/metrics", "https://a:443/metrics", true, true},
		{"http://a:1/0/metrics", "http://a:1/1/metrics", true, false},
		{"http://a:1/metrics?engine=0", "http://a:1/metrics?engine=1", true, false},
		{"http://localhost:8000", "http://127.0.0.1:8001", false, false},
		{"http://localhost:8000", "http://127.0.0.2:8000", false, false},
		{"http://a:80", "https://a:80", false, false},
		{"http://a:8000", "http://b:8000", false, false},
		{"http://a:x", "http://a:x", false, false},
	} {
		if s, p := SameServer(c.a, c.b), SamePage(c.a, c.b); s != c.server || p != c.page {
			t.Errorf("%s and %s: one server: %t, one page: %t; want %t, %t", c.a, c.b, s, p, c.server, c.page)
		}
	}
}
