#include "judge.h"

#include "json.h"
#include "report.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>

namespace {

constexpr uint64_t never = UINT64_MAX;

uint64_t milliseconds() {
	return uint64_t(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

uint64_t total(const nixl_meta_dlist_t &list) {
	uint64_t bytes = 0;
	for (int i = 0; i < list.descCount(); i++)
		bytes += list[size_t(i)].len;
	return bytes;
}

// slices calls f for the parts of descriptors that hold count bytes from one on: which descriptor, from which of its
// bytes, how many.
template <class F> void slices(const nixl_meta_dlist_t &list, uint64_t from, uint64_t count, F &&f) {
	for (size_t i = 0; count > 0 && i < size_t(list.descCount()); i++) {
		const uint64_t length = list[i].len;
		if (from < length) {
			const uint64_t part = std::min(length - from, count);
			f(i, from, part);
			count -= part;
			from = length;
		}
		from -= length;
	}
}

// cut is a descriptor of part of the memory of one.
nixlMetaDesc cut(nixlMetaDesc d, uint64_t from, uint64_t length) {
	d.addr += from;
	d.len = length;
	return d;
}

nixl_meta_dlist_t emptied(const nixl_meta_dlist_t &list) {
	nixl_meta_dlist_t none(list);
	none.clear();
	return none;
}

bool holds(const nixl_meta_dlist_t &list, const nixlBackendMD *md) {
	for (int i = 0; i < list.descCount(); i++)
		if (list[size_t(i)].metadataP == md)
			return true;
	return false;
}

} // namespace

// One transfer of the wrapped backend.
struct Judge::Move {
	nixl_xfer_op_t op;
	nixl_meta_dlist_t local, remote;
	std::string agent;
	nixl_opt_b_args_t args{};
	nixlBackendReqH *handle = nullptr;
	std::vector<unsigned char> scratch{}; // what it writes, if that is not the caller's memory
	nixlBackendMD *registered = nullptr;  // of scratch

	unsigned char *at(size_t i, uint64_t byte) const { return reinterpret_cast<unsigned char *>(local[i].addr + byte); }

	// bytes are the caller's, count of them from one on.
	std::vector<unsigned char> bytes(uint64_t from, uint64_t count) const {
		std::vector<unsigned char> all;
		slices(local, from, count, [&](size_t i, uint64_t begin, uint64_t length) { all.insert(all.end(), at(i, begin), at(i, begin) + length); });
		return all;
	}
};

// One transfer of NIXL's: its own move, and perhaps one more.
struct Judge::Transfer : nixlBackendReqH {
	Move main;
	explicit Transfer(Move move) : main(std::move(move)) {}

	// Of the last post.
	std::unique_ptr<Move> extra;
	Move *running = nullptr;
	Drawn drawn;
	nixl_opt_b_args_t args;
	uint64_t until = 0; // it is stalled; 0: it is not
	nixl_status_t status = NIXL_ERR_NOT_POSTED;

	bool hit(Kind kind) const { return drawn.fault && drawn.fault->kind == kind; }
};

// What will land again.
struct Judge::Replay {
	Drawn drawn;
	Move move;
	uint64_t after; // transfers that end before
};

Judge::Judge(const nixlBackendInitParams *params, const Schedule &schedule, Inner wrapped)
	: nixlBackendEngine(params), inner(std::move(wrapped)), draws(schedule) {
	if (inner->getType() != getType())
		over = "over " + inner->getType() + "\n";
	file = open(schedule.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (file < 0)
		throw std::runtime_error("log \"" + schedule.log + "\" of KVFERRY_FAULTS: " + strerror(errno));
	initErr = inner->getInitErr();
}

Judge::~Judge() {
	for (auto &move : late)
		finish(*move);
	close(file);
}

void Judge::log(const Drawn &drawn, const std::string &peer, const std::string &more) const {
	char head[128];
	const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
	snprintf(head, sizeof(head), "{\"time\":%.3f,\"fault\":\"%s\",\"number\":%llu,\"agent\":", now, drawn.fault->name.c_str(), (unsigned long long)drawn.number);
	const std::string line = head + quoted(localAgent) + ",\"peer\":" + quoted(peer) + more + "}\n";
	if (write(file, line.data(), line.size()) != ssize_t(line.size()))
		report(NIXL_ERR_BACKEND, std::string("the log of KVFERRY_FAULTS cannot be written: ") + strerror(errno));
}

nixl_status_t Judge::getConnInfo(std::string &out) const {
	const nixl_status_t status = inner->getConnInfo(out);
	out.insert(0, over);
	return status;
}

nixl_status_t Judge::loadRemoteConnInfo(const std::string &agent, const std::string &info) {
	if (info.compare(0, over.size(), over) != 0)
		return report(NIXL_ERR_MISMATCH, "agent " + agent + " does not move its bytes over " + inner->getType() + ": KVFERRY_FAULTS of both has to name the same backend");
	return inner->loadRemoteConnInfo(agent, info.substr(over.size()));
}

nixl_status_t Judge::deregisterMem(nixlBackendMD *md) {
	const std::lock_guard lock(mutex);
	forget(md);
	return inner->deregisterMem(md);
}

nixl_status_t Judge::unloadMD(nixlBackendMD *md) {
	const std::lock_guard lock(mutex);
	forget(md);
	return inner->unloadMD(md);
}

// forget drops what would land in memory that goes.
void Judge::forget(const nixlBackendMD *md) {
	replays.erase(std::remove_if(replays.begin(), replays.end(), [&](const auto &r) { return holds(r->move.local, md) || holds(r->move.remote, md); }), replays.end());
}

nixl_status_t Judge::prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
                              nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const {
	const std::lock_guard lock(mutex);
	auto t = std::make_unique<Transfer>(Move{op, local, remote, agent});
	if (const nixl_status_t status = inner->prepXfer(op, local, remote, agent, t->main.handle, args); status != NIXL_SUCCESS)
		return status;
	handle = t.get();
	transfers.emplace(handle, std::move(t));
	return NIXL_SUCCESS;
}

nixl_status_t Judge::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&handle,
                              const nixl_opt_b_args_t *args) const {
	const std::lock_guard lock(mutex);
	const auto it = transfers.find(handle);
	if (it == transfers.end())
		return NIXL_ERR_INVALID_PARAM;
	Transfer &t = *it->second;
	if (t.status == NIXL_IN_PROG || (t.extra && !finish(*t.extra)))
		return NIXL_ERR_REPOST_ACTIVE;
	t.extra.reset();
	t.args = args ? *args : nixl_opt_b_args_t{};
	const uint64_t now = milliseconds();
	if (now >= flapsUntil) {
		t.drawn = draws.transfer();
		if (t.hit(Kind::Flap)) {
			flap = t.drawn;
			flapsUntil = now + flap.fault->ms;
		}
	}
	if (now < flapsUntil) {
		log(flap, t.main.agent, "");
		return t.status = NIXL_ERR_REMOTE_DISCONNECT;
	}
	if (t.hit(Kind::Stall)) {
		log(t.drawn, t.main.agent, t.drawn.fault->timed ? ",\"ms\":" + std::to_string(t.drawn.fault->ms) : "");
		t.until = t.drawn.fault->timed ? now + t.drawn.fault->ms : never;
		return t.status = NIXL_IN_PROG;
	}
	return begin(t);
}

// begin posts what is first of a transfer: all of it, or half if it is torn.
nixl_status_t Judge::begin(Transfer &t) const {
	Move &main = t.main;
	const uint64_t bytes = total(main.local);
	if (bytes == 0 || (bytes == 1 && t.hit(Kind::Tear)))
		t.drawn.fault = nullptr; // there is nothing that could be hit
	if ((t.hit(Kind::Flip) || t.hit(Kind::Replay)) && main.local.getType() != DRAM_SEG) {
		report(NIXL_ERR_NOT_SUPPORTED, "a GPU's memory cannot be written by KVFERRY_FAULTS: " + t.drawn.fault->name + " is left out");
		t.drawn.fault = nullptr;
	}
	t.until = 0;
	t.running = &main;
	main.args = t.args;
	if (t.hit(Kind::Flip) && main.op == NIXL_WRITE)
		main.args.hasNotif = false; // it goes with what is written over it
	if (!t.hit(Kind::Tear))
		return advance(t, inner->postXfer(main.op, main.local, main.remote, main.agent, main.handle, &main.args));
	t.extra.reset(new Move{main.op, emptied(main.local), emptied(main.remote), main.agent, t.args});
	slices(main.local, 0, bytes / 2, [&](size_t i, uint64_t from, uint64_t length) {
		t.extra->local.emplace(cut(main.local[i], from, length));
		t.extra->remote.emplace(cut(main.remote[i], from, length));
	});
	log(t.drawn, main.agent, ",\"bytes\":" + std::to_string(bytes / 2) + ",\"of\":" + std::to_string(bytes));
	t.running = t.extra.get();
	return advance(t, post(*t.extra));
}

// post prepares and posts a move that is not NIXL's.
nixl_status_t Judge::post(Move &move) const {
	if (!move.scratch.empty()) {
		nixlBlobDesc place;
		place.addr = reinterpret_cast<uintptr_t>(move.scratch.data());
		place.len = move.scratch.size();
		place.devId = 0;
		if (const nixl_status_t status = inner->registerMem(place, DRAM_SEG, move.registered); status != NIXL_SUCCESS)
			return status;
		for (size_t i = 0; i < size_t(move.local.descCount()); i++)
			move.local[i].metadataP = move.registered;
	}
	const nixl_status_t status = inner->prepXfer(move.op, move.local, move.remote, move.agent, move.handle, &move.args);
	return status != NIXL_SUCCESS ? status : inner->postXfer(move.op, move.local, move.remote, move.agent, move.handle, &move.args);
}

// rewrite is a move that writes other bytes to where one has written, from its byte from on.
std::unique_ptr<Judge::Move> Judge::rewrite(const Move &move, uint64_t from, std::vector<unsigned char> bytes) {
	std::unique_ptr<Move> made(new Move{NIXL_WRITE, emptied(move.local), emptied(move.remote), move.agent});
	made->scratch = std::move(bytes);
	uintptr_t at = reinterpret_cast<uintptr_t>(made->scratch.data());
	slices(move.local, from, made->scratch.size(), [&](size_t i, uint64_t begin, uint64_t length) {
		nixlMetaDesc here = move.local[i];
		here.addr = at;
		here.len = length;
		at += length;
		made->local.emplace(here);
		made->remote.emplace(cut(move.remote[i], begin, length));
	});
	return made;
}

// advance takes a running move's status, and goes on to what follows it.
nixl_status_t Judge::advance(Transfer &t, nixl_status_t status) const {
	if (status == NIXL_SUCCESS && t.hit(Kind::Flip) && t.running == &t.main) {
		const uint64_t bytes = total(t.main.local), count = std::min(t.drawn.fault->bytes, bytes), from = t.drawn.random % (bytes - count + 1);
		log(t.drawn, t.main.agent, ",\"bytes\":" + std::to_string(count) + ",\"offset\":" + std::to_string(from) + ",\"of\":" + std::to_string(bytes));
		auto flipped = t.main.bytes(from, count);
		for (auto &b : flipped)
			b = (unsigned char)~b;
		if (t.main.op == NIXL_READ) {
			put(t.main, from, flipped);
		} else {
			t.extra = rewrite(t.main, from, std::move(flipped));
			t.extra->args = t.args;
			t.running = t.extra.get();
			status = post(*t.extra);
		}
	}
	if (status == NIXL_SUCCESS)
		landed(t);
	return t.status = status;
}

// put writes to the caller's memory.
void Judge::put(const Move &move, uint64_t from, const std::vector<unsigned char> &bytes) {
	const unsigned char *source = bytes.data();
	slices(move.local, from, bytes.size(), [&](size_t i, uint64_t begin, uint64_t length) {
		memcpy(move.at(i, begin), source, length);
		source += length;
	});
}

// landed is called when a transfer has ended well, before NIXL is told: what was to land again after it does.
void Judge::landed(Transfer &t) const {
	std::vector<std::unique_ptr<Replay>> wait;
	for (auto &r : replays) {
		if (--r->after > 0) {
			wait.push_back(std::move(r));
			continue;
		}
		log(r->drawn, r->move.agent, ",\"bytes\":" + std::to_string(r->move.scratch.size()));
		if (r->move.op == NIXL_READ) {
			put(r->move, 0, r->move.scratch);
		} else {
			late.push_back(rewrite(r->move, 0, std::move(r->move.scratch)));
			post(*late.back());
		}
	}
	replays = std::move(wait);
	if (t.hit(Kind::Replay)) {
		const Move &main = t.main;
		replays.emplace_back(new Replay{t.drawn, Move{main.op, main.local, main.remote, main.agent}, t.drawn.fault->after});
		replays.back()->move.scratch = main.bytes(0, total(main.local));
	}
}

// finish releases what a move that is not NIXL's has, unless it is under way and cannot be aborted at once.
bool Judge::finish(Move &move) const {
	if (move.handle && inner->releaseReqH(move.handle) < 0)
		return false;
	move.handle = nullptr;
	if (move.registered)
		inner->deregisterMem(move.registered);
	move.registered = nullptr;
	return true;
}

// tidy ends late moves that are done.
void Judge::tidy() const {
	late.erase(std::remove_if(late.begin(), late.end(), [&](const auto &move) {
		return (!move->handle || inner->checkXfer(move->handle) != NIXL_IN_PROG) && finish(*move);
	}), late.end());
}

nixl_status_t Judge::checkXfer(nixlBackendReqH *handle) const {
	const std::lock_guard lock(mutex);
	tidy();
	const auto it = transfers.find(handle);
	if (it == transfers.end())
		return NIXL_ERR_INVALID_PARAM;
	Transfer &t = *it->second;
	if (t.status != NIXL_IN_PROG)
		return t.status;
	if (t.until != 0)
		return milliseconds() < t.until ? NIXL_IN_PROG : begin(t);
	return advance(t, inner->checkXfer(t.running->handle));
}

nixl_status_t Judge::releaseReqH(nixlBackendReqH *handle) const {
	const std::lock_guard lock(mutex);
	const auto it = transfers.find(handle);
	if (it == transfers.end())
		return NIXL_ERR_INVALID_PARAM;
	Transfer &t = *it->second;
	if (t.extra && !finish(*t.extra))
		return NIXL_ERR_REPOST_ACTIVE;
	t.extra.reset();
	if (const nixl_status_t status = inner->releaseReqH(t.main.handle); status < 0)
		return status;
	transfers.erase(it);
	return NIXL_SUCCESS;
}

nixl_status_t Judge::getNotifs(notif_list_t &out) {
	const std::lock_guard lock(mutex);
	tidy();
	notif_list_t come;
	if (const nixl_status_t status = inner->getNotifs(come); status != NIXL_SUCCESS)
		return status;
	std::vector<Notes::Injected> injected;
	for (auto &note : notes.step(milliseconds(), come, draws, injected))
		out.push_back(std::move(note));
	for (const auto &i : injected)
		log(i.drawn, i.note.first, ",\"message\":" + quoted(i.note.second.substr(0, 200)));
	return NIXL_SUCCESS;
}
