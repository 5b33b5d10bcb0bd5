package nullserver

// Waiting is how many requests have come whose first token is not due yet.
func (s *Server) Waiting() int {
	s.pacer.mu.Lock()
	defer s.pacer.mu.Unlock()
	return len(s.pacer.firsts)
}
