package upstream

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/internal/clock"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// TestReadAdapters: of vLLM's series the latest counts, whichever stands first.
func TestReadAdapters(t *testing.T) {
	const head = "# HELP vllm:num_requests_running Number.\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} 1\n" +
		"# HELP vllm:lora_requests_info Running stats on lora requests.\n# TYPE vllm:lora_requests_info gauge\n"
	for page, want := range map[string]struct {
		most  int
		names string
		has   bool
	}{
		head: {0, "", true}, // it has LoRA, and no request came
		head + `vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.79e+09` + "\n": {4, "", true},
		head + `vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1.790000001e+09` + "\n" +
			`vllm:lora_requests_info{max_lora="4",running_lora_adapters="chat,sql",waiting_lora_adapters="org/x,chat"} 1.790000003e+09` + "\n" +
			`vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.790000002e+09` + "\n": {4, "chat sql org/x", true},
		head + `vllm:lora_requests_info{max_lora="-1",running_lora_adapters="a",waiting_lora_adapters=""} 1` + "\n":  {0, "a", true},
		head + `vllm:lora_requests_info{max_lora="1e9",running_lora_adapters="a",waiting_lora_adapters=""} 1` + "\n": {0, "a", true},
		head + "vllm:lora_requests_info{ 1\n":    {},
		"# TYPE vllm:num_requests gauge\n<html>": {},
		"":                                       {},
	} {
		most, names, has := readAdapters([]byte(page))
		if got := strings.Join(names, " "); most != want.most || got != want.names || has != want.has {
			t.Errorf("%d slots with %q, %v; want %+v of\n%s", most, got, has, want, page)
		}
	}
}

// TestSlots: what was seen last is kept, as much as there are slots, and what was taken of the list
// stays as it is.
func TestSlots(t *testing.T) {
	s := slots{most: 2}
	s.saw("a")
	s.saw("b")
	before := s.names
	s.saw("a")
	s.saw("c")
	if !slices.Equal(s.names, []string{"a", "c"}) || !slices.Equal(before, []string{"a", "b"}) {
		t.Errorf("%q, and before %q", s.names, before)
	}
	for i := range 3 * maxSlots {
		s.saw(fmt.Sprint(i))
	}
	s.most = 0
	for i := range 3 * maxSlots {
		s.saw(fmt.Sprint(i))
	}
	if len(s.names) != maxSlots {
		t.Errorf("%d names of an engine that does not say how many slots it has", len(s.names))
	}
}

// A loraEngine answers as vLLM does.
type loraEngine struct {
	adapters, running atomic.Value // names with blanks, and with commas
}

func (f *loraEngine) start(t *testing.T, adapters, running string) string {
	f.adapters.Store(adapters)
	f.running.Store(running)
	return server(t, map[string]func(http.ResponseWriter){
		"/health": func(http.ResponseWriter) {},
		"/v1/models": func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"org/real","object":"model","owned_by":"vllm","root":"org/real","parent":null,"max_model_len":4096}`)
			for _, name := range strings.Fields(f.adapters.Load().(string)) {
				fmt.Fprintf(w, `,{"id":%q,"object":"model","owned_by":"vllm","root":"/adapters/%s","parent":"org/real","max_model_len":null}`, name, name)
			}
			fmt.Fprint(w, `]}`)
		},
		"/metrics": func(w http.ResponseWriter) {
			fmt.Fprintf(w, "# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=%q,waiting_lora_adapters=\"\"} 1.79e+09\n", f.running.Load())
		},
	}, nil).URL
}

// TestPlacesAdapters: a request goes where its adapter is, by what engines say and by what they were sent;
// and to none that does not have it, if another does.
func TestPlacesAdapters(t *testing.T) {
	for policy, times := range map[string]int{placement.AdapterAffinity: 3, placement.DLoRA: 1} { // dlora gives free slots to what is asked for
		t.Run(policy, func(t *testing.T) {
			var a, b loraEngine
			e, err := New(Config{
				URLs: URLs{Both: []string{a.start(t, "x y z", "x"), b.start(t, "x y z", "y")}}, Alone: true, Placement: policy, Clock: clock.Std(), Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			check := func() {
				for _, en := range e.all {
					e.check(t.Context(), en)
				}
			}
			place := func(model string) *engine {
				t.Helper()
				v, err := e.place(proto.Role_ROLE_NONDISAGG, parse(t, openai.Completion, fmt.Sprintf(`{"model":%q,"prompt":"hello"}`, model)))
				if err != nil {
					t.Fatal(err)
				}
				e.leave(v, nil, true)
				return v.engine
			}
			check()
			first, second := e.all[0], e.all[1]
			if s := e.States()[0]; s.Model != "org/real" || !slices.Equal(s.Adapters, []string{"x"}) || s.MaxLoRAs != 2 {
				t.Errorf("%+v", s)
			}
			for range times {
				if place("x") != first || place("y") != second {
					t.Error("an engine gets requests for an adapter that another has")
				}
			}
			z := place("z")
			for range times - 1 {
				if place("z") != z {
					t.Error("z is not where it was sent before")
				}
			}
			b.adapters.Store("x y z w") // it is loaded while the engine runs
			check()
			second.inFlight += 100 // the other has less to do
			for range 3 {
				if place("w") != second {
					t.Error("w goes to an engine that does not have it")
				}
			}
			second.inFlight -= 100
			base := map[*engine]bool{}
			for range 4 {
				base[place("org/real")] = true
			}
			if len(base) != 2 {
				t.Error("the model itself is not spread")
			}
			e.settle(first, errors.New("it was stopped"))
			if s := e.States()[0]; len(s.Adapters) > 0 || s.MaxLoRAs > 0 {
				t.Errorf("down: %+v", s)
			}
			if place("x") != second {
				t.Error("x goes to an engine that is down")
			}
		})
	}
}
