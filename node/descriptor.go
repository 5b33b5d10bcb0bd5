package node

import (
	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
	"kvferry/transport"
)

// This file is the edge between what package kvtransfer knows of a transfer, and how the
// control plane and the core have it.

// partOf is what a part of a hand-off's moves, in package connector's numbers, is of blocks.
func partOf(h handoff.Handoff, part int) kvtransfer.Part {
	switch {
	case part == connector.PartAll:
		return kvtransfer.Whole
	case h.Parts == handoff.Layers:
		return kvtransfer.Part{Layer: part}
	default:
		planes := [...]kvtransfer.Plane{connector.TensorK: kvtransfer.K, connector.TensorV: kvtransfer.V, connector.TensorHidden: kvtransfer.Hidden}
		return kvtransfer.Part{Layer: kvtransfer.AllLayers, Plane: planes[part]}
	}
}

// numberOf is the core's number of a part that has arrived.
func numberOf(layer int) int {
	if layer == kvtransfer.AllLayers {
		return connector.PartAll
	}
	return layer
}

// refOf and descriptorOf are a descriptor on the wire.
func refOf(d kvtransfer.Descriptor) *proto.KVRef {
	ref := &proto.KVRef{
		NodeId: d.Node, GrpcAddr: d.Addr, TransferId: d.Transfer, Tokens: uint32(d.Tokens),
		Segment: segmentToProto(d.Segment), Blocks: make([]*proto.Block, len(d.Blocks)),
	}
	for i, b := range d.Blocks {
		ref.Blocks[i] = &proto.Block{Index: uint32(b.Index), Id: uint32(b.Ref.ID), Generation: b.Ref.Gen}
		if len(d.Digests.Sums) > 0 {
			ref.Blocks[i].Digest, ref.Blocks[i].HiddenDigest = d.Digests.Sums[i], d.Hidden.Sums[i]
		}
	}
	return ref
}

func descriptorOf(ref *proto.KVRef) kvtransfer.Descriptor {
	d := kvtransfer.Descriptor{
		Node: ref.GetNodeId(), Addr: ref.GetGrpcAddr(), Transfer: ref.GetTransferId(), Tokens: int(ref.GetTokens()),
		Segment: segmentFromProto(ref.GetSegment()), Blocks: make([]kvcache.Entry, 0, len(ref.GetBlocks())),
	}
	if len(ref.GetBlocks()) > 0 {
		d.Digests = kvtransfer.Digests{First: int(ref.GetBlocks()[0].GetIndex()), Run: 1, Tokens: d.Tokens}
		d.Hidden = d.Digests
	}
	for _, b := range ref.GetBlocks() {
		d.Digests.Sums, d.Hidden.Sums = append(d.Digests.Sums, b.GetDigest()), append(d.Hidden.Sums, b.GetHiddenDigest())
		d.Blocks = append(d.Blocks, kvcache.Entry{Index: int(b.GetIndex()), Ref: kvcache.Ref{ID: kvcache.BlockID(b.GetId()), Gen: b.GetGeneration()}})
	}
	return d
}

// remoteOf is a descriptor as the core has it.
func remoteOf(d kvtransfer.Descriptor, first kvcache.Token) connector.Remote {
	return connector.Remote{Node: d.Node, Transfer: d.Transfer, Tokens: d.Tokens, FirstToken: first, Blocks: d.Blocks}
}

func segmentToProto(s transport.SegmentInfo) *proto.Segment {
	p := &proto.Segment{Name: s.Name, Length: uint64(s.Length), Location: s.Location}
	for _, r := range s.Rails {
		p.Rails = append(p.Rails, &proto.RailAddr{Rail: r.Rail, Addr: r.Addr, Key: uint64(r.Key), Rank: int32(r.Rank)})
	}
	return p
}

func segmentFromProto(p *proto.Segment) transport.SegmentInfo {
	s := transport.SegmentInfo{Name: p.GetName(), Length: int64(p.GetLength()), Location: p.GetLocation()}
	for _, r := range p.GetRails() {
		s.Rails = append(s.Rails, transport.RailAddr{Rail: r.GetRail(), Addr: r.GetAddr(), Key: transport.Key(r.GetKey()), Rank: int(r.GetRank())})
	}
	return s
}
