//go:build linux && cgo

#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return errno;
	return 0;
}

int kv_pairs_new(struct ibv_context *ctx, struct ibv_pd *pd, uint8_t port, int n, int depth, int max_inline, struct kv_pairs **out)
{
	struct kv_pairs *p = calloc(1, sizeof(*p));
	int err = 0;

	if (!p)
		return ENOMEM;
	p->channel = ibv_create_comp_channel(ctx);
	if (!p->channel) {
		err = errno;
		goto fail;
	}
	err = nonblocking(p->channel->fd);
	if (err)
		goto fail;
	// Every request and every receive may complete, once flushed.
	p->cq = ibv_create_cq(ctx, 2 * n * depth, NULL, p->channel, 0);
	if (!p->cq) {
		err = errno;
		goto fail;
	}
	for (int i = 0; i < n; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = p->cq,
			.recv_cq = p->cq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = max_inline},
		};
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT,
			.port_num = port,
			.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		};

		p->qp[i] = ibv_create_qp(pd, &init);
		if (!p->qp[i] && max_inline > 0) { // no inline, or not as much
			init.cap.max_inline_data = max_inline = 0;
			p->qp[i] = ibv_create_qp(pd, &init);
		}
		if (!p->qp[i]) {
			err = errno;
			goto fail;
		}
		p->n = i + 1;
		p->max_inline = init.cap.max_inline_data;
		err = ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		if (err)
			goto fail;
		err = kv_receive(p, i, depth);
		if (err)
			goto fail;
	}
	*out = p;
	return 0;
fail:
	kv_pairs_free(p);
	return err;
}

int kv_pairs_start(struct kv_pairs *p, int i, uint8_t port, uint8_t gid_index, int global, const uint8_t *gid, uint16_t lid, uint8_t mtu,
	uint32_t peer_qpn, uint32_t peer_psn, uint32_t psn, uint8_t reads, uint8_t peer_reads)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = peer_qpn,
		.rq_psn = peer_psn,
		.max_dest_rd_atomic = peer_reads,
		.min_rnr_timer = 12, // 0.64 ms; credits see to it that there is a receive
		.ah_attr = {.dlid = lid, .port_num = port},
	};
	int err;

	if (global) {
		attr.ah_attr.is_global = 1;
		memcpy(attr.ah_attr.grh.dgid.raw, gid, 16);
		attr.ah_attr.grh.sgid_index = gid_index;
		attr.ah_attr.grh.hop_limit = 64;
	}
	err = ibv_modify_qp(p->qp[i], &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = psn;
	// 4.096 us << 14 = 67 ms, six times: a peer is given up after half a second or
	// so, a few seconds where the device takes the timeout as a lower bound. Seven
	// retries are for ever to rxe.
	attr.timeout = 14;
	attr.retry_cnt = 6;
	attr.rnr_retry = 6;
	attr.max_rd_atomic = reads;
	return ibv_modify_qp(p->qp[i], &attr,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

// Requests that are linked and posted at once.
#define CHAIN 64

int kv_post(struct kv_pairs *p, const struct kv_wr *wrs, int n)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};
	struct ibv_send_wr chain[CHAIN], *bad;
	struct ibv_sge sge[CHAIN];

	for (int i = 0; i < n;) {
		int k = 0, pair = wrs[i].pair, err;

		for (; i < n && k < CHAIN && wrs[i].pair == pair; i++, k++) {
			const struct kv_wr *w = &wrs[i];

			sge[k] = (struct ibv_sge){.addr = w->local, .length = w->length, .lkey = w->lkey};
			chain[k] = (struct ibv_send_wr){
				.wr_id = w->id,
				.next = &chain[k + 1],
				.sg_list = &sge[k],
				.num_sge = w->length > 0,
				.opcode = opcodes[w->op],
				.send_flags = (w->flags & KV_SIGNALED ? IBV_SEND_SIGNALED : 0) | (w->flags & KV_INLINE ? IBV_SEND_INLINE : 0),
				.imm_data = htonl(w->imm),
				.wr.rdma = {.remote_addr = w->remote, .rkey = w->rkey},
			};
		}
		chain[k - 1].next = NULL;
		err = p->qp[pair]->context->ops.post_send(p->qp[pair], chain, &bad);
		if (err)
			return err;
	}
	return 0;
}

int kv_receive(struct kv_pairs *p, int i, int n)
{
	while (n > 0) {
		struct ibv_recv_wr chain[CHAIN], *bad;
		int k = 0, err;

		for (; k < CHAIN && k < n; k++)
			chain[k] = (struct ibv_recv_wr){.wr_id = 1ULL << 63 | i, .next = &chain[k + 1]};
		chain[k - 1].next = NULL;
		err = p->qp[i]->context->ops.post_recv(p->qp[i], chain, &bad);
		if (err)
			return err;
		n -= k;
	}
	return 0;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int take(struct kv_pairs *p, struct kv_wc *out, int max)
{
	struct ibv_wc wc[CHAIN];
	int n = p->cq->context->ops.poll_cq(p->cq, max < CHAIN ? max : CHAIN, wc);

	if (n < 0)
		return -EIO;
	for (int i = 0; i < n; i++)
		out[i] = (struct kv_wc){.id = wc[i].wr_id, .status = wc[i].status, .vendor = wc[i].vendor_err, .imm = ntohl(wc[i].imm_data)};
	return n;
}

int kv_poll(struct kv_pairs *p, struct kv_wc *out, int max, int64_t spin_ns)
{
	int n = take(p, out, max);

	if (n == 0 && spin_ns > 0) {
		int64_t end = now_ns() + spin_ns;

		do
			n = take(p, out, max);
		while (n == 0 && now_ns() < end);
	}
	return n;
}

int kv_arm(struct kv_pairs *p, struct kv_wc *out, int max)
{
	int err = p->cq->context->ops.req_notify_cq(p->cq, 0);

	if (err)
		return -err;
	return take(p, out, max);
}

int kv_event(struct kv_pairs *p)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(p->channel, &cq, &context))
		return errno ? errno : EIO;
	if (++p->unacked == 1024) { // acknowledging takes a mutex
		ibv_ack_cq_events(p->cq, p->unacked);
		p->unacked = 0;
	}
	return 0;
}

int kv_pairs_fail(struct kv_pairs *p)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	int err = 0;

	for (int i = 0; i < p->n; i++) {
		int e = ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE);

		if (!err)
			err = e;
	}
	return err;
}

int kv_pairs_free(struct kv_pairs *p)
{
	int err = 0, e;

	for (int i = 0; i < p->n; i++)
		if (p->qp[i]) {
			e = ibv_destroy_qp(p->qp[i]);
			if (!err)
				err = e;
		}
	if (p->cq) {
		if (p->unacked)
			ibv_ack_cq_events(p->cq, p->unacked);
		e = ibv_destroy_cq(p->cq);
		if (!err)
			err = e;
	}
	if (p->channel) {
		e = ibv_destroy_comp_channel(p->channel);
		if (!err)
			err = e;
	}
	free(p);
	return err;
}

int kv_async(struct ibv_context *ctx, int *type, int *port)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(ctx, &event))
		return errno ? errno : EIO;
	*type = event.event_type;
	*port = event.element.port_num;
	ibv_ack_async_event(&event);
	return 0;
}

int kv_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	return ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)attr);
}

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct ibv_mr *kv_reg_mr(struct ibv_pd *pd, void *addr, size_t length) { return ibv_reg_mr(pd, addr, length, ACCESS); }

struct ibv_mr *kv_reg_dmabuf_mr(struct ibv_pd *pd, int fd, uint64_t offset, size_t length, uint64_t iova)
{
	if (!kv_calls.ibv_reg_dmabuf_mr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return kv_calls.ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, ACCESS);
}
