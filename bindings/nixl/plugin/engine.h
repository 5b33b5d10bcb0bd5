// A NIXL backend over kvferry's transfer engine, by kvferry.h alone.
//
//   agent           an engine, whose rails NIXL's user names
//   registered      a segment, whose advertisement is NIXL's public metadata of it
//   remote memory   a target, opened from that advertisement
//   transfer        a batch for each target that it touches; ranges are made when it is prepared, so that posting
//                   it again and again costs nothing but the submission
//   notification    the message of the batch; of a transfer with several targets, of one more, sent when they have ended
//
// There is no thread here: kvferry's own move the bytes, and completions are polled when NIXL asks.
#pragma once

#include "abi.h"
#include "kvferry.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

class Ferry : public nixlBackendEngine {
public:
	// It throws std::runtime_error, whose text is for the user.
	explicit Ferry(const nixlBackendInitParams *params);
	~Ferry() override;

	static nixl_b_params_t options();
	static nixl_mem_list_t memories();

	bool supportsRemote() const override { return true; }
	bool supportsLocal() const override { return true; }
	bool supportsNotif() const override { return true; }
	nixl_mem_list_t getSupportedMems() const override { return memories(); }

	nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &kind, nixlBackendMD *&out) override;
	nixl_status_t deregisterMem(nixlBackendMD *meta) override;
	nixl_status_t connect(const std::string &agent) override;
	nixl_status_t disconnect(const std::string &agent) override;
	nixl_status_t unloadMD(nixlBackendMD *meta) override;

	nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
	                       nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
	nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
	                       nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const override;
	nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;

	nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &out) const override;
	nixl_status_t getConnInfo(std::string &out) const override;
	nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override;
	nixl_status_t loadRemoteMD(const nixlBlobDesc &memory, const nixl_mem_t &kind, const std::string &agent, nixlBackendMD *&out) override;
	nixl_status_t loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) override;
	nixl_status_t getNotifs(notif_list_t &out) override;
	nixl_status_t genNotif(const std::string &agent, const std::string &message) const override;

private:
	// What the core keeps a pointer to: memory registered here, or a peer's.
	struct Memory : nixlBackendMD {
		Memory() : nixlBackendMD(false) {}

		uintptr_t base = 0;
		uint64_t length = 0; // bytes
		bool remote = false;
		std::string advertisement;
		kvf_segment segment = 0; // of memory registered here
		kvf_target target = 0;   // of a peer's, or of one's own as a peer's; 0: not opened yet
	};

	struct Transfer : nixlBackendReqH {
		struct Part {
			kvf_target target;  // the peer's memory; it may be closed while the transfer is there
			const Memory *last; // registered here, of the last range
			std::vector<kvf_range> ranges;
		};

		int op = KVF_READ;
		std::string agent;
		std::vector<Part> parts;

		// Of the last post.
		std::vector<kvf_batch> batches; // under way
		nixl_status_t status = NIXL_ERR_NOT_POSTED;
		bool canceled = false;
		bool notifies = false; // message has not been sent yet
		std::string message;

		bool active() const { return !batches.empty(); }
	};

	// All of these want mutex to be held.
	nixl_status_t make(const nixlBasicDesc &place, nixl_mem_t kind, Memory *&out);
	nixl_status_t load(const nixlBasicDesc &place, const std::string &advertisement, kvf_target target, nixlBackendMD *&out);
	Memory *known(const nixlBackendMD *meta, bool remote) const;
	Transfer *known(nixlBackendReqH *handle) const;
	nixl_status_t peer(const std::string &agent, kvf_target &out) const;
	nixl_status_t opened(Memory &memory) const;
	nixl_status_t poll() const;
	void ended(const kvf_completion &completion) const;
	nixl_status_t submit(Transfer &transfer, kvf_target target, const std::vector<kvf_range> &ranges) const;
	nixl_status_t go(Transfer &transfer) const;
	void cancel(Transfer &transfer) const;

	kvf_engine engine = 0;
	mutable std::mutex mutex;
	std::unordered_map<const nixlBackendMD *, std::unique_ptr<Memory>> memory; // registered here, and loaded of peers
	mutable std::unordered_map<std::string, kvf_target> peers;                 // by the agent's name, for notifications
	mutable std::unordered_map<nixlBackendReqH *, std::unique_ptr<Transfer>> transfers;
	mutable std::vector<kvf_completion> completions; // room to poll into
	std::vector<char> message;                       // likewise
	char anchor[64] = {};                            // what peers open to send notifications without a transfer
	std::string connection;                          // its advertisement
};
