#ifndef KVFERRY_CALLS_H
#define KVFERRY_CALLS_H

// The calls of libibverbs that the rail makes: type, name, parameters, arguments and version. A
// later libibverbs may have a later version of a call as well, and keeps this one.
#define KV_CALLS(CALL) \
	CALL(struct ibv_device **, ibv_get_device_list, (int *n), (n), "IBVERBS_1.1") \
	CALL(void, ibv_free_device_list, (struct ibv_device **list), (list), "IBVERBS_1.1") \
	CALL(struct ibv_context *, ibv_open_device, (struct ibv_device *device), (device), "IBVERBS_1.1") \
	CALL(int, ibv_close_device, (struct ibv_context *ctx), (ctx), "IBVERBS_1.1") \
	CALL(int, ibv_query_device, (struct ibv_context *ctx, struct ibv_device_attr *attr), (ctx, attr), "IBVERBS_1.1") \
	CALL(int, ibv_query_port, (struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr), (ctx, port, attr), "IBVERBS_1.1") \
	CALL(const char *, ibv_port_state_str, (enum ibv_port_state state), (state), "IBVERBS_1.1") \
	CALL(int, _ibv_query_gid_ex, (struct ibv_context *ctx, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size), \
		(ctx, port, index, entry, flags, size), "IBVERBS_1.11") \
	CALL(int, ibv_get_async_event, (struct ibv_context *ctx, struct ibv_async_event *event), (ctx, event), "IBVERBS_1.1") \
	CALL(void, ibv_ack_async_event, (struct ibv_async_event *event), (event), "IBVERBS_1.1") \
	CALL(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *ctx), (ctx), "IBVERBS_1.1") \
	CALL(int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd), "IBVERBS_1.1") \
	CALL(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *addr, size_t length, int access), (pd, addr, length, access), "IBVERBS_1.1") \
	CALL(int, ibv_dereg_mr, (struct ibv_mr *mr), (mr), "IBVERBS_1.1") \
	CALL(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *ctx), (ctx), "IBVERBS_1.0") \
	CALL(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *channel), (channel), "IBVERBS_1.0") \
	CALL(struct ibv_cq *, ibv_create_cq, (struct ibv_context *ctx, int n, void *context, struct ibv_comp_channel *channel, int vector), \
		(ctx, n, context, channel, vector), "IBVERBS_1.1") \
	CALL(int, ibv_destroy_cq, (struct ibv_cq *cq), (cq), "IBVERBS_1.1") \
	CALL(int, ibv_get_cq_event, (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context), (channel, cq, context), "IBVERBS_1.1") \
	CALL(void, ibv_ack_cq_events, (struct ibv_cq *cq, unsigned int n), (cq, n), "IBVERBS_1.1") \
	CALL(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *init), (pd, init), "IBVERBS_1.1") \
	CALL(int, ibv_modify_qp, (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), (qp, attr, mask), "IBVERBS_1.1") \
	CALL(int, ibv_destroy_qp, (struct ibv_qp *qp), (qp), "IBVERBS_1.1")

// Calls that an older libibverbs lacks: null, then.
#define KV_OPTIONAL_CALLS(CALL) \
	CALL(struct ibv_mr *, ibv_reg_dmabuf_mr, (struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access), \
		(pd, offset, length, iova, fd, access), "IBVERBS_1.12")

#endif
