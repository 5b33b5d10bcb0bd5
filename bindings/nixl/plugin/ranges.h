// From NIXL's descriptors, one for each piece, to kvferry's ranges, which are many pieces at equal distances.
#pragma once

#include "abi.h"
#include "kvferry.h"

#include <vector>

// A Piece is one descriptor's bytes, here and at the peer.
struct Piece {
	uintptr_t local;
	uint64_t remote; // offset in the peer's segment
	uint64_t length;
};

// append adds a piece to ranges that all are of one target: to the last one, if it goes on with its distances and
// is not fresh: in other registered memory here than the one before. Pieces keep their order; one without bytes adds nothing.
void append(std::vector<kvf_range> &ranges, const Piece &piece, bool fresh);
