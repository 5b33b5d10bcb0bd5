// Package adapters has the LoRA adapters that a proxy serves: those that it was started with, and
// those that are loaded and unloaded while it runs, by the endpoints of vLLM and of SGLang.
//
// An adapter that is unloaded is asked for no more. Requests that have it go on, and nodes
// keep it until others need its place. A name that is loaded again is taken for the same
// adapter: its prefixes may still be cached.
package adapters

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"kvferry/internal/config"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
)

// A List is what is served. Its methods may be called by any goroutine.
type List struct {
	model func() openai.Model // that they are of, whose names none may have
	log   *slog.Logger

	mu    sync.Mutex
	all   []openai.LoRA // this and the next are replaced, not changed
	names []string
}

// New is a list of those adapters of a model. The List calls model now and then.
func New(loras []openai.LoRA, model func() openai.Model, log *slog.Logger) *List {
	return &List{model: model, log: log, all: slices.Clip(loras), names: openai.Adapters(loras)}
}

// All are the adapters, in the order in which they came.
func (l *List) All() []openai.LoRA {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// Names are theirs.
func (l *List) Names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names
}

// maxRank is as kvferry has it: engine.MaxRank.
const maxRank = 1 << 12

// Rank is an adapter's: its path, if that is a number, and else 0, which nodes take for their
// default.
func (l *List) Rank(name string) uint32 {
	all := l.All()
	i := slices.IndexFunc(all, func(o openai.LoRA) bool { return o.Name == name })
	if i < 0 {
		return 0
	}
	rank, err := strconv.ParseUint(all[i].Path, 10, 32)
	if err != nil || rank > maxRank {
		return 0
	}
	return uint32(rank)
}

// defaultRank is that of an adapter whose path says none: engine.DefaultRank.
const defaultRank = 16

// served is the rank that nodes serve an adapter with.
func (l *List) served(name string) uint32 { return cmp.Or(l.Rank(name), defaultRank) }

// Cards are what GET /v1/models lists: each name of the model, whose root is what the nodes call it, then
// the adapters.
func (l *List) Cards(m openai.Model, root string) (cards []openai.ModelCard) {
	now := time.Now().Unix()
	for _, name := range append([]string{m.Name}, m.Aliases...) {
		cards = append(cards, openai.ModelCard{ID: name, Object: "model", Created: now, OwnedBy: "kvferry", Root: root, MaxModelLen: &m.MaxModelLen})
	}
	for _, o := range l.All() {
		cards = append(cards, openai.ModelCard{ID: o.Name, Object: "model", Created: now, OwnedBy: "kvferry", Root: o.Path, Parent: &m.Name, Rank: l.served(o.Name)})
	}
	return cards
}

// maxAdapters bounds what load adds to, and maxPath an adapter's path, in bytes: each is in every list
// of models.
const maxAdapters, maxPath = 4096, 4096

// load adds an adapter.
func (l *List) load(lora openai.LoRA, again bool) *openai.Error {
	m := l.model() // which asks for our names
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.all)
	switch i := slices.Index(l.names, lora.Name); {
	case i >= 0 && !again:
		return openai.BadField("lora_name", "%q: it has been loaded already: unload it first", openai.Abbreviate(lora.Name))
	case i >= 0:
		all[i] = lora
	case len(all) >= maxAdapters:
		return openai.BadField("lora_name", "%q: %d adapters are served, and no more can be: unload one", openai.Abbreviate(lora.Name), len(all))
	default:
		all = append(all, lora)
	}
	var bad config.Faults
	models := slices.DeleteFunc(append(slices.Clone(m.Aliases), m.Name), func(name string) bool { return name == "" }) // without nodes
	if openai.CheckNames(&bad, models, all); len(bad) > 0 {
		return openai.BadField("lora_name", "%v", bad[0].Err)
	}
	l.all, l.names = all, openai.Adapters(all)
	return nil
}

// unload takes an adapter out.
func (l *List) unload(name string) *openai.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.names, name)
	if i < 0 {
		e := openai.BadField("lora_name", "%q: there is no such adapter; GET /v1/models lists those there are", openai.Abbreviate(name))
		e.Status = http.StatusNotFound
		return e
	}
	l.all = slices.Delete(slices.Clone(l.all), i, i+1)
	l.names = openai.Adapters(l.all)
	return nil
}

// body is what the endpoints take, of either tool. Other fields are not read.
type body struct {
	Name  string `json:"lora_name"`
	Path  path   `json:"lora_path"`
	Again bool   `json:"load_inplace"` // vLLM's: in place of one of that name
}

// A path is an adapter's, or its rank: a string, or a number.
type path string

// UnmarshalJSON takes either.
func (p *path) UnmarshalJSON(text []byte) error {
	var s string
	err := json.Unmarshal(text, &s)
	var n json.Number
	if err != nil && json.Unmarshal(text, &n) == nil {
		s, err = n.String(), nil
	}
	if err != nil {
		return errors.New("lora_path is neither a string nor a number: give the adapter's path, or its rank")
	}
	*p = path(s)
	return nil
}

// maxBody bounds it, in bytes: a name and a path.
const maxBody = 64 << 10

// read decodes a request's body and calls do with it. It returns the body, and the error for the client if there is one.
func read(w http.ResponseWriter, r *http.Request, do func(body) *openai.Error) (b body, bad *openai.Error) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
		return b, &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: fmt.Sprintf("the body is no JSON object with lora_name and lora_path: %v", err)}
	}
	if b.Name == "" {
		return b, openai.BadField("lora_name", "give the adapter's name")
	}
	return b, do(b)
}

// Serve adds the endpoints.
func (l *List) Serve(mux *http.ServeMux) {
	load := func(b body) *openai.Error {
		path := string(b.Path)
		if path == "" || len(path) > maxPath {
			return openai.BadField("lora_path", "give the adapter's path of at most %d bytes, or its rank; nothing is read there", maxPath)
		}
		if _, err := strconv.ParseFloat(path, 64); err == nil {
			if rank, err := strconv.Atoi(path); err != nil || rank < 1 || rank > maxRank {
				return openai.BadField("lora_path", "%s: a number is the adapter's rank: use 1 to %d, or a path", openai.Abbreviate(path), maxRank)
			}
		}
		bad := l.load(openai.LoRA{Name: b.Name, Path: path}, b.Again)
		if bad == nil {
			l.log.Info("serving a LoRA adapter: nodes load it when it is first asked for", "name", b.Name, "rank", l.served(b.Name))
		}
		return bad
	}
	unload := func(b body) *openai.Error {
		bad := l.unload(b.Name)
		if bad == nil {
			l.log.Info("serving a LoRA adapter no longer", "name", b.Name)
		}
		return bad
	}
	mux.HandleFunc("POST /v1/load_lora_adapter", l.vllm(load, "added"))
	mux.HandleFunc("POST /v1/unload_lora_adapter", l.vllm(unload, "removed"))
	mux.HandleFunc("POST /load_lora_adapter", l.sglang(load))
	mux.HandleFunc("POST /unload_lora_adapter", l.sglang(unload))
}

// vllm answers as vLLM does: a sentence.
func (l *List) vllm(do func(body) *openai.Error, done string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, bad := read(w, r, do)
		if bad != nil {
			wire.Error(w, bad)
			return
		}
		wire.Text(w, fmt.Sprintf("Success: LoRA adapter '%s' %s successfully.", b.Name, done))
	}
}

// sglang answers as SGLang does: whether it was done, and all adapters that there are.
func (l *List) sglang(do func(body) *openai.Error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, bad := read(w, r, do)
		result := struct {
			Success bool              `json:"success"`
			Error   string            `json:"error_message"`
			Loaded  map[string]string `json:"loaded_adapters"` // paths by name
		}{Success: bad == nil, Loaded: map[string]string{}}
		for _, o := range l.All() {
			result.Loaded[o.Name] = o.Path
		}
		if bad != nil {
			result.Error = bad.Message
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
		}
		wire.JSON(w, result)
	}
}
