package loadtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
)

// spoiled is a good source but for what change does to its n-th request, from 0.
type spoiled struct {
	n      int
	share  bool
	change func(n int, r load.Request, ok bool) (load.Request, bool, error)
	first  []kvcache.Token // of a source that hands out the same prompt again and again
}

const requests, length, vocab = 400, 600, 1000

func (s *spoiled) Next() (load.Request, bool, error) {
	r := load.Request{At: time.Duration(s.n) * time.Millisecond, Prompt: make([]kvcache.Token, length), MaxTokens: 5}
	for i := range r.Prompt {
		r.Prompt[i] = kvcache.Token((s.n + i) % vocab)
	}
	if s.share && s.n == 0 {
		s.first = r.Prompt
	} else if s.share {
		r.Prompt = s.first
	}
	ok := s.n < requests
	if !ok {
		r = load.Request{}
	}
	s.n++
	if s.change != nil {
		return s.change(s.n-1, r, ok)
	}
	return r, ok, nil
}

// stuck is a source that cannot be closed.
type stuck struct{ spoiled }

func (*stuck) Close() error { return errors.New("is stuck") }

// TestChecksCanFail: a source with any one fault is found, a good one is not.
func TestChecksCanFail(t *testing.T) {
	b := Bounds{Requests: requests, Prompt: length, MaxTokens: 5, Vocab: vocab}
	var opened int
	var all [][]kvcache.Token
	type change = func(n int, r load.Request, ok bool) (load.Request, bool, error)
	at := func(i int, f func(r *load.Request)) change {
		return func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			if n == i {
				f(&r)
			}
			return r, ok, nil
		}
	}
	for want, c := range map[string]struct {
		check  func(func() load.Load, Bounds) error
		change change
	}{
		"request 7 is due at 0s":                       {checkRequests, at(7, func(r *load.Request) { r.At = 0 })},
		"request 0 is due at -1ns":                     {checkRequests, at(0, func(r *load.Request) { r.At = -1 })},
		"request 9 follows request 9":                  {checkRequests, at(9, func(r *load.Request) { r.After = []int{8, 9} })},
		"request 9 is due at 9ms, -1ns after":          {checkRequests, at(9, func(r *load.Request) { r.After, r.Delay = []int{8}, -1 })},
		"request 9 continues none":                     {checkRequests, at(9, func(r *load.Request) { r.Continues = true })},
		"request 9 continues request 7, and request 8": {checkRequests, at(9, func(r *load.Request) { r.After, r.Continues = []int{7}, true })},
		"request 5 is another":                         {checkSame, at(5, func(r *load.Request) { opened++; r.After = []int{opened % 2} })},
		"request 3 has 0 tokens":                       {checkRequests, at(3, func(r *load.Request) { r.Prompt = nil })},
		"request 3 has 601 tokens":                     {checkRequests, at(3, func(r *load.Request) { r.Prompt = append(r.Prompt, 1) })},
		"and wants 0:":                                 {checkRequests, at(3, func(r *load.Request) { r.MaxTokens = 0 })},
		"and wants 6:":                                 {checkRequests, at(3, func(r *load.Request) { r.MaxTokens = 6 })},
		"has token 1000 of":                            {checkRequests, at(3, func(r *load.Request) { r.Prompt[599] = vocab })},
		"0 bytes and 600 tokens: want a text":          {func(open func() load.Load, b Bounds) error { b.Texts = true; return checkRequests(open, b) }, nil},
		"request 6 is another":                         {checkSame, at(6, func(r *load.Request) { opened++; r.Text = fmt.Sprint(opened) })},
		"400 requests, want 399":                       {func(open func() load.Load, b Bounds) error { b.Requests--; return checkRequests(open, b) }, nil},
		`request 4 has the ID "a"`: {checkRequests, func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			r.ID = string("abcda"[min(n, 4)])
			return r, ok, nil
		}},
		"request 5: broken": {checkRequests, func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			if n == 5 {
				return r, false, errors.New("broken")
			}
			return r, ok, nil
		}},
		"request 2 is another": {checkSame, at(2, func(r *load.Request) { opened++; r.MaxTokens = opened })},
		"Next returns true":    {checkEnd, func(n int, r load.Request, ok bool) (load.Request, bool, error) { return r, ok || n > requests, nil }},
		"Next returns false, too far": {checkEnd, func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			if n > requests {
				return r, false, errors.New("too far")
			}
			return r, ok, nil
		}},
		"the first request: false": {checkClose, func(int, load.Request, bool) (load.Request, bool, error) { return load.Request{}, false, nil }},
		"KiB are held of a stream": {checkMemory, func(_ int, r load.Request, ok bool) (load.Request, bool, error) {
			all = append(all, r.Prompt)
			return r, ok, nil
		}},
	} {
		err := c.check(func() load.Load { return load.Load{Source: &spoiled{change: c.change}} }, b)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
	held := b
	held.Held = true
	if err := checkMemory(func() load.Load {
		return load.Load{Source: &spoiled{change: func(_ int, r load.Request, ok bool) (load.Request, bool, error) {
			all = append(all, r.Prompt)
			return r, ok, nil
		}}}
	}, held); err != nil {
		t.Errorf("what may be held: %v", err)
	}
	if len(all) == 0 { // they must be held until here
		t.Error("nothing was held")
	}
	all = nil
	shared := func() load.Load { return load.Load{Source: &spoiled{share: true}} }
	if err := checkSame(shared, b); err == nil || !strings.Contains(err.Error(), "request 1 is another the second time") {
		t.Errorf("a prompt that two requests share: %v", err)
	}
	if err := checkClose(func() load.Load { return load.Load{Source: &stuck{}} }, b); err == nil || !strings.Contains(err.Error(), "closed early: is stuck") {
		t.Errorf("a source that cannot be closed: %v", err)
	}
	TestSource(t, func() (load.Load, error) { return load.Load{Source: &spoiled{}}, nil }, b)

	for want, change := range map[string]change{
		"ends without an error": nil,
		"Next returns true": func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			if n == 3 {
				return r, false, errors.New("broken")
			}
			return r, ok, nil
		},
		"Next returns false": func(n int, r load.Request, ok bool) (load.Request, bool, error) {
			if n == 3 {
				return r, false, errors.New("broken")
			}
			return r, n < 3, nil
		},
	} {
		if _, fault := checkFailing(&spoiled{change: change}); fault == nil || !strings.Contains(fault.Error(), want) {
			t.Errorf("%v: want %q in it", fault, want)
		}
	}
}
