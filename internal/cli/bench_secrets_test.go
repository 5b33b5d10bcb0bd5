package cli

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/client/clienttest"
)

// TestProfileKeepsSecrets: the server that profile measures is sent the user and password of its URL, which is shown without.
func TestProfileKeepsSecrets(t *testing.T) {
	given := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case given <- r.Header.Get("Authorization"):
		default:
		}
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	defer s.Close()
	at := "http://alice:s3cretpw@" + strings.TrimPrefix(s.URL, "http://")
	code, stdout, stderr := command(t.Context(), "profile", "--model", "../../internal/model/testdata/qwen2.5-7b.json", "--from", at)
	if code == 0 || !strings.Contains(stderr, s.URL) {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	if strings.Contains(stdout+stderr, "alice") || strings.Contains(stdout+stderr, "s3cretpw") {
		t.Errorf("it shows the user or the password: %s%s", stdout, stderr)
	}
	select {
	case got := <-given:
		if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:s3cretpw")); got != want {
			t.Errorf("the server was sent %q, want %q", got, want)
		}
	default:
		t.Error("the server was not asked")
	}
}

// TestServeKeepsSecrets: no file and no line of a run has the user and password of a URL, a key, or the
// value of a --header, also if the server repeats them; and the server is sent them.
func TestServeKeepsSecrets(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("alice:s3cretpw"))
	for args, want := range map[string]string{
		"--base-url http://alice:s3cretpw@HOST":                                                   "Basic " + basic,
		"--base-url alice:s3cretpw@HOST --metrics-url http://alice:s3cretpw@HOST/metrics":         "Basic " + basic,
		"--worker-urls http://alice:s3cretpw@HOST http://alice:s3cretpw@HOST/":                    "Basic " + basic,
		"--base-url http://HOST --api-key s3cretpw --compat sglang --backend sglang-oai":          "Bearer s3cretpw",
		"--base-url http://HOST --header Authorization=s3cretpw --num-warmups 1":                  "s3cretpw",
		"--base-url http://HOST --api-key=s3cretpw --header X-Tenant=alice --label x --tag alike": "Bearer s3cretpw",
	} {
		f := clienttest.NewServer(t, &clienttest.Server{Metrics: true, Info: `{"api_key": "s3cretpw", "admin_api_key":"s3cretpw"}`})
		n := 0
		inner := f.Config.Handler
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given := r.Header.Get("Authorization")
			if given != want {
				t.Errorf("%s: %s has %q", args, r.URL.Path, given)
			}
			if r.Method == http.MethodPost {
				if n++; n%4 == 0 { // it repeats what it was sent
					http.Error(w, fmt.Sprintf("not for %q or %q", given, r.Header.Get("X-Tenant")), http.StatusTeapot)
					return
				}
			}
			inner.ServeHTTP(w, r)
		}))
		files := t.TempDir()
		dir := filepath.Join(files, "out")
		line := "bench --out " + dir + " --max-failures 40 --max-concurrency 1 --save-result --save-detailed --result-dir " + files + " --output-details --output-file " + filepath.Join(files, "sglang.jsonl") +
			" " + strings.ReplaceAll(args, "HOST", strings.TrimPrefix(s.URL, "http://")) + strings.Replace(smallLoad, "40", "12", 1)
		old := os.Args
		os.Args = append([]string{"kvferry"}, strings.Fields(line)...)
		code, stdout, stderr := command(t.Context(), os.Args[1:]...)
		os.Args = old
		s.Close()
		if code != 0 {
			t.Errorf("%s: exit %d\n%s", args, code, stderr)
		}
		outputs := map[string]string{"stdout": stdout, "stderr": stderr}
		err := filepath.WalkDir(files, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				var text []byte
				text, err = os.ReadFile(path)
				outputs[path] = string(text)
			}
			return err
		})
		if err != nil || len(outputs) < 6 {
			t.Errorf("%s: %d outputs, %v", args, len(outputs), err)
		}
		for name, text := range outputs {
			for _, secret := range []string{"s3cretpw", "alice", basic} {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("%s: %s has %q: ...%s", args, name, secret, text[max(i-60, 0):min(i+60, len(text))])
				}
			}
		}
	}
}
