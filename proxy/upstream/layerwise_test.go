package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"kvferry/internal/clock"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// TestLostRace: a client gets nothing of an answer that was given up because the prefill engine had failed,
// though it comes all the same.
func TestLostRace(t *testing.T) {
	s := server(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	e := newUp(t, clock.Std(), URLs{Both: []string{s.URL}})
	for outcome, want := range map[int32]error{lost: errPrefillLost, 0: nil} {
		r := parse(t, openai.Completion, `{"prompt":"x","stream":true}`)
		w := httptest.NewRecorder()
		r.events.To(recorder{w})
		v, err := e.place(proto.Role_ROLE_NONDISAGG, r)
		if err != nil {
			t.Fatal(err)
		}
		var first race
		first.outcome.Store(outcome)
		err = e.final(t.Context(), r, v, nil, &first, nobody{}, func() {})
		e.leave(v, nil, true)
		if !errors.Is(err, want) || (w.Body.Len() > 0) != (want == nil) {
			t.Errorf("%v after %q", err, w.Body)
		}
	}
}
