package socket

import (
	"sync"

	"kvferry/transport/pages"
)

// A source is the receiving side of a connection.
type source interface {
	// readv reads into the elements of dst in order, and what is more into
	// tail. It returns after one read of at least one byte.
	readv(dst [][]byte, tail []byte) (int, error)
	// first reads into a buffer that it takes from a pool once there is something to
	// read, and not before: thousands of connections wait for that, and need none.
	first(of *sync.Pool) (*buffer, int, error)
	// light says whether the connection's last frame was of at most lightBytes. Any goroutine may.
	light(bool)
}

// lightBytes is what is worth no look at others: it takes 10 µs.
const lightBytes = 32 << 10

// A stream reads headers through a buffer and bytes past it. It has the buffer while there
// is something in it, or a frame under way.
type stream struct {
	src  source
	pool *sync.Pool
	b    *buffer // nil at rest
	buf  []byte  // of b, longer than any header
	r, w int     // buf[r:w] is read and not consumed
}

// A buffer is of one connection at a time.
type buffer struct{ mem []byte }

// streamBuffer holds the largest header and a few small frames besides;
// referenceBuffer does on a rail of references, where nothing that comes is
// segment memory.
const (
	streamBuffer    = 16 << 10
	referenceBuffer = 64 << 10
)

var (
	streamBuffers    = sync.Pool{New: func() any { return &buffer{make([]byte, streamBuffer)} }}
	referenceBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, referenceBuffer)} }}
)

// newStream has a buffer for headers and small frames. Other bytes go past it, from the
// socket to where they belong.
func newStream(src source, references bool) stream {
	if references {
		return stream{src: src, pool: &referenceBuffers}
	}
	return stream{src: src, pool: &streamBuffers}
}

// next consumes n bytes, at most len(buf), and returns them. They are valid
// until the next call.
func (s *stream) next(n int) ([]byte, error) {
	if s.r == s.w && n > 0 {
		if err := s.begin(); err != nil {
			return nil, err
		}
	}
	if s.r+n > len(s.buf) {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	for s.w-s.r < n {
		m, err := s.src.readv(nil, s.buf[s.w:])
		if err != nil {
			return nil, err
		}
		s.w += m
	}
	b := s.buf[s.r : s.r+n]
	s.r += n
	return b, nil
}

// begin gives the buffer back, waits for something to read, and reads that into another.
func (s *stream) begin() (err error) {
	if s.b != nil {
		s.pool.Put(s.b)
	}
	s.b, s.buf, s.r, s.w = nil, nil, 0, 0
	if s.b, s.w, err = s.src.first(s.pool); s.b != nil {
		s.buf = s.b.mem
	}
	return err
}

// empty reports whether the next call would wait for the peer.
func (s *stream) empty() bool { return s.r == s.w }

// scatter fills every element of dst, in order. It uses dst up. Memory that is not there is EFAULT.
func (s *stream) scatter(dst [][]byte) (err error) {
	for len(dst) > 0 && err == nil {
		dst, err = s.fill(dst)
	}
	return err
}

// fill does a step of scatter, and returns the elements that are not filled yet.
func (s *stream) fill(dst [][]byte) ([][]byte, error) {
	for len(dst) > 0 && s.r < s.w {
		n := min(len(dst[0]), s.w-s.r)
		if err := pages.CopyChecked(dst[0][:n], s.buf[s.r:s.w]); err != nil {
			return dst, err
		}
		s.r += n
		dst = consume(dst, n)
	}
	for len(dst) > 0 && len(dst[0]) == 0 {
		dst = dst[1:]
	}
	if len(dst) == 0 {
		return nil, nil
	}
	n, err := s.src.readv(dst, s.buf)
	if err != nil {
		return dst, err
	}
	for n > 0 && len(dst) > 0 {
		m := min(n, len(dst[0]))
		n -= m
		dst = consume(dst, m)
	}
	s.r, s.w = 0, n
	return dst, nil
}

// consume takes n bytes, at most len(dst[0]), and the empty elements after
// them off dst.
func consume(dst [][]byte, n int) [][]byte {
	dst[0] = dst[0][n:]
	for len(dst) > 0 && len(dst[0]) == 0 {
		dst = dst[1:]
	}
	return dst
}

// discard consumes n bytes.
func (s *stream) discard(n int64) error {
	for n > 0 {
		if s.r == s.w {
			m, err := s.src.readv(nil, s.buf)
			if err != nil {
				return err
			}
			s.r, s.w = 0, m
		}
		m := min(n, int64(s.w-s.r))
		s.r += int(m)
		n -= m
	}
	return nil
}

// writeFrame writes the elements of vec in order, to a peer that copies all but the
// first itself only that one. It uses vec up.
func writeFrame(c Conn, out *gather, peer Memory, vec [][]byte) error {
	willWrite(vec)
	if peer != nil {
		_, err := c.Write(vec[0])
		clear(vec)
		return err
	}
	return out.writev(vec)
}

// write writes b, which is not segment memory.
func write(c Conn, b []byte) error {
	willWrite(nil)
	_, err := c.Write(b)
	return err
}
