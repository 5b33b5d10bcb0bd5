package upstream

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// This file is how a decode engine's connector says where the time of a transfer went while its engine
// streams the answer, in which vLLM has no place for that: it POSTs an object to the URL that it was given,
// once. Only kvferry's connector is given one.

// ReportPath is below which such URLs are; a word follows that nobody can guess.
const ReportPath = "/kvferry/reports/"

// maxReport is how long a report may be, in bytes.
const maxReport = 4 << 10

// ofKvferry reports whether it was kvferry's connector that made kv_transfer_params: no other holds blocks
// by a number.
func ofKvferry(params json.RawMessage) bool {
	var p struct {
		Hold json.RawMessage `json:"remote_hold"`
	}
	return json.Unmarshal(params, &p) == nil && p.Hold != nil
}

// wantReport adds to kv_transfer_params where the connector reports of a request.
func (e *Engines) wantReport(r *Request, v *visit, params json.RawMessage) json.RawMessage {
	base := e.reportsTo(v.engine)
	var fields map[string]json.RawMessage
	if base == "" || json.Unmarshal(params, &fields) != nil {
		return params
	}
	e.endReport(r)
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	r.word, r.reported = hex.EncodeToString(b[:]), make(chan connector, 1)
	e.reports.Store(r.word, r.reported)
	fields["report_url"], _ = json.Marshal(base + ReportPath + r.word) // texts always encode
	params, _ = json.Marshal(fields)
	return params
}

// reportsTo is this proxy's base URL as an engine reaches it; empty if it does not, because the proxy only
// listens to its own machine and the engine is on another.
func (e *Engines) reportsTo(en *engine) string {
	if e.cfg.Report != "" {
		return e.cfg.Report
	}
	e.mu.Lock()
	here := en.here
	e.mu.Unlock()
	host, port, _ := net.SplitHostPort(e.cfg.Listens())
	switch at, _ := netip.ParseAddr(host); {
	case at.IsUnspecified():
		host = here.String()
	case at.IsLoopback() && !here.IsLoopback():
		e.deaf.Do(func() {
			e.cfg.Logger.Warn("engines cannot report here how KV was transferred: let the proxy listen where they reach it (--http), or say how they do (--upstream-report)", "engine", en.id, "http", e.cfg.Listens())
		})
		return ""
	}
	return "http://" + net.JoinHostPort(host, port)
}

// ServeReport takes a report, which is POSTed below ReportPath.
func (e *Engines) ServeReport(w http.ResponseWriter, q *http.Request) {
	reported, waited := e.reports.LoadAndDelete(strings.TrimPrefix(q.URL.Path, ReportPath))
	if !waited {
		http.Error(w, "no report is waited for here", http.StatusNotFound)
		return
	}
	var said connector
	if err := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxReport)).Decode(&said); err != nil {
		http.Error(w, "no report: "+err.Error(), http.StatusBadRequest)
		return
	}
	reported.(chan connector) <- said // it has room: this is the only one
}

// endReport waits no more for a report.
func (e *Engines) endReport(r *Request) { e.reports.Delete(r.word) }

// awaitReport takes the report of a request that has been answered, and waits for it if the client wants to
// know and the answer has not said it.
func (r *Request) awaitReport(ctx context.Context) {
	if r.took.Wire != nil || r.reported == nil {
		return
	}
	if r.asked.Breakdown && len(r.reported) == 0 {
		late := time.NewTimer(lastWord)
		defer late.Stop()
		select {
		case r.took = <-r.reported:
		case <-late.C:
		case <-ctx.Done():
		}
		return
	}
	select {
	case r.took = <-r.reported:
	default:
	}
}
