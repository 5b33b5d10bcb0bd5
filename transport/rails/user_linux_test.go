package rails_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/process"
	"kvferry/transport/rails"
	"kvferry/transport/transporttest"
)

func TestMain(m *testing.M) {
	if transporttest.Role() == "nobody" {
		if err := beNobody(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// all are the rails that two processes of a machine may have in common.
var all = []string{"127.0.0.1:0", "cma", "shm"}

func openEngine(specs []string) (*transport.Engine, error) {
	opened, err := rails.OpenAll(specs, rails.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return transport.New(transport.Config{Rails: opened, Logger: slog.New(slog.DiscardHandler)})
}

// beNobody lends memory as another user, until it is killed.
func beNobody() error {
	if err := transporttest.BeNobody(); err != nil {
		return err
	}
	e, err := openEngine(all)
	if err != nil {
		return err
	}
	seg, err := e.Register("theirs", make([]byte, 1<<20), "*")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(seg.Info()); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// TestOtherUser: between processes of two users shm is not used, whoever has it: what they have in common
// beside it carries. Who has nothing else is told why.
func TestOtherUser(t *testing.T) {
	transporttest.NeedsRoot(t)
	if err := process.Supported(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	_, _, out := transporttest.StartRole(t, "nobody")
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(line, err)
	}
	var theirs transport.SegmentInfo
	if err := json.Unmarshal([]byte(line), &theirs); err != nil {
		t.Fatal(line, err)
	}
	e, err := openEngine(all)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	seg, err := e.Register("ours", make([]byte, 1<<20), "*")
	if err != nil {
		t.Fatal(err)
	}
	target, err := e.Open(theirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		b := e.Submit(target, []transport.Request{{Op: op, Local: seg.Bytes()}}, transport.BatchOptions{Timeout: time.Minute})
		if <-b.Done(); b.Err() != nil {
			t.Errorf("%v: %v", op, b.Err())
		}
	}
	carried := int64(0)
	for _, r := range e.Rails() {
		if strings.HasPrefix(r.Name, "shm/") && (r.Paths > 0 || r.Write.Bytes+r.Read.Bytes > 0) {
			t.Errorf("it is used: %+v", r)
		}
		carried += r.Write.Bytes + r.Read.Bytes
	}
	if carried != 2<<20 {
		t.Errorf("%d bytes were carried, want %d", carried, 2<<20)
	}
	only, err := openEngine([]string{"shm"})
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close()
	if _, err := only.Open(theirs); !errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), "another user's") {
		t.Errorf("shm alone: %v", err)
	}
}
