#include "ranges.h"

void append(std::vector<kvf_range> &ranges, const Piece &piece, bool fresh) {
	if (piece.length == 0)
		return;
	const uint64_t local = piece.local;
	if (!fresh && !ranges.empty() && ranges.back().length == piece.length) {
		kvf_range &last = ranges.back();
		const uint64_t first = reinterpret_cast<uintptr_t>(last.local);
		if (last.count == 1) { // two pieces always are at some distance
			last.local_stride = int64_t(local - first);
			last.remote_stride = int64_t(piece.remote - last.remote);
			last.count = 2;
			return;
		}
		if (local == first + last.count * uint64_t(last.local_stride) && piece.remote == last.remote + last.count * uint64_t(last.remote_stride)) {
			last.count++;
			return;
		}
	}
	kvf_range range{};
	range.local = reinterpret_cast<void *>(piece.local);
	range.remote = piece.remote;
	range.length = piece.length;
	range.count = 1;
	ranges.push_back(range);
}
