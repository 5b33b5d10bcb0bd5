package load

// List is a load that is known beforehand, in order of time. It is read only: copies of the
// slice are loads of their own.
type List []Request

// Next takes the first request off the list.
func (l *List) Next() (Request, bool, error) {
	if len(*l) == 0 {
		return Request{}, false, nil
	}
	r := (*l)[0]
	*l = (*l)[1:]
	return r, true, nil
}

// Collect takes all that the source has. It is for what needs a load as a whole and knows
// that it is small.
func Collect(s Source) (List, error) {
	var all List
	for {
		r, ok, err := s.Next()
		if !ok || err != nil {
			return all, err
		}
		all = append(all, r)
	}
}
