// host LIBRARY: two agents in one process, by what NIXL's own tests ask of a network backend, and more.
#include "agent.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

static nixlBackendPlugin *loaded;
static const nixl_b_params_t loopback = {{"rails", "tcp/lo"}, {"timeout", "2"}};

static void fill(Bytes &bytes, unsigned seed) {
	for (size_t i = 0; i < bytes.size(); i++)
		bytes[i] = (unsigned char)(seed + i * 7 + i / 251);
}

// Pairs of one agent's buffers with another's.
struct Pair {
	Agent one{loaded, "Agent1", loopback}, two{loaded, "Agent2", loopback};
	std::vector<nixlBackendMD *> remote; // two's buffers, at one

	Pair() { CHECK(one.engine->loadRemoteConnInfo("Agent2", two.connection()) == NIXL_SUCCESS); }
	~Pair() {
		for (auto *md : remote)
			CHECK(one.engine->unloadMD(md) == NIXL_SUCCESS);
		CHECK(one.engine->disconnect("Agent2") == NIXL_SUCCESS);
	}
	void add(size_t length) {
		Buffer &theirs = two.buffer(length, 0);
		one.buffer(length, 0);
		remote.push_back(one.load("Agent2", theirs.blob(), two.metadata(theirs)));
	}
	// whole adds descriptors of length bytes, apart bytes from one to the next, for all of the buffer.
	void pieces(Xfer &x, size_t buffer, size_t length, size_t apart) {
		const Buffer &ours = *one.buffers[buffer], &theirs = *two.buffers[buffer];
		for (size_t at = 0; at + length <= ours.bytes.size(); at += apart) {
			x.local.addDesc(piece(ours.blob().addr + at, length, ours.local));
			x.remote.addDesc(piece(theirs.blob().addr + at, length, remote[buffer]));
		}
	}
};

static void between(bool reuse) {
	Pair pair;
	const size_t length = 64 << 10, count = 8;
	pair.add(length * count);
	Bytes &ours = pair.one.buffers[0]->bytes, &theirs = pair.two.buffers[0]->bytes;
	for (const auto op : {NIXL_READ, NIXL_WRITE})
		for (const bool notify : {true, false}) {
			Xfer x{pair.one.engine, op, "Agent2"};
			pair.pieces(x, 0, length, length);
			for (unsigned i = 0; i < 10; i++) {
				fill(ours, 2 * i);
				fill(theirs, 2 * i + 1);
				const Bytes expected = op == NIXL_READ ? theirs : ours;
				if (!reuse || i == 0)
					CHECK(x.prepare() == NIXL_SUCCESS);
				CHECK(x.wait(notify ? x.post("test") : x.post()) == NIXL_SUCCESS);
				CHECK(ours == expected);
				if (notify)
					CHECK(pair.two.notifications(1) == (notif_list_t{{"Agent1", "test"}}));
				CHECK(theirs == expected);
				if (!reuse || i == 9)
					CHECK(x.release() == NIXL_SUCCESS);
			}
		}
	for (int i = 0; i < 10; i++) {
		CHECK(pair.one.engine->genNotif("Agent2", "alone") == NIXL_SUCCESS);
		CHECK(pair.two.notifications(1) == (notif_list_t{{"Agent1", "alone"}}));
	}
	CHECK(pair.one.engine->genNotif("Agent2", "") == NIXL_SUCCESS); // nothing is a message too
	CHECK(pair.two.notifications(1) == (notif_list_t{{"Agent1", ""}}));
}

// To itself, an agent is a peer like others.
static void within() {
	Agent agent(loaded, "Agent1", loopback);
	CHECK(agent.engine->loadRemoteConnInfo("Agent1", agent.connection()) == NIXL_SUCCESS);
	Buffer &a = agent.buffer(1 << 20, 0), &b = agent.buffer(1 << 20, 0);
	for (const auto op : {NIXL_READ, NIXL_WRITE}) {
		fill(a.bytes, op);
		fill(b.bytes, op + 5);
		const Bytes expected = op == NIXL_READ ? b.bytes : a.bytes;
		Xfer x{agent.engine, op, "Agent1"};
		x.local.addDesc(piece(a.blob().addr, a.bytes.size(), a.local));
		x.remote.addDesc(piece(b.blob().addr, b.bytes.size(), b.self));
		CHECK(x.prepare() == NIXL_SUCCESS && x.wait(x.post("self")) == NIXL_SUCCESS);
		CHECK(agent.notifications(1) == (notif_list_t{{"Agent1", "self"}}));
		CHECK(a.bytes == expected && b.bytes == expected && x.release() == NIXL_SUCCESS);
	}
	CHECK(agent.engine->genNotif("Agent1", "alone") == NIXL_SUCCESS);
	CHECK(agent.notifications(1) == (notif_list_t{{"Agent1", "alone"}}));
	CHECK(agent.engine->disconnect("Agent1") == NIXL_SUCCESS);
}

// Pieces with gaps, in several buffers of each side, posted again and again: each post's notification comes once, when
// all of its bytes are there, and nothing between the pieces is touched.
static void scattered() {
	Pair pair;
	for (int i = 0; i < 3; i++)
		pair.add(256 << 10);
	Xfer x{pair.one.engine, NIXL_WRITE, "Agent2"};
	for (size_t i : {2, 0, 1})
		pair.pieces(x, i, 1 << 10, 3 << 10);
	CHECK(x.prepare() == NIXL_SUCCESS);
	std::multiset<std::string> sent, came;
	for (unsigned k = 0; k < 50; k++) {
		for (size_t i = 0; i < 3; i++)
			fill(pair.one.buffers[i]->bytes, k + unsigned(i));
		sent.insert(std::to_string(k));
		const nixl_status_t status = x.post(std::to_string(k));
		for (const auto &[from, text] : pair.two.notifications(k % 2)) { // not always waited for
			CHECK(from == "Agent1");
			came.insert(text);
		}
		CHECK(x.wait(status) == NIXL_SUCCESS);
		for (size_t i = 0; i < 3; i++)
			for (size_t at = 0; at < 256 << 10; at++) {
				const bool moved = at % (3 << 10) < 1 << 10 && at / (3 << 10) < 85 + (at % (3 << 10) < 1 << 10);
				CHECK(pair.two.buffers[i]->bytes[at] == (moved ? pair.one.buffers[i]->bytes[at] : 0));
			}
	}
	for (const auto &[from, text] : pair.two.notifications(sent.size() - came.size()))
		came.insert(text);
	CHECK(came == sent);
	CHECK(x.release() == NIXL_SUCCESS);
}

// Descriptors that cross: two buffers here in turns, and one of the peer's from both. What is moved is what each names.
static void crossed() {
	Pair pair;
	const size_t length = 64 << 10;
	for (unsigned i = 0; i < 2; i++) {
		pair.add(length);
		fill(pair.one.buffers[i]->bytes, 3 * i);
	}
	Xfer x{pair.one.engine, NIXL_WRITE, "Agent2"};
	for (const auto &[from, to, at, width] : {std::array<size_t, 4>{0, 0, 0, 4096}, {1, 1, 0, 4096}, {1, 1, 100, 0}, {1, 0, 8192, 4096}, {0, 0, 16384, 4096}}) {
		x.local.addDesc(piece(pair.one.buffers[from]->blob().addr + at, width, pair.one.buffers[from]->local));
		x.remote.addDesc(piece(pair.two.buffers[to]->blob().addr + at, width, pair.remote[to]));
	}
	CHECK(x.prepare() == NIXL_SUCCESS && x.wait(x.post("crossed")) == NIXL_SUCCESS && x.release() == NIXL_SUCCESS);
	CHECK(pair.two.notifications(1) == (notif_list_t{{"Agent1", "crossed"}}));
	const Bytes &first = pair.two.buffers[0]->bytes, &second = pair.two.buffers[1]->bytes;
	for (size_t i = 0; i < length; i++) {
		const size_t block = i / 4096;
		const bool ours = block == 0 || block == 4, others = block == 2;
		CHECK(first[i] == (ours ? pair.one.buffers[0]->bytes[i] : others ? pair.one.buffers[1]->bytes[i] : 0));
		CHECK(second[i] == (block == 0 ? pair.one.buffers[1]->bytes[i] : 0));
	}
}

// The peer is forgotten while a transfer with several of its buffers is under way: it ends, and nothing of what was
// unloaded is used for its notification.
static void forgotten() {
	Pair pair;
	Xfer x{pair.one.engine, NIXL_WRITE, "Agent2"};
	for (size_t i = 0; i < 2; i++) {
		pair.add(64 << 10);
		pair.pieces(x, i, 64 << 10, 64 << 10);
	}
	CHECK(x.prepare() == NIXL_SUCCESS && x.post("none") == NIXL_IN_PROG);
	for (auto *md : pair.remote)
		CHECK(pair.one.engine->unloadMD(md) == NIXL_SUCCESS);
	pair.remote.clear();
	CHECK(x.wait(NIXL_IN_PROG) == NIXL_ERR_INVALID_PARAM && x.wait(x.post("none")) == NIXL_ERR_INVALID_PARAM && x.release() == NIXL_SUCCESS);
}

static void wrong() {
	const auto refused = [](const std::string &name, const nixl_b_params_t &params) { return !Agent(loaded, name, params).engine; };
	CHECK(refused("a", {{"rails", "tcp/nosuch"}}) && refused("a", {{"raisl", "tcp/lo"}}) && refused("a", {{"timeout", "soon"}}));
	CHECK(refused(std::string(256, 'a'), loopback)); // a name that no message could have as its sender's

	Pair pair;
	pair.add(1 << 20);
	auto *engine = pair.one.engine;
	const Buffer &ours = *pair.one.buffers[0], &theirs = *pair.two.buffers[0];
	const auto prepare = [&](nixlMetaDesc from, nixlMetaDesc to) {
		Xfer x{engine, NIXL_READ, "Agent2"};
		x.local.addDesc(from);
		x.remote.addDesc(to);
		return x.prepare();
	};
	const nixlMetaDesc from = piece(ours.blob().addr, 4096, ours.local), to = piece(theirs.blob().addr, 4096, pair.remote[0]);
	const auto with = [](nixlMetaDesc d, const std::function<void(nixlMetaDesc &)> &change) {
		change(d);
		return d;
	};
	const auto shorter = with(to, [](auto &d) { d.len--; }), below = with(to, [](auto &d) { d.addr--; }), above = with(to, [](auto &d) { d.addr += (1 << 20) - 4095; });
	for (const auto &bad : {shorter, below, above, with(to, [&](auto &d) { d.metadataP = ours.local; }), with(to, [](auto &d) { d.metadataP = nullptr; })})
		CHECK(prepare(from, bad) == NIXL_ERR_INVALID_PARAM);
	CHECK(prepare(with(from, [](auto &d) { d.addr += 1 << 20; }), to) == NIXL_ERR_INVALID_PARAM);
	CHECK(prepare(with(from, [&](auto &d) { d.metadataP = pair.remote[0]; }), to) == NIXL_ERR_INVALID_PARAM);

	nixlBackendMD *md = nullptr;
	nixlBlobDesc garbage = theirs.blob();
	garbage.metaInfo = "garbage";
	CHECK(engine->loadRemoteMD(garbage, DRAM_SEG, "Agent2", md) == NIXL_ERR_INVALID_PARAM);
	CHECK(engine->loadRemoteConnInfo("Agent2", "garbage") == NIXL_ERR_INVALID_PARAM);
	CHECK(engine->registerMem(ours.blob(), FILE_SEG, md) == NIXL_ERR_NOT_SUPPORTED);
	CHECK(engine->deregisterMem(pair.remote[0]) == NIXL_ERR_INVALID_PARAM && engine->unloadMD(ours.local) == NIXL_ERR_INVALID_PARAM);
	CHECK(engine->genNotif("Nobody", "x") == NIXL_ERR_NOT_FOUND && engine->connect("Nobody") == NIXL_ERR_NOT_FOUND && engine->disconnect("Nobody") == NIXL_ERR_NOT_FOUND);
	CHECK(engine->genNotif("Agent2", std::string((64 << 10) + 1, 'x')) == NIXL_ERR_INVALID_PARAM);

	Xfer x{engine, NIXL_READ, "Agent2"};
	pair.pieces(x, 0, 1 << 20, 1 << 20);
	CHECK(x.post() == NIXL_ERR_INVALID_PARAM && engine->checkXfer(nullptr) == NIXL_ERR_INVALID_PARAM && engine->releaseReqH(nullptr) == NIXL_ERR_INVALID_PARAM);
	CHECK(x.prepare() == NIXL_SUCCESS && engine->checkXfer(x.handle) == NIXL_ERR_NOT_POSTED);
	CHECK(x.post(std::string((64 << 10) + 1, 'x')) == NIXL_ERR_INVALID_PARAM);
	CHECK(x.wait(x.post()) == NIXL_SUCCESS && x.wait(x.post("again")) == NIXL_SUCCESS && x.release() == NIXL_SUCCESS);
	CHECK(pair.two.notifications(1) == (notif_list_t{{"Agent1", "again"}}));
	CHECK(!Agent(loaded, "a", {{"rails", "cma"}}).engine == false); // each of kvferry's rails is as good
}

// The target goes: before a transfer, and while one is under way. Both end, within the deadline, and their handles
// can be released.
static void gone() {
	Agent one(loaded, "Agent1", loopback);
	Buffer &ours = one.buffer(1 << 20, 1);
	nixlBackendMD *md = nullptr;
	Xfer before{one.engine, NIXL_WRITE, "Agent2"}, during = before, aborted = before;
	{
		Agent two(loaded, "Agent2", loopback);
		Buffer &theirs = two.buffer(1 << 20, 0);
		CHECK(one.engine->loadRemoteConnInfo("Agent2", two.connection()) == NIXL_SUCCESS);
		md = one.load("Agent2", theirs.blob(), two.metadata(theirs));
		for (Xfer *x : {&before, &during, &aborted}) {
			x->local.addDesc(piece(ours.blob().addr, 1 << 20, ours.local));
			x->remote.addDesc(piece(theirs.blob().addr, 1 << 20, md));
			CHECK(x->prepare() == NIXL_SUCCESS);
		}
		CHECK(during.post("during") >= 0);
	}
	const nixl_status_t status = during.wait(NIXL_IN_PROG);
	CHECK(status == NIXL_SUCCESS || status == NIXL_ERR_REMOTE_DISCONNECT);
	CHECK(aborted.post() == NIXL_IN_PROG && aborted.post() == NIXL_ERR_REPOST_ACTIVE && aborted.release() == NIXL_SUCCESS);
	CHECK(before.wait(before.post()) == NIXL_ERR_REMOTE_DISCONNECT);
	CHECK(one.engine->checkXfer(before.handle) == NIXL_ERR_REMOTE_DISCONNECT);
	CHECK(before.release() == NIXL_SUCCESS && during.release() == NIXL_SUCCESS);

	Agent again(loaded, "Agent2", loopback); // and comes back, by other metadata
	Buffer &theirs = again.buffer(1 << 20, 0);
	CHECK(one.engine->unloadMD(md) == NIXL_SUCCESS && one.engine->disconnect("Agent2") == NIXL_SUCCESS);
	CHECK(one.engine->loadRemoteConnInfo("Agent2", again.connection()) == NIXL_SUCCESS);
	md = one.load("Agent2", theirs.blob(), again.metadata(theirs));
	Xfer x{one.engine, NIXL_WRITE, "Agent2"};
	x.local.addDesc(piece(ours.blob().addr, 1 << 20, ours.local));
	x.remote.addDesc(piece(theirs.blob().addr, 1 << 20, md));
	CHECK(x.prepare() == NIXL_SUCCESS && x.wait(x.post("back")) == NIXL_SUCCESS && x.release() == NIXL_SUCCESS);
	CHECK(again.notifications(1) == (notif_list_t{{"Agent1", "back"}}) && theirs.bytes == ours.bytes);
	CHECK(one.engine->unloadMD(md) == NIXL_SUCCESS);
}

// A process that was forked is told so, and waits for nothing.
static void forked() {
	Pair pair;
	pair.add(4096);
	Xfer x{pair.one.engine, NIXL_WRITE, "Agent2"};
	pair.pieces(x, 0, 4096, 4096);
	CHECK(x.prepare() == NIXL_SUCCESS && x.post() == NIXL_IN_PROG);
	const pid_t child = fork();
	if (child == 0) {
		notif_list_t none;
		_exit(x.wait(NIXL_IN_PROG) == NIXL_ERR_BACKEND && x.post() == NIXL_ERR_BACKEND && x.release() == NIXL_ERR_BACKEND &&
		              pair.one.engine->getNotifs(none) == NIXL_ERR_BACKEND && pair.one.engine->genNotif("Agent2", "x") == NIXL_ERR_BACKEND
		          ? 0
		          : 1);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(x.wait(NIXL_IN_PROG) == NIXL_SUCCESS && x.release() == NIXL_SUCCESS);
}

int main(int argc, char **argv) {
	CHECK(argc == 2);
	loaded = plugin(argv[1]);
	CHECK(loaded && loaded->api_version == NIXL_PLUGIN_API_VERSION && loaded->get_plugin_name() == std::string("KVFERRY"));
	CHECK(*loaded->get_plugin_version() && loaded->get_backend_options().count("rails"));
	const auto kinds = loaded->get_backend_mems();
	CHECK(std::count(kinds.begin(), kinds.end(), DRAM_SEG) == 1);
	between(false);
	between(true);
	within();
	scattered();
	crossed();
	forgotten();
	wrong();
	gone();
	forked();
	puts("ok");
}
