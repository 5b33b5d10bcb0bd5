// What NIXL's core does with a plugin, for tests that have no NIXL: it is opened with dlopen, and called through the
// table of functions that nixl_plugin_init returns and those of the engine.
#pragma once

#include "../plugin/abi.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define CHECK(cond) \
	((cond) ? void() : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond), exit(1)))

// until polls what is awaited; it takes long only if it does not come.
inline void until(const char *what, const std::function<bool()> &there) {
	const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
	while (!there()) {
		if (std::chrono::steady_clock::now() > deadline) {
			fprintf(stderr, "%s: not within a minute\n", what);
			exit(1);
		}
		std::this_thread::yield();
	}
}

inline nixlBackendPlugin *plugin(const std::string &path) {
	void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"))();
}

using Bytes = std::vector<unsigned char>;

// One registered buffer, with what the core keeps of it.
struct Buffer {
	Bytes bytes;
	nixlBackendMD *local = nullptr, *self = nullptr;
	nixlBlobDesc blob() const {
		nixlBlobDesc d;
		d.addr = reinterpret_cast<uintptr_t>(bytes.data());
		d.len = bytes.size();
		d.devId = 0;
		return d;
	}
};

struct Agent {
	nixlBackendPlugin *from;
	std::string name;
	nixl_b_params_t params;
	nixlBackendEngine *engine = nullptr;
	std::vector<std::unique_ptr<Buffer>> buffers;

	Agent(nixlBackendPlugin *p, const std::string &agent, const nixl_b_params_t &given) : from(p), name(agent), params(given) {
		nixlBackendInitParams init;
		init.localAgent = agent;
		init.type = from->get_plugin_name();
		init.customParams = &params;
		engine = from->create_engine(&init);
		if (!engine)
			return;
		CHECK(!engine->getInitErr() && engine->getType() == init.type && engine->getCustomParams() == params);
		CHECK(engine->supportsNotif() && engine->supportsLocal() && engine->supportsRemote());
		CHECK(engine->connect(agent) == NIXL_SUCCESS);
	}
	~Agent() {
		if (!engine)
			return;
		while (!buffers.empty())
			forget(*buffers.back());
		from->destroy_engine(engine);
	}
	Agent(const Agent &) = delete;

	Buffer &buffer(size_t length, unsigned char fill) {
		buffers.push_back(std::make_unique<Buffer>());
		Buffer &b = *buffers.back();
		b.bytes.assign(length, fill);
		CHECK(engine->registerMem(b.blob(), DRAM_SEG, b.local) == NIXL_SUCCESS);
		CHECK(engine->loadLocalMD(b.local, b.self) == NIXL_SUCCESS);
		return b;
	}
	// forget deregisters a buffer, and frees it.
	void forget(Buffer &b) {
		CHECK(engine->unloadMD(b.self) == NIXL_SUCCESS && engine->deregisterMem(b.local) == NIXL_SUCCESS);
		for (size_t i = 0; i < buffers.size(); i++)
			if (buffers[i].get() == &b) {
				buffers.erase(buffers.begin() + long(i));
				return;
			}
	}
	// load is what the core does with a peer's metadata.
	nixlBackendMD *load(const std::string &agent, nixlBlobDesc place, const std::string &metadata) {
		nixlBackendMD *md = nullptr;
		place.metaInfo = metadata;
		CHECK(engine->loadRemoteMD(place, DRAM_SEG, agent, md) == NIXL_SUCCESS);
		return md;
	}
	std::string metadata(const Buffer &b) {
		std::string text;
		CHECK(engine->getPublicData(b.local, text) == NIXL_SUCCESS && !text.empty());
		return text;
	}
	std::string connection() {
		std::string text;
		CHECK(engine->getConnInfo(text) == NIXL_SUCCESS && !text.empty());
		return text;
	}
	// notifications takes them until so many are there, and one more time.
	notif_list_t notifications(size_t count) {
		notif_list_t all;
		until("notifications", [&] { return engine->getNotifs(all) == NIXL_SUCCESS && all.size() >= count; });
		CHECK(engine->getNotifs(all) == NIXL_SUCCESS);
		return all;
	}
};

inline nixlMetaDesc piece(uintptr_t address, size_t length, nixlBackendMD *md) {
	nixlMetaDesc d;
	d.addr = address;
	d.len = length;
	d.devId = 0;
	d.metadataP = md;
	return d;
}

// A transfer as the core has it: both lists, and the handle.
struct Xfer {
	nixlBackendEngine *engine;
	nixl_xfer_op_t op;
	std::string peer;
	nixl_meta_dlist_t local{DRAM_SEG}, remote{DRAM_SEG};
	nixlBackendReqH *handle = nullptr;

	nixl_status_t prepare() { return engine->prepXfer(op, local, remote, peer, handle, nullptr); }
	nixl_status_t post() { return engine->postXfer(op, local, remote, peer, handle, nullptr); }
	nixl_status_t post(const std::string &message) {
		nixl_opt_b_args_t args;
		args.hasNotif = true;
		args.notifMsg = message;
		return engine->postXfer(op, local, remote, peer, handle, &args);
	}
	nixl_status_t wait(nixl_status_t status) {
		until("a transfer", [&] { return status != NIXL_IN_PROG || (status = engine->checkXfer(handle)) != NIXL_IN_PROG; });
		return status;
	}
	nixl_status_t release() { return engine->releaseReqH(handle); }
};
