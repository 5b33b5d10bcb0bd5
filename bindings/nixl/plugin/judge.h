// A backend around another one, which does to its transfers and notifications what a schedule says. To NIXL it is
// KVFERRY; what moves the bytes is UCX, any other of NIXL's plugins, or kvferry.
//
// There is no thread here: what is due later is done in the call that comes next.
#pragma once

#include "abi.h"
#include "schedule.h"

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

// An Inner is the backend that is wrapped, and how it is destroyed.
using Inner = std::unique_ptr<nixlBackendEngine, std::function<void(nixlBackendEngine *)>>;

class Judge : public nixlBackendEngine {
public:
	// It throws std::runtime_error if the log cannot be written.
	Judge(const nixlBackendInitParams *params, const Schedule &schedule, Inner wrapped);
	~Judge() override;

	bool supportsRemote() const override { return inner->supportsRemote(); }
	bool supportsLocal() const override { return inner->supportsLocal(); }
	bool supportsNotif() const override { return inner->supportsNotif(); }
	nixl_mem_list_t getSupportedMems() const override { return inner->getSupportedMems(); }
	nixl_status_t registerMem(const nixlBlobDesc &m, const nixl_mem_t &kind, nixlBackendMD *&out) override { return inner->registerMem(m, kind, out); }
	nixl_status_t deregisterMem(nixlBackendMD *md) override;
	nixl_status_t connect(const std::string &agent) override { return inner->connect(agent); }
	nixl_status_t disconnect(const std::string &agent) override { return inner->disconnect(agent); }
	nixl_status_t unloadMD(nixlBackendMD *md) override;
	nixl_status_t getPublicData(const nixlBackendMD *md, std::string &out) const override { return inner->getPublicData(md, out); }
	nixl_status_t getConnInfo(std::string &out) const override;
	nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override;
	nixl_status_t loadRemoteMD(const nixlBlobDesc &m, const nixl_mem_t &kind, const std::string &agent, nixlBackendMD *&out) override {
		return inner->loadRemoteMD(m, kind, agent, out);
	}
	nixl_status_t loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) override { return inner->loadLocalMD(in, out); }
	nixl_status_t genNotif(const std::string &agent, const std::string &message) const override { return inner->genNotif(agent, message); }
	nixl_status_t getNotifs(notif_list_t &out) override;

	nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
	                       nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
	nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
	                       nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
	nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;

private:
	struct Move;
	struct Transfer;
	struct Replay;

	static std::unique_ptr<Move> rewrite(const Move &move, uint64_t from, std::vector<unsigned char> bytes);
	static void put(const Move &move, uint64_t from, const std::vector<unsigned char> &bytes);

	// All of these want mutex to be held.
	nixl_status_t begin(Transfer &transfer) const;
	nixl_status_t advance(Transfer &transfer, nixl_status_t status) const;
	void landed(Transfer &transfer) const;
	nixl_status_t post(Move &move) const;
	bool finish(Move &move) const;
	void tidy() const;
	void forget(const nixlBackendMD *md);

	void log(const Drawn &drawn, const std::string &peer, const std::string &more) const;

	Inner inner;
	std::string over; // the other backend, as peers are told; kvferry's own speaks to those without a judge too
	int file = -1; // the log
	mutable std::mutex mutex;
	mutable Draws draws;
	Notes notes;
	mutable uint64_t flapsUntil = 0; // ms
	mutable Drawn flap;              // why
	mutable std::unordered_map<nixlBackendReqH *, std::unique_ptr<Transfer>> transfers;
	mutable std::vector<std::unique_ptr<Replay>> replays;
	mutable std::vector<std::unique_ptr<Move>> late; // under way without a transfer of NIXL's
};
