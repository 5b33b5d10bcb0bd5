// What a plugin and NIXL's core share: the classes whose layout and virtual functions both sides
// have to agree on, as NIXL 1.5.1 has them. Only what a plugin meets is declared, and nothing of it is
// linked: NIXL calls through tables of functions, and reads members where they lie.
//
// Compiled with KVFERRY_NIXL_HEADERS, NIXL's own headers take the place of this one.
//
// The order of members and of virtual functions is the interface; so are the names, which NIXL's
// headers give to the same things. loader.h compares sizes with those of the NIXL that loads the plugin.
#pragma once

#ifdef KVFERRY_NIXL_HEADERS
#include "backend/backend_plugin.h"
#else

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

enum nixl_status_t : int {
	NIXL_IN_PROG = 1,
	NIXL_SUCCESS = 0,
	NIXL_ERR_NOT_POSTED = -1,
	NIXL_ERR_INVALID_PARAM = -2,
	NIXL_ERR_BACKEND = -3,
	NIXL_ERR_NOT_FOUND = -4,
	NIXL_ERR_MISMATCH = -5,
	NIXL_ERR_NOT_ALLOWED = -6,
	NIXL_ERR_REPOST_ACTIVE = -7,
	NIXL_ERR_UNKNOWN = -8,
	NIXL_ERR_NOT_SUPPORTED = -9,
	NIXL_ERR_REMOTE_DISCONNECT = -10,
	NIXL_ERR_CANCELED = -11,
};
enum nixl_mem_t : unsigned { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t : unsigned { NIXL_READ, NIXL_WRITE };
enum class nixl_thread_sync_t : int { NIXL_THREAD_SYNC_NONE };
enum class nixl_cost_t : int { ANALYTICAL_BACKEND };

using nixl_blob_t = std::string; // bytes
using nixl_backend_t = std::string;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>; // sender, message
using nixlMemViewH = void *;
struct nixlAgentOptionalArgs; // passed on, never looked into
using nixl_opt_args_t = nixlAgentOptionalArgs;

// Memory of a device. A plugin copies and compares them; the rest is the core's.
class nixlBasicDesc {
public:
	uintptr_t addr;
	size_t len; // bytes
	uint64_t devId;
};

class nixlBlobDesc : public nixlBasicDesc {
public:
	nixl_blob_t metaInfo; // of remote memory: what getPublicData gave there
};

// What a plugin has to say of registered or remote memory: the core keeps the pointer.
class nixlBackendMD {
public:
	explicit nixlBackendMD(bool isPrivate) : isPrivateMD(isPrivate) {}
	virtual ~nixlBackendMD() = default;

protected:
	bool isPrivateMD;
};

class nixlMetaDesc : public nixlBasicDesc {
public:
	nixlBackendMD *metadataP = nullptr;
};

struct nixlRemoteMetaDesc : nixlMetaDesc {
	std::string remoteAgent;
};

// Descriptors of one kind of memory. The virtual functions have a place in the table; plugins call none.
template <class T> class nixlDescList {
public:
	explicit nixlDescList(const nixl_mem_t &kind) : type(kind) {}
	nixlDescList(const nixlDescList &) = default;
	virtual ~nixlDescList() = default;

	virtual void resize(const size_t &count) { descs.resize(count); }
	virtual void addDesc(const T &desc) { descs.push_back(desc); }
	virtual int getIndex(const nixlBasicDesc &query) const {
		for (size_t i = 0; i < descs.size(); i++)
			if (descs[i].addr == query.addr && descs[i].len == query.len && descs[i].devId == query.devId)
				return int(i);
		return NIXL_ERR_NOT_FOUND;
	}

	nixl_mem_t getType() const { return type; }
	int descCount() const { return int(descs.size()); }
	const T &operator[](size_t i) const { return descs[i]; }
	T &operator[](size_t i) { return descs[i]; }
	void clear() { descs.clear(); }
	template <class... Args> T &emplace(Args &&...args) { return descs.emplace_back(std::forward<Args>(args)...); }

protected:
	nixl_mem_t type;
	std::vector<T> descs;
};
using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

// A transfer that was prepared: a plugin's own class is derived from it.
class nixlBackendReqH {
public:
	virtual ~nixlBackendReqH() = default;
};

struct nixlBackendOptionalArgs {
	nixl_blob_t notifMsg;
	bool hasNotif = false;
	nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

class nixlBackendInitParams {
public:
	std::string localAgent;
	nixl_backend_t type;
	nixl_b_params_t *customParams = nullptr;
	bool enableProgTh = false;
	uint64_t pthrDelay = 0; // microseconds
	nixl_thread_sync_t syncMode = nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE;
	bool enableTelemetry_ = false;
};

struct nixlTelemetryEvent {
	uint32_t eventType_;
	uint64_t value_;
};

// A backend. The core reads the first two members and initErr in place, and moves the events out.
class nixlBackendEngine {
	nixl_backend_t backendType;
	nixl_b_params_t customParams;
	std::vector<nixlTelemetryEvent> telemetryEvents_;
	std::mutex telemetryEventsMutex_;

protected:
	bool initErr = false;
	const std::string localAgent;
	const bool enableTelemetry_;

public:
	explicit nixlBackendEngine(const nixlBackendInitParams *p)
		: backendType(p->type), customParams(*p->customParams), localAgent(p->localAgent), enableTelemetry_(p->enableTelemetry_) {}
	nixlBackendEngine(const nixlBackendEngine &) = delete;
	void operator=(const nixlBackendEngine &) = delete;
	virtual ~nixlBackendEngine() = default;

	bool getInitErr() const noexcept { return initErr; }
	const nixl_backend_t &getType() const noexcept { return backendType; }
	const nixl_b_params_t &getCustomParams() const noexcept { return customParams; }

	// What it can do, and with which memory.
	virtual bool supportsRemote() const = 0;
	virtual bool supportsLocal() const = 0;
	virtual bool supportsNotif() const = 0;
	virtual nixl_mem_list_t getSupportedMems() const = 0;

	// Local memory; peers by name; what was loaded of either.
	virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&) = 0;
	virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
	virtual nixl_status_t connect(const std::string &agent) = 0;
	virtual nixl_status_t disconnect(const std::string &agent) = 0;
	virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;

	// Transfers.
	virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
	                               const std::string &agent, nixlBackendReqH *&, const nixl_opt_b_args_t * = nullptr) const = 0;
	virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
	                               const std::string &agent, nixlBackendReqH *&, const nixl_opt_b_args_t * = nullptr) const = 0;
	virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
	virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;

	// Memory as a GPU's kernels see it.
	virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &, const nixl_opt_b_args_t * = nullptr) const { return NIXL_ERR_NOT_SUPPORTED; }
	virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixl_opt_b_args_t * = nullptr) const { return NIXL_ERR_NOT_SUPPORTED; }
	virtual void releaseMemView(nixlMemViewH) const {}

	// Of backends with supportsRemote.
	virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const { return NIXL_ERR_BACKEND; }
	virtual nixl_status_t getConnInfo(std::string &) const { return NIXL_ERR_BACKEND; }
	virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &) { return NIXL_ERR_BACKEND; }
	virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const std::string &, nixlBackendMD *&) { return NIXL_ERR_BACKEND; }
	// With supportsLocal.
	virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&) { return NIXL_ERR_BACKEND; }
	// With supportsNotif.
	virtual nixl_status_t getNotifs(notif_list_t &) { return NIXL_ERR_BACKEND; }
	virtual nixl_status_t genNotif(const std::string &, const std::string &) const { return NIXL_ERR_BACKEND; }

	// Of storage, and forecasts.
	virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const { return NIXL_ERR_NOT_SUPPORTED; }
	virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
	                                       nixlBackendReqH *const &, std::chrono::microseconds &, std::chrono::microseconds &, nixl_cost_t &,
	                                       const nixl_opt_args_t * = nullptr) const { return NIXL_ERR_NOT_SUPPORTED; }
};

// What nixl_plugin_init returns.
class nixlBackendPlugin {
public:
	int api_version;
	nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
	void (*destroy_engine)(nixlBackendEngine *);
	const char *(*get_plugin_name)();
	const char *(*get_plugin_version)();
	nixl_b_params_t (*get_backend_options)();
	nixl_mem_list_t (*get_backend_mems)();
};
constexpr int NIXL_PLUGIN_API_VERSION = 1;

#endif

// Bytes, with the C++ library of GCC on 64 bits: NIXL's headers have to come to the same.
static_assert(sizeof(nixlBlobDesc) == 56 && sizeof(nixlMetaDesc) == 32 && sizeof(nixl_meta_dlist_t) == 40);
static_assert(sizeof(nixlBackendMD) == 16 && sizeof(nixlBackendReqH) == 8 && sizeof(nixlBackendOptionalArgs) == 72);
static_assert(sizeof(nixlBackendInitParams) == 96);
static_assert(sizeof(nixlBackendEngine) == 208 && sizeof(nixlBackendPlugin) == 56);
