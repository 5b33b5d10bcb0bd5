package pacing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// A ledger is a file in which the nodes of one machine write what their modelled NICs are and
// what begins to move over them, a line each. Each of them reads what the others write, and has
// the whole network: all come to the same rates, as package fabric gives them. Nobody else is
// asked, and nobody waits for another.
//
// A line is written by one call, to a file that is open for appending: lines do not mix.
type ledger struct {
	file *os.File
	at   int64  // read so far
	text []byte // read, and no whole line
	buf  [1 << 14]byte

	network *network             // whose lock guards all of this
	id      uint64               // of this node
	epoch   int64                // Unix time of the clock's start, ns
	last    uint64               // move of this node's
	moves   map[uint64]*Delivery // of this node's that have not been read
	nodes   map[uint64]nic
	nics    map[string]nic // by a rail's address
}

// A nic is what a node's moves cross there.
type nic struct{ tx, rx []*port }

// A line is a node, with Addrs, or a move.
type line struct {
	Node uint64 `json:"node"` // drawn by who writes it

	Addrs []string `json:"addrs,omitempty"` // of its rails
	Rate  float64  `json:"rate,omitempty"`  // of its NIC, each way; bytes/s

	Move  uint64 `json:"move,omitempty"`  // of the node's, from 1
	Peer  string `json:"peer,omitempty"`  // one of its addresses
	Read  bool   `json:"read,omitempty"`  // from the peer
	Bytes int64  `json:"bytes,omitempty"` // of it
	Unix  int64  `json:"unix,omitempty"`  // when it began, ns
}

// openLedger has a node join the others whose ledger it is. own is its NIC, and n says what the
// others are to know of that.
func openLedger(path string, w *network, own nic, n line) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &ledger{
		file: f, network: w, id: rand.Uint64(), epoch: time.Now().UnixNano() - int64(w.clock.Now()),
		moves: make(map[uint64]*Delivery), nodes: make(map[uint64]nic), nics: make(map[string]nic),
	}
	n.Node, l.nodes[l.id] = l.id, own
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, moving := w.fabric.First(); !moving {
		w.now = time.Duration(-l.epoch) // before anything that the file may have
	}
	if err = l.catchUp(); err == nil { // what is no ledger is left as it is
		err = l.write(n)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.others = func() { _ = l.catchUp() } // the next move meets the error again
	return l, nil
}

// move has n bytes move for this node from now on, and tells the others.
func (l *ledger) move(now time.Duration, n int64, d *Delivery, in bool, peer string) error {
	w := l.network
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := l.catchUp(); err != nil {
		return err
	}
	l.last++
	l.moves[l.last] = d
	defer delete(l.moves, l.last)
	if err := l.write(line{Node: l.id, Move: l.last, Peer: peer, Read: in, Bytes: n, Unix: l.epoch + int64(max(w.now, now))}); err != nil {
		return err
	}
	err := l.catchUp()
	if err == nil && l.moves[l.last] != nil {
		err = fmt.Errorf("%s: what was written last is not there: somebody has cut the file", l.file.Name())
	}
	w.wake()
	return err
}

// catchUp begins what nodes have written of since the last time.
func (l *ledger) catchUp() error {
	return l.read(func(n line) {
		own, known := l.nodes[n.Node]
		switch {
		case n.Move == 0:
			if !known {
				own = nic{[]*port{newPort(n.Rate)}, []*port{newPort(n.Rate)}}
				l.nodes[n.Node] = own
			}
			for _, a := range n.Addrs {
				l.nics[a] = own
			}
		case known:
			var d *Delivery
			if n.Node == l.id {
				d = l.moves[n.Move]
				delete(l.moves, n.Move)
			}
			from, to := own, l.nics[n.Peer] // one that is not known is nobody's
			if n.Read {
				from, to = to, from
			}
			l.network.begin(time.Duration(n.Unix-l.epoch), n.Bytes, d, slices.Concat(from.tx, to.rx))
		}
	})
}

// close ends the node's part. What was written is written.
func (l *ledger) close() {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	l.network.others = nil
	_ = l.file.Close()
}

func (l *ledger) write(n line) error {
	text, err := json.Marshal(n)
	if err == nil {
		_, err = l.file.Write(append(text, '\n'))
	}
	return err
}

// read calls of with each line that it has not read yet, those written here too.
func (l *ledger) read(of func(line)) error {
	for {
		n, err := l.file.ReadAt(l.buf[:], l.at)
		l.at += int64(n)
		l.text = append(l.text, l.buf[:n]...)
		text, rest, whole := bytes.Cut(l.text, []byte{'\n'})
		for ; whole; text, rest, whole = bytes.Cut(rest, []byte{'\n'}) {
			var n line
			if err := json.Unmarshal(text, &n); err != nil {
				l.text = l.text[len(l.text)-len(text)-1-len(rest):] // what was before it has been called with
				return fmt.Errorf("%s: %.80q is no line of a modelled network: %w", l.file.Name(), text, err)
			}
			of(n)
		}
		l.text = append(l.text[:0], text...)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
