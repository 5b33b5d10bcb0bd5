#ifndef KVFERRY_IBVERBS_H
#define KVFERRY_IBVERBS_H

#include <stddef.h>
#include <stdint.h>

// What the rail uses of the binary interface of libibverbs.so.1, which a program opens as it
// runs and is built without. Names are those of the manual pages ibv_*(3). TestLayout holds
// sizes, offsets and values to libibverbs' own header where that is installed.
//
// A field whose name begins with unused is there for its place: it is not read, and zero where
// it is written. Of what only the library makes, the end is left out.

struct ibv_pd;
struct ibv_srq;
struct ibv_qp;
struct ibv_cq;
struct ibv_send_wr;
struct ibv_recv_wr;
struct ibv_wc;
struct _compat_ibv_port_attr;

enum ibv_port_state { IBV_PORT_ACTIVE = 4 };
enum { IBV_LINK_LAYER_INFINIBAND = 1 };
enum ibv_event_type { IBV_EVENT_DEVICE_FATAL = 8, IBV_EVENT_PORT_ACTIVE = 9, IBV_EVENT_PORT_ERR = 10 };
enum ibv_access_flags { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4 };
enum ibv_qp_type { IBV_QPT_RC = 2 };
enum ibv_qp_state { IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_ERR = 6 };
enum ibv_wr_opcode { IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_RDMA_READ = 4 };
enum ibv_send_flags { IBV_SEND_SIGNALED = 1 << 1, IBV_SEND_INLINE = 1 << 3 };

enum ibv_qp_attr_mask {
	IBV_QP_STATE = 1 << 0,
	IBV_QP_ACCESS_FLAGS = 1 << 3,
	IBV_QP_PKEY_INDEX = 1 << 4,
	IBV_QP_PORT = 1 << 5,
	IBV_QP_AV = 1 << 7,
	IBV_QP_PATH_MTU = 1 << 8,
	IBV_QP_TIMEOUT = 1 << 9,
	IBV_QP_RETRY_CNT = 1 << 10,
	IBV_QP_RNR_RETRY = 1 << 11,
	IBV_QP_RQ_PSN = 1 << 12,
	IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	IBV_QP_MIN_RNR_TIMER = 1 << 15,
	IBV_QP_SQ_PSN = 1 << 16,
	IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	IBV_QP_DEST_QPN = 1 << 20,
};

union ibv_gid {
	uint8_t raw[16];
	uint64_t unused_align;
};

struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index, port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct ibv_device {
	void *unused_ops[2];
	int unused_types[2];
	char name[64];
	char dev_name[64]; // uverbs0
};

// The calls that move bytes are the driver's own: the library has no symbols for them.
struct ibv_context_ops {
	void *unused_first[11];
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited);
	void *unused_middle[12];
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	void *unused_last[5];
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int unused_fd;
	int async_fd;
};

struct ibv_device_attr {
	char unused_version[64];
	uint64_t unused_guids[2];
	uint64_t max_mr_size;
	uint64_t unused_pages;
	uint32_t unused_vendor[3];
	int unused_qp;
	int max_qp_wr;
	int unused_sge[4];
	int max_cqe;
	int unused_mr[2];
	int max_qp_rd_atom;
	int unused_reads[2];
	int max_qp_init_rd_atom;
	int unused_more[16];
	uint16_t unused_keys;
	uint8_t unused_delay;
	uint8_t phys_port_cnt;
};

struct ibv_port_attr {
	enum ibv_port_state state;
	int unused_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t unused_flags;
	uint32_t max_msg_sz;
	uint32_t unused_counters[2];
	uint16_t unused_table;
	uint16_t lid;
	uint16_t unused_manager;
	uint8_t unused_link[8];
	uint8_t link_layer;
	uint8_t unused_more[5];
};

struct ibv_async_event {
	union {
		int port_num;
		void *unused_object;
	} element;
	enum ibv_event_type event_type;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t unused_handle;
	uint32_t lkey, rkey;
};

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd;
};

struct ibv_cq {
	struct ibv_context *context;
};

struct ibv_qp {
	struct ibv_context *context;
	void *unused_objects[5];
	uint32_t unused_handle;
	uint32_t qp_num;
};

struct ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr;
	uint32_t max_send_sge, max_recv_sge;
	uint32_t max_inline_data;
};

struct ibv_qp_init_attr {
	void *unused_context;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
};

struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct ibv_qp_attr {
	enum ibv_qp_state qp_state;
	int unused_state;
	int path_mtu;
	int unused_migration;
	uint32_t unused_qkey;
	uint32_t rq_psn, sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr;
	struct ibv_ah_attr unused_ah_attr;
	uint16_t pkey_index;
	uint16_t unused_pkey_index;
	uint8_t unused_drain[2];
	uint8_t max_rd_atomic, max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt, rnr_retry;
	uint8_t unused_port[2];
	uint32_t unused_rate;
};

struct ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_wr_opcode opcode;
	unsigned int send_flags;
	uint32_t imm_data; // in network byte order
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		uint64_t unused_others[4];
	} wr;
	uint64_t unused_more[7];
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_wc {
	uint64_t wr_id;
	int status; // see status.go
	int unused_opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // in network byte order
	uint32_t unused_qp[2];
	unsigned int unused_flags;
	uint16_t unused_key, unused_lid;
	uint8_t unused_path[2];
};

#endif
