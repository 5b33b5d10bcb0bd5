// judge LIBRARY FOLDER: each fault of a schedule, on kvferry's own backend.
#include "agent.h"

#include <algorithm>
#include <fstream>

static nixlBackendPlugin *loaded;
static std::string folder;
static const nixl_b_params_t loopback = {{"rails", "tcp/lo"}};
constexpr size_t length = 96 << 10, width = 4 << 10;

static unsigned char before(size_t at) { return (unsigned char)(at * 13 + at / 256); }

// Two agents with a buffer each. The second is hit by the faults, as target of notifications or, with transfers of its
// own, as initiator.
struct Pair {
	std::string log = folder + "/log.jsonl";
	Agent one, two;
	Buffer &ours, &theirs;
	nixlBackendMD *remote;

	explicit Pair(const std::string &fault) : one((unsetenv("KVFERRY_FAULTS"), loaded), "one", loopback), two(schedule(fault), "two", loopback),
		ours(one.buffer(length, 0)), theirs(two.buffer(length, 0)), remote(two.load("one", ours.blob(), one.metadata(ours))) {
		CHECK(one.engine->loadRemoteConnInfo("two", two.connection()) == NIXL_SUCCESS);
		CHECK(two.engine->loadRemoteConnInfo("one", one.connection()) == NIXL_SUCCESS);
	}
	~Pair() { CHECK(two.engine->unloadMD(remote) == NIXL_SUCCESS); }

	nixlBackendPlugin *schedule(const std::string &fault) {
		const std::string name = folder + "/schedule.json";
		std::ofstream(name) << "{\"seed\": 3, \"log\": \"" << log << "\", \"faults\": [" << fault << "]}";
		std::ofstream(log, std::ios::trunc);
		setenv("KVFERRY_FAULTS", name.c_str(), 1);
		return loaded;
	}
	// logged are the lines of the log that name a fault.
	size_t logged(const std::string &fault) {
		size_t n = 0;
		std::ifstream file(log);
		for (std::string line; std::getline(file, line);)
			n += line.find("\"fault\":\"" + fault + "\"") != std::string::npos && line.find("\"agent\":\"two\",\"peer\":\"one\"") != std::string::npos;
		return n;
	}
	// transfer is one of two's, prepared, of all its pieces with gaps between them.
	Xfer transfer(nixl_xfer_op_t op) {
		Xfer x{two.engine, op, "one"};
		for (size_t at = 0; at < length; at += 2 * width) {
			x.local.addDesc(piece(theirs.blob().addr + at, width, theirs.local));
			x.remote.addDesc(piece(ours.blob().addr + at, width, remote));
		}
		CHECK(x.prepare() == NIXL_SUCCESS);
		return x;
	}
	// refill has the source say what the destination does not.
	Bytes &refill(nixl_xfer_op_t op, int round) {
		Bytes &source = op == NIXL_READ ? ours.bytes : theirs.bytes, &destination = op == NIXL_READ ? theirs.bytes : ours.bytes;
		for (size_t i = 0; i < length; i++)
			source[i] = (unsigned char)(before(i) + round);
		std::fill(destination.begin(), destination.end(), (unsigned char)0);
		return destination;
	}
	// wrong is how many bytes of a destination are not what was to land there.
	size_t wrong(const Bytes &destination, int round) {
		size_t n = 0;
		for (size_t i = 0; i < length; i++)
			n += destination[i] != (i / width % 2 ? 0 : (unsigned char)(before(i) + round));
		return n;
	}
	std::vector<std::string> came;
	std::vector<std::string> receive(size_t n) {
		until("notifications", [&] {
			for (auto &note : two.notifications(0))
				came.push_back(note.second);
			return came.size() >= n;
		});
		return came;
	}
};

using Texts = std::vector<std::string>;

static void notifications() {
	{
		Pair p(R"({"fault":"drop","from":1,"count":2,"skip":"HB:"})");
		for (const char *m : {"a", "HB:1", "b", "HB:2", "c", "d"}) {
			const size_t n = p.came.size(), lost = p.logged("drop");
			CHECK(p.one.engine->genNotif("two", m) == NIXL_SUCCESS);
			until("a message, or its loss", [&] {
				p.receive(0);
				return p.came.size() > n || p.logged("drop") > lost;
			});
		}
		CHECK((p.came == Texts{"a", "HB:1", "HB:2", "d"}) && p.logged("drop") == 2);
	}
	{
		Pair p(R"({"fault":"repeat","count":1})");
		CHECK(p.one.engine->genNotif("two", "a") == NIXL_SUCCESS);
		CHECK((p.receive(2) == Texts{"a", "a"}) && p.logged("repeat") == 1);
		CHECK(p.one.engine->genNotif("two", "b") == NIXL_SUCCESS);
		CHECK((p.receive(3) == Texts{"a", "a", "b"}));
	}
	{
		Pair p(R"({"fault":"delay","ms":300})");
		const auto sent = std::chrono::steady_clock::now();
		CHECK(p.one.engine->genNotif("two", "a") == NIXL_SUCCESS);
		CHECK((p.receive(1) == Texts{"a"}) && std::chrono::steady_clock::now() - sent >= std::chrono::milliseconds(299) && p.logged("delay") == 1);
	}
	{
		Pair p(R"({"fault":"reorder","ms":60000})");
		CHECK(p.one.engine->genNotif("two", "a") == NIXL_SUCCESS);
		until("b, and a behind it", [&] { // a has most likely come before the first b
			p.one.engine->genNotif("two", "b");
			p.receive(0);
			return p.logged("reorder") == 1;
		});
		p.receive(2);
		CHECK(p.came[0] != p.came[1] && std::count(p.came.begin(), p.came.end(), "a") == 1);
	}
}

static void transfers(nixl_xfer_op_t op) {
	const auto notified = [&](Pair &p, const char *message) {
		CHECK(p.one.notifications(1) == (notif_list_t{{"two", message}}));
	};
	{
		Pair p(R"({"fault":"tear","from":1})");
		Xfer x = p.transfer(op);
		for (int round = 0; round < 3; round++) {
			const Bytes &there = p.refill(op, round);
			CHECK(x.wait(x.post("n")) == NIXL_SUCCESS);
			notified(p, "n");
			size_t half = 0; // bytes that are wrong only by their value in the second half
			for (size_t i = length / 2; i < length; i++)
				half += i / width % 2 == 0 && there[i] != (unsigned char)(before(i) + round);
			CHECK(p.wrong(there, round) == (round == 1 ? half : 0) && (round == 1) == (half > length / 8));
		}
		CHECK(p.logged("tear") == 1 && x.release() == NIXL_SUCCESS);
	}
	{
		Pair p(R"({"fault":"flip","bytes":100,"count":2})");
		Xfer x = p.transfer(op);
		for (int round = 0; round < 3; round++) {
			const Bytes &there = p.refill(op, round);
			CHECK(x.wait(x.post("n")) == NIXL_SUCCESS);
			notified(p, "n");
			CHECK(p.wrong(there, round) == (round < 2 ? 100 : 0));
		}
		CHECK(p.logged("flip") == 2 && x.release() == NIXL_SUCCESS);
	}
	{
		Pair p(R"({"fault":"replay","after":2})");
		Xfer x = p.transfer(op);
		for (int round = 0; round < 3; round++) {
			const Bytes &there = p.refill(op, round);
			CHECK(x.wait(x.post()) == NIXL_SUCCESS);
			if (round < 2) {
				CHECK(p.wrong(there, round) == 0 && p.logged("replay") == 0);
				continue;
			}
			until("the first again", [&] { return p.two.engine->checkXfer(x.handle) == NIXL_SUCCESS && p.wrong(there, 0) == 0; });
			CHECK(p.logged("replay") == 1);
		}
		CHECK(x.release() == NIXL_SUCCESS);
	}
	{ // memory that has gone before the replay stays as it is
		Pair p(R"({"fault":"replay"})");
		Xfer x = p.transfer(op);
		CHECK(x.wait(x.post()) == NIXL_SUCCESS && x.release() == NIXL_SUCCESS);
		p.two.forget(p.theirs);
		Buffer &other = p.two.buffer(width, 1);
		Xfer next{p.two.engine, op, "one"};
		next.local.addDesc(piece(other.blob().addr, width, other.local));
		next.remote.addDesc(piece(p.ours.blob().addr, width, p.remote));
		CHECK(next.prepare() == NIXL_SUCCESS && next.wait(next.post()) == NIXL_SUCCESS && next.release() == NIXL_SUCCESS && p.logged("replay") == 0);
	}
	{
		Pair p(R"({"fault":"stall","ms":200},{"fault":"stall","from":1})");
		Xfer x = p.transfer(op);
		const Bytes &there = p.refill(op, 0);
		const auto posted = std::chrono::steady_clock::now();
		CHECK(x.post("n") == NIXL_IN_PROG && x.post() == NIXL_ERR_REPOST_ACTIVE && x.wait(NIXL_IN_PROG) == NIXL_SUCCESS);
		CHECK(std::chrono::steady_clock::now() - posted >= std::chrono::milliseconds(199));
		notified(p, "n");
		CHECK(p.wrong(there, 0) == 0 && p.logged("stall") == 1);
		CHECK(x.post() == NIXL_IN_PROG && p.two.engine->checkXfer(x.handle) == NIXL_IN_PROG && p.logged("stall") == 2); // for ever
		CHECK(x.release() == NIXL_SUCCESS);
	}
	{
		Pair p(R"({"fault":"flap","ms":200,"from":1})");
		Xfer x = p.transfer(op);
		const Bytes &there = p.refill(op, 0);
		CHECK(x.wait(x.post()) == NIXL_SUCCESS && x.post() == NIXL_ERR_REMOTE_DISCONNECT && x.post() == NIXL_ERR_REMOTE_DISCONNECT);
		until("the link's return", [&] { return x.wait(x.post()) == NIXL_SUCCESS; });
		CHECK(p.wrong(there, 0) == 0 && p.logged("flap") >= 2 && x.release() == NIXL_SUCCESS);
	}
}

int main(int argc, char **argv) {
	CHECK(argc == 3);
	loaded = plugin(argv[1]);
	folder = argv[2];
	CHECK(loaded);
	const auto refused = [](const std::string &text) {
		std::ofstream(folder + "/schedule.json") << text;
		setenv("KVFERRY_FAULTS", (folder + "/schedule.json").c_str(), 1);
		return !Agent(loaded, "a", loopback).engine;
	};
	CHECK(refused("{}") && refused(R"({"log":"/nosuch/log"})") && refused(R"({"log":"/dev/null","backend":"NOSUCH"})") && !refused(R"({"log":"/dev/null"})"));
	notifications();
	transfers(NIXL_READ);
	transfers(NIXL_WRITE);
	puts("ok");
}
