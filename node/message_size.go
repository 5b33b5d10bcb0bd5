package node

import (
	"fmt"

	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/proto"
)

// checkLength refuses a Submit that is longer than the model before anything is made of
// it: its prompt is one slice of the message still.
func (w *worker) checkLength(m *proto.Submit) error {
	limit := w.cfg.Profile.MaxModelLen
	if n := len(m.GetPrompt()) / 4; n > limit {
		return fmt.Errorf("%w: prompt has %d tokens: the model has %d (max_model_len)", engine.ErrTooLong, n, limit)
	}
	if err := w.checkBlocks(m.GetKv()); err != nil {
		return fmt.Errorf("%w: %w", connector.ErrOffer, err)
	}
	return nil
}

// checkBlocks refuses blocks that are more than the longest prompt has.
func (w *worker) checkBlocks(kv *proto.KVRef) error {
	limit := w.cfg.Profile.MaxModelLen
	if n, most := len(kv.GetBlocks()), limit/w.cfg.Profile.KVGeometry.BlockTokens+1; n > most {
		return fmt.Errorf("kv has %d blocks: %d hold as much as the model takes (max_model_len)", n, most)
	}
	return nil
}

// split sends what a session has collected in messages of proto.IterationSize and one report at
// most, in order: tokens, which come before the reports that end their legs, then
// reports, and the load with the last. While the proxy does not read, as one that was
// stopped, there is more of it with each iteration.
func split(m *proto.FromNode, send func(*proto.FromNode) error) error {
	if protobuf.Size(m) <= proto.IterationSize {
		return send(m)
	}
	// An id takes ten bytes at most, a token and a position five.
	const tokens = proto.IterationSize / (10 + 5 + 5)
	part := &proto.FromNode{}
	for i := 0; i < len(m.Ids); i += tokens {
		end := min(i+tokens, len(m.Ids))
		part.Ids, part.Tokens, part.Positions = m.Ids[i:end], m.Tokens[i:end], m.Positions[i:end]
		if err := send(part); err != nil {
			return err
		}
	}
	part = &proto.FromNode{}
	size := 0
	room := func(report protobuf.Message) error {
		n := protobuf.Size(report) + 8 // its tag and length
		if size += n; size <= proto.IterationSize {
			return nil
		}
		full := part
		part, size = &proto.FromNode{}, n
		return send(full)
	}
	from, fields := m.ProtoReflect(), m.ProtoReflect().Descriptor().Fields()
	for _, name := range []protoreflect.Name{"reserved", "prefilled", "migrated", "finished", "failed"} { // a leg's end comes last
		reports := from.Get(fields.ByName(name)).List()
		for i := range reports.Len() {
			if err := room(reports.Get(i).Message().Interface()); err != nil {
				return err
			}
			part.ProtoReflect().Mutable(fields.ByName(name)).List().Append(reports.Get(i))
		}
	}
	part.Load, part.LastSubmit, part.Flushed = m.Load, m.LastSubmit, m.Flushed
	return send(part)
}
