#include "engine.h"

#include "cuda.h"
#include "report.h"
#include "settings.h"

#include <stdexcept>
#include <unistd.h>

nixl_b_params_t Ferry::options() { return {{"rails", ""}, {"timeout", ""}}; }

nixl_mem_list_t Ferry::memories() {
	if (cuda::present())
		return {DRAM_SEG, VRAM_SEG};
	return {DRAM_SEG};
}

Ferry::Ferry(const nixlBackendInitParams *params) : nixlBackendEngine(params), completions(64), message(64 << 10) {
	const Settings set = settings(*params->customParams);
	if (kvf_version() >> 16 != KVF_VERSION_MAJOR || kvf_version() < KVF_VERSION)
		throw std::runtime_error(std::string("libkvferry.so is another version than the plugin: build both together: ") + kvf_build());
	kvf_engine_options o{};
	o.struct_size = sizeof(o);
	o.rails = set.rails.c_str();
	o.timeout_ms = set.timeoutMs;
	o.name = localAgent.c_str();
	if (kvf_engine_open(&o, &engine) != KVF_OK)
		throw std::runtime_error("rails \"" + set.rails + "\" (parameter rails, KVFERRY_RAILS): " + kvf_error());
	Memory *own = nullptr;
	nixlBasicDesc place{};
	place.addr = reinterpret_cast<uintptr_t>(anchor);
	place.len = sizeof(anchor);
	if (make(place, DRAM_SEG, own) != NIXL_SUCCESS) {
		kvf_engine_close(engine);
		throw std::runtime_error("memory for notifications cannot be registered");
	}
	connection = own->advertisement;
}

Ferry::~Ferry() { kvf_engine_close(engine); }

// make registers memory.
nixl_status_t Ferry::make(const nixlBasicDesc &place, nixl_mem_t kind, Memory *&out) {
	auto made = std::make_unique<Memory>();
	made->base = place.addr;
	made->length = place.len;
	kvf_memory m{};
	m.struct_size = sizeof(m);
	m.address = reinterpret_cast<void *>(place.addr);
	m.length = place.len;
	m.name = "nixl";
	const std::string gpu = "cuda:" + std::to_string(place.devId);
	if (kind == VRAM_SEG) {
		cuda::Buffer buffer;
		if (const std::string wrong = cuda::buffer(place.addr, buffer); !wrong.empty())
			return report(NIXL_ERR_NOT_SUPPORTED, "memory of " + gpu + ": " + wrong);
		m.kind = KVF_MEMORY_DMABUF;
		m.descriptor = buffer.descriptor;
		m.offset = buffer.offset;
		m.location = gpu.c_str();
	} else if (kind != DRAM_SEG) {
		return report(NIXL_ERR_NOT_SUPPORTED, "memory of kind " + std::to_string(kind) + ": only host memory and GPUs' can be registered");
	}
	int code = kvf_register(engine, &m, &made->segment);
	if (kind == VRAM_SEG)
		close(m.descriptor); // the library keeps one of its own
	if (code != KVF_OK)
		return failed(code, "registering " + std::to_string(place.len) + " bytes");
	size_t length = 0;
	code = kvf_advertise(engine, &made->segment, 1, nullptr, 0, &length);
	if (code == KVF_ERR_SPACE) {
		made->advertisement.resize(length + 1);
		code = kvf_advertise(engine, &made->segment, 1, made->advertisement.data(), made->advertisement.size(), &length);
		made->advertisement.resize(length);
	}
	if (code != KVF_OK) {
		const nixl_status_t status = failed(code, "advertising memory");
		kvf_deregister(engine, made->segment);
		return status;
	}
	out = made.get();
	memory.emplace(out, std::move(made));
	return NIXL_SUCCESS;
}

// known is what a pointer of the core's stands for, or nullptr: one that was not given to it is not looked at.
Ferry::Memory *Ferry::known(const nixlBackendMD *meta, bool remote) const {
	const auto it = memory.find(meta);
	return it == memory.end() || it->second->remote != remote ? nullptr : it->second.get();
}

nixl_status_t Ferry::registerMem(const nixlBlobDesc &place, const nixl_mem_t &kind, nixlBackendMD *&out) {
	const std::lock_guard lock(mutex);
	Memory *made = nullptr;
	const nixl_status_t status = make(place, kind, made);
	if (status == NIXL_SUCCESS)
		out = made;
	return status;
}

nixl_status_t Ferry::deregisterMem(nixlBackendMD *meta) {
	const std::lock_guard lock(mutex);
	const Memory *m = known(meta, false);
	if (!m)
		return report(NIXL_ERR_INVALID_PARAM, "deregistering memory that is not registered");
	const int code = kvf_deregister(engine, m->segment);
	memory.erase(meta);
	return code == KVF_OK ? NIXL_SUCCESS : failed(code, "deregistering memory");
}

// load notes memory of a peer's, opened or not.
nixl_status_t Ferry::load(const nixlBasicDesc &place, const std::string &advertisement, kvf_target target, nixlBackendMD *&out) {
	auto made = std::make_unique<Memory>();
	made->base = place.addr;
	made->length = place.len;
	made->remote = true;
	made->advertisement = advertisement;
	made->target = target;
	out = made.get();
	memory.emplace(out, std::move(made));
	return NIXL_SUCCESS;
}

nixl_status_t Ferry::loadRemoteMD(const nixlBlobDesc &place, const nixl_mem_t &, const std::string &agent, nixlBackendMD *&out) {
	const std::lock_guard lock(mutex);
	kvf_target target = 0;
	if (const int code = kvf_connect(engine, place.metaInfo.data(), place.metaInfo.size(), &target); code != KVF_OK)
		return failed(code, "memory of agent " + agent);
	return load(place, place.metaInfo, target, out);
}

// Memory of one's own is opened when the first transfer needs that: most agents have none to themselves.
nixl_status_t Ferry::loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) {
	const std::lock_guard lock(mutex);
	const Memory *m = known(in, false);
	if (!m)
		return report(NIXL_ERR_INVALID_PARAM, "loading memory that is not registered");
	nixlBasicDesc place{};
	place.addr = m->base;
	place.len = m->length;
	return load(place, m->advertisement, 0, out);
}

nixl_status_t Ferry::unloadMD(nixlBackendMD *meta) {
	const std::lock_guard lock(mutex);
	const Memory *m = known(meta, true);
	if (!m)
		return report(NIXL_ERR_INVALID_PARAM, "unloading memory that is not loaded");
	const int code = m->target == 0 ? KVF_OK : kvf_disconnect(engine, m->target);
	memory.erase(meta);
	return code == KVF_OK ? NIXL_SUCCESS : failed(code, "unloading memory");
}

nixl_status_t Ferry::getPublicData(const nixlBackendMD *meta, std::string &out) const {
	out = static_cast<const Memory *>(meta)->advertisement;
	return NIXL_SUCCESS;
}

nixl_status_t Ferry::getConnInfo(std::string &out) const {
	out = connection;
	return NIXL_SUCCESS;
}

nixl_status_t Ferry::loadRemoteConnInfo(const std::string &agent, const std::string &info) {
	const std::lock_guard lock(mutex);
	kvf_target target = 0;
	if (const int code = kvf_connect(engine, info.data(), info.size(), &target); code != KVF_OK)
		return failed(code, "agent " + agent);
	kvf_target &known = peers[agent];
	if (known != 0)
		kvf_disconnect(engine, known);
	known = target;
	return NIXL_SUCCESS;
}

// connect has nothing to do: kvferry connects in the background to the peers that are known.
nixl_status_t Ferry::connect(const std::string &agent) {
	const std::lock_guard lock(mutex);
	if (agent == localAgent || peers.count(agent))
		return NIXL_SUCCESS;
	return report(NIXL_ERR_NOT_FOUND, "agent " + agent + " is not known: load its metadata first");
}

nixl_status_t Ferry::disconnect(const std::string &agent) {
	const std::lock_guard lock(mutex);
	const auto it = peers.find(agent);
	if (it == peers.end())
		return agent == localAgent ? NIXL_SUCCESS : report(NIXL_ERR_NOT_FOUND, "disconnecting agent " + agent + ", which is not known");
	kvf_disconnect(engine, it->second);
	peers.erase(it);
	return NIXL_SUCCESS;
}
