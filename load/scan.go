package load

// Scan goes through a load from a file once, before anything is sent: how many requests there
// are, and the most tokens that one has, its answer and what it continues together; 0 where
// nobody knows how long its texts are. A load without requests is an error.
//
// It takes the time of reading the file, and of most kinds that of drawing the tokens, a second for a hundred
// million and more, and 8 bytes a request.
func (s Spec) Scan() (requests, longest int, err error) {
	s.counted = true
	s.Duration = 0 // arrivals depend on how many there are, not on how many are sent
	l, err := s.Open()
	if err != nil {
		return 0, 0, err
	}
	defer l.Close()
	var all []int // tokens of each
	for {
		r, ok, err := l.Next()
		if err != nil {
			return len(all), longest, err
		}
		if !ok {
			break
		}
		tokens := len(r.Prompt) + r.MaxTokens
		if r.Continues {
			tokens += all[r.After[0]]
		}
		all = append(all, tokens)
		if len(r.Prompt) > 0 {
			longest = max(longest, tokens)
		}
	}
	return len(all), longest, nil
}
