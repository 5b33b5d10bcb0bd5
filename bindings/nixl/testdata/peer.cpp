// peer LIBRARY target | initiator: one agent in each of two processes. The target prints what the initiator needs, as
// lines of hexadecimal digits, and the initiator reads them from standard input: as NIXL's users carry metadata.
// Rails are those of the environment.
#include "agent.h"

#include <iostream>

constexpr size_t length = 8 << 20, width = 12 << 10;

static unsigned char pattern(size_t at) { return (unsigned char)(at * 31 + at / 4096); }

static void say(const std::string &text) {
	for (const unsigned char c : text)
		printf("%02x", c);
	puts("");
}

static std::string hear() {
	std::string line, text;
	CHECK(std::getline(std::cin, line));
	for (size_t i = 0; i + 1 < line.size(); i += 2)
		text += char(std::stoi(line.substr(i, 2), nullptr, 16));
	return text;
}

static int target(Agent &agent) {
	Buffer &b = agent.buffer(length, 0);
	for (size_t i = 0; i < length; i++)
		b.bytes[i] = pattern(i);
	say(agent.connection());
	say(agent.metadata(b));
	say(std::to_string(b.blob().addr));
	fflush(stdout);
	CHECK(agent.notifications(1) == (notif_list_t{{"initiator", "was read"}})); // before its second transfer
	CHECK(agent.engine->loadRemoteConnInfo("initiator", hear()) == NIXL_SUCCESS);
	CHECK(agent.engine->genNotif("initiator", "go on") == NIXL_SUCCESS);
	CHECK(agent.notifications(1) == (notif_list_t{{"initiator", "was written"}}));
	for (size_t i = 0; i + width <= length; i += width)
		for (size_t k = 0; k < width; k++)
			CHECK(b.bytes[i + k] == (unsigned char)~pattern(i + k));
	puts("ok");
	fflush(stdout);
	for (std::string line; std::getline(std::cin, line);) // until it is told or killed
		;
	return 0;
}

static int initiator(Agent &agent) {
	Buffer &b = agent.buffer(length, 0);
	const std::string connection = hear(), metadata = hear();
	nixlBlobDesc place;
	place.addr = std::stoull(hear());
	place.len = length;
	place.devId = 0;
	CHECK(agent.engine->loadRemoteConnInfo("target", connection) == NIXL_SUCCESS && agent.engine->connect("target") == NIXL_SUCCESS);
	nixlBackendMD *md = agent.load("target", place, metadata);
	Xfer read{agent.engine, NIXL_READ, "target"}, write{agent.engine, NIXL_WRITE, "target"};
	for (size_t i = 0; i + width <= length; i += width)
		for (Xfer *x : {&read, &write}) {
			x->local.addDesc(piece(b.blob().addr + i, width, b.local));
			x->remote.addDesc(piece(place.addr + i, width, md));
		}
	CHECK(read.prepare() == NIXL_SUCCESS && write.prepare() == NIXL_SUCCESS);
	CHECK(read.wait(read.post("was read")) == NIXL_SUCCESS);
	say(agent.connection());
	fflush(stdout);
	for (size_t i = 0; i < length; i++) {
		CHECK(b.bytes[i] == (i / width < length / width ? pattern(i) : 0));
		b.bytes[i] = (unsigned char)~b.bytes[i];
	}
	CHECK(agent.notifications(1) == (notif_list_t{{"target", "go on"}}));
	CHECK(write.wait(write.post("was written")) == NIXL_SUCCESS);
	puts("stop"); // the target, which then does not answer
	fflush(stdout);
	hear();
	CHECK(write.post() >= 0 && write.release() == NIXL_SUCCESS); // at the first try
	puts("kill");                                                // from now on the target may be
	fflush(stdout);
	nixl_status_t status = NIXL_SUCCESS;
	until("the target's end", [&] { return (status = read.wait(read.post())) != NIXL_SUCCESS; });
	CHECK(status == NIXL_ERR_REMOTE_DISCONNECT && read.release() == NIXL_SUCCESS);
	CHECK(agent.engine->unloadMD(md) == NIXL_SUCCESS && agent.engine->disconnect("target") == NIXL_SUCCESS);
	puts("ok");
	return 0;
}

int main(int argc, char **argv) {
	CHECK(argc == 3);
	const std::string role = argv[2];
	auto *loaded = plugin(argv[1]);
	CHECK(loaded);
	Agent agent(loaded, role, {{"timeout", "2"}});
	CHECK(agent.engine);
	return role == "target" ? target(agent) : initiator(agent);
}
