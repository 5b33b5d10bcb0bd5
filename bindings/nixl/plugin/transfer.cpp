// Transfers and notifications of an engine.
#include "engine.h"
#include "ranges.h"
#include "report.h"

#include <chrono>
#include <thread>

namespace {

constexpr size_t mostBytes = 64 << 10; // of a message of kvferry's

nixl_status_t tooLong(const std::string &agent, const std::string &text) {
	return report(NIXL_ERR_INVALID_PARAM, "a notification of " + std::to_string(text.size()) + " bytes to agent " + agent + ": at most " + std::to_string(mostBytes));
}

} // namespace

Ferry::Transfer *Ferry::known(nixlBackendReqH *handle) const {
	const auto it = transfers.find(handle);
	return it == transfers.end() ? nullptr : it->second.get();
}

// peer is the target for notifications to an agent.
nixl_status_t Ferry::peer(const std::string &agent, kvf_target &out) const {
	const auto it = peers.find(agent);
	if (it != peers.end()) {
		out = it->second;
		return NIXL_SUCCESS;
	}
	if (agent != localAgent)
		return report(NIXL_ERR_NOT_FOUND, "agent " + agent + " is not known: load its metadata first");
	if (const int code = kvf_connect(engine, connection.data(), connection.size(), &out); code != KVF_OK)
		return failed(code, "this agent's own memory");
	peers[agent] = out;
	return NIXL_SUCCESS;
}

// opened makes a target of one's own memory, as a peer's.
nixl_status_t Ferry::opened(Memory &m) const {
	if (m.target != 0)
		return NIXL_SUCCESS;
	const int code = kvf_connect(engine, m.advertisement.data(), m.advertisement.size(), &m.target);
	return code == KVF_OK ? NIXL_SUCCESS : failed(code, "this agent's own memory");
}

nixl_status_t Ferry::prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent,
                              nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const {
	const auto outside = [](const Memory *m, const nixlMetaDesc &d) {
		return !m || d.addr < m->base || d.addr - m->base > m->length || d.len > m->length - (d.addr - m->base);
	};
	if (local.descCount() != remote.descCount())
		return report(NIXL_ERR_INVALID_PARAM, std::to_string(local.descCount()) + " local descriptors and " + std::to_string(remote.descCount()) + " remote ones");
	const std::lock_guard lock(mutex);
	auto made = std::make_unique<Transfer>();
	made->op = op == NIXL_WRITE ? KVF_WRITE : KVF_READ;
	made->agent = agent;
	const nixlBackendMD *near = nullptr, *far = nullptr; // of the descriptor before: most have the same
	Memory *here = nullptr, *there = nullptr;
	Transfer::Part *part = nullptr;
	for (int i = 0; i < local.descCount(); i++) {
		const nixlMetaDesc &from = local[size_t(i)], &to = remote[size_t(i)];
		if (from.metadataP != near)
			here = known(near = from.metadataP, false);
		if (to.metadataP != far || !part) {
			there = known(far = to.metadataP, true);
			part = nullptr;
			for (auto &p : made->parts)
				if (there && p.target == there->target)
					part = &p;
		}
		if (from.len != to.len || outside(here, from) || outside(there, to))
			return report(NIXL_ERR_INVALID_PARAM, "descriptor " + std::to_string(i) + " of a transfer with agent " + agent +
			              ": not of one length, or not in registered memory");
		if (from.len == 0)
			continue;
		if (!part) {
			if (const nixl_status_t status = opened(*there); status != NIXL_SUCCESS)
				return status;
			part = &made->parts.emplace_back(Transfer::Part{there->target, here, {}});
		}
		append(part->ranges, {from.addr, to.addr - there->base, from.len}, here != part->last);
		part->last = here;
	}
	handle = made.get();
	transfers.emplace(handle, std::move(made));
	return NIXL_SUCCESS;
}

// submit starts a batch, which takes the message along if it is the only one or the last.
nixl_status_t Ferry::submit(Transfer &t, kvf_target target, const std::vector<kvf_range> &ranges) const {
	kvf_batch_options o{};
	o.struct_size = sizeof(o);
	o.user_data = reinterpret_cast<uintptr_t>(&t);
	if (t.notifies && (t.parts.size() <= 1 || ranges.empty())) {
		o.message = t.message.data();
		o.message_length = t.message.size();
		t.notifies = false;
	}
	kvf_batch batch = 0;
	if (const int code = kvf_submit(engine, target, t.op, ranges.data(), ranges.size(), &o, &batch); code != KVF_OK)
		return failed(code, "a transfer with agent " + t.agent);
	t.batches.push_back(batch);
	return NIXL_SUCCESS;
}

// go submits a transfer's batches, or the notification alone if that is all there is.
nixl_status_t Ferry::go(Transfer &t) const {
	for (auto &part : t.parts)
		if (!part.ranges.empty())
			if (const nixl_status_t status = submit(t, part.target, part.ranges); status != NIXL_SUCCESS)
				return status;
	if (t.active() || !t.notifies)
		return NIXL_SUCCESS;
	kvf_target target = 0;
	const nixl_status_t status = peer(t.agent, target);
	return status == NIXL_SUCCESS ? submit(t, target, {}) : status;
}

nixl_status_t Ferry::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                              nixlBackendReqH *&handle, const nixl_opt_b_args_t *args) const {
	const std::lock_guard lock(mutex);
	Transfer *t = known(handle);
	if (!t)
		return report(NIXL_ERR_INVALID_PARAM, "posting a transfer that was not prepared");
	if (t->active())
		if (const nixl_status_t status = poll(); status != NIXL_SUCCESS)
			return status;
	if (t->active())
		return NIXL_ERR_REPOST_ACTIVE;
	if (args && args->hasNotif && args->notifMsg.size() > mostBytes)
		return tooLong(t->agent, args->notifMsg);
	t->canceled = false;
	t->notifies = args && args->hasNotif;
	t->message = t->notifies ? args->notifMsg : "";
	t->status = go(*t);
	if (t->status != NIXL_SUCCESS)
		cancel(*t); // what was submitted before; the core asks no more, and the handle's release waits for it
	return t->status != NIXL_SUCCESS || !t->active() ? t->status : NIXL_IN_PROG;
}

// poll takes what has ended. It fails in a process that was forked: there nothing ends.
nixl_status_t Ferry::poll() const {
	for (;;) {
		const int n = kvf_poll(engine, completions.data(), sizeof(kvf_completion), completions.size());
		if (n < 0)
			return failed(n, "polling");
		for (int i = 0; i < n; i++)
			ended(completions[size_t(i)]);
		if (n < int(completions.size()))
			return NIXL_SUCCESS;
	}
}

void Ferry::ended(const kvf_completion &c) const {
	if (c.user_data == 0) {
		if (c.code != KVF_OK)
			report(statusOf(c.code), std::string("a notification was not delivered: ") + c.error);
		return;
	}
	Transfer &t = *reinterpret_cast<Transfer *>(uintptr_t(c.user_data)); // it is kept until its batches have ended
	for (size_t i = 0; i < t.batches.size(); i++)
		if (t.batches[i] == c.batch) {
			t.batches[i] = t.batches.back();
			t.batches.pop_back();
			break;
		}
	if (c.code != KVF_OK && t.status == NIXL_SUCCESS) {
		t.status = t.canceled ? NIXL_ERR_CANCELED : report(statusOf(c.code), "a transfer with agent " + t.agent + ": " + c.error);
		cancel(t);
	}
	if (t.batches.empty() && t.notifies && t.status == NIXL_SUCCESS && !t.canceled)
		t.status = submit(t, t.parts[0].target, {});
}

// cancel ends what is under way of a transfer early. Completions come all the same.
void Ferry::cancel(Transfer &t) const {
	t.canceled = true;
	for (const kvf_batch batch : t.batches)
		kvf_cancel(engine, batch);
}

nixl_status_t Ferry::checkXfer(nixlBackendReqH *handle) const {
	const std::lock_guard lock(mutex);
	if (const nixl_status_t status = poll(); status != NIXL_SUCCESS)
		return status;
	const Transfer *t = known(handle);
	if (!t)
		return report(NIXL_ERR_INVALID_PARAM, "checking a transfer that was not prepared");
	return t->active() ? NIXL_IN_PROG : t->status;
}

// releaseReqH aborts what is under way, and returns when that has ended: until then memory may be touched, and the core
// takes the handle for gone after a second try, whatever that returns. The batches' deadlines bound it, and other
// threads go on.
nixl_status_t Ferry::releaseReqH(nixlBackendReqH *handle) const {
	std::unique_lock lock(mutex);
	Transfer *t = known(handle);
	if (!t)
		return report(NIXL_ERR_INVALID_PARAM, "releasing a transfer that was not prepared");
	if (t->active())
		cancel(*t);
	while (t->active()) {
		if (const nixl_status_t status = poll(); status != NIXL_SUCCESS)
			return status;
		if (!t->active())
			break;
		lock.unlock();
		std::this_thread::sleep_for(std::chrono::microseconds(100));
		lock.lock();
	}
	transfers.erase(handle);
	return NIXL_SUCCESS;
}

nixl_status_t Ferry::getNotifs(notif_list_t &out) {
	const std::lock_guard lock(mutex);
	if (const nixl_status_t status = poll(); status != NIXL_SUCCESS)
		return status;
	for (kvf_message m;;) {
		const int n = kvf_receive(engine, &m, sizeof(m), message.data(), message.size());
		if (n <= 0)
			return n == 0 ? NIXL_SUCCESS : failed(n, "notifications");
		out.emplace_back(m.sender, std::string(message.data(), m.length));
	}
}

nixl_status_t Ferry::genNotif(const std::string &agent, const std::string &text) const {
	if (text.size() > mostBytes)
		return tooLong(agent, text);
	const std::lock_guard lock(mutex);
	if (const nixl_status_t status = poll(); status != NIXL_SUCCESS)
		return status;
	kvf_target target = 0;
	if (const nixl_status_t status = peer(agent, target); status != NIXL_SUCCESS)
		return status;
	kvf_batch_options o{};
	o.struct_size = sizeof(o);
	o.message = text.data();
	o.message_length = text.size();
	const int code = kvf_submit(engine, target, KVF_WRITE, nullptr, 0, &o, nullptr);
	return code == KVF_OK ? NIXL_SUCCESS : failed(code, "a notification to agent " + agent);
}
