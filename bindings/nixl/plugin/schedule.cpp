#include "schedule.h"

#include "json.h"

#include <cmath>
#include <stdexcept>

namespace {

// Which fields a kind has, beside those of all.
struct Spec {
	const char *name;
	Kind kind;
	const char *fields; // with a blank behind each
	bool needsMs;
};
const Spec specs[] = {
	{"delay", Kind::Delay, "ms skip ", true},
	{"drop", Kind::Drop, "skip ", false},
	{"repeat", Kind::Repeat, "ms skip ", false},
	{"reorder", Kind::Reorder, "ms skip ", false},
	{"tear", Kind::Tear, "", false},
	{"replay", Kind::Replay, "after ", false},
	{"flip", Kind::Flip, "bytes ", false},
	{"stall", Kind::Stall, "ms ", false},
	{"flap", Kind::Flap, "ms ", true},
};

[[noreturn]] void wrong(const std::string &where, const std::string &what) { throw std::runtime_error(where + ": " + what); }

std::string text(const Json &value, const std::string &where) {
	if (value.kind != Json::Text)
		wrong(where, "a text is needed");
	return value.text;
}

uint64_t whole(const Json &value, const std::string &where, uint64_t least) {
	if (value.kind != Json::Number || value.number != std::floor(value.number) || value.number < double(least) || value.number > 1e15)
		wrong(where, "a whole number is needed, at least " + std::to_string(least));
	return uint64_t(value.number);
}

Fault faultOf(const Json &object, const std::string &where) {
	if (object.kind != Json::Object)
		wrong(where, "an object is needed, such as {\"fault\":\"drop\"}");
	const Spec *spec = nullptr;
	std::string names;
	for (const auto &s : specs)
		names += std::string(names.empty() ? "" : ", ") + s.name;
	for (const auto &[name, value] : object.members)
		if (name == "fault") {
			const std::string kind = text(value, where + ".fault");
			for (const auto &s : specs)
				if (kind == s.name)
					spec = &s;
			if (!spec)
				wrong(where + ".fault", "\"" + kind + "\": use one of " + names);
		}
	if (!spec)
		wrong(where, "no fault: use one of " + names);
	Fault fault{};
	fault.kind = spec->kind;
	fault.name = spec->name;
	const std::string fields = std::string("fault from count probability ") + spec->fields;
	for (const auto &[name, value] : object.members) {
		const std::string at = where + "." + name;
		if ((" " + fields).find(" " + name + " ") == std::string::npos)
			wrong(at, std::string("a ") + spec->name + " has no such field: use " + fields.substr(0, fields.size() - 1));
		if (name == "from")
			fault.from = whole(value, at, 0);
		else if (name == "count")
			fault.count = whole(value, at, 0);
		else if (name == "after")
			fault.after = whole(value, at, 1);
		else if (name == "bytes")
			fault.bytes = whole(value, at, 1);
		else if (name == "skip")
			fault.skip = text(value, at);
		else if (name == "ms") {
			fault.ms = whole(value, at, 1);
			fault.timed = true;
		} else if (name == "probability") {
			if (value.kind != Json::Number || !(value.number > 0 && value.number <= 1))
				wrong(at, "a number above 0 is needed, at most 1");
			fault.probability = value.number;
		}
	}
	if (spec->needsMs && !fault.timed)
		wrong(where + ".ms", std::string("missing: for how many milliseconds a ") + spec->name + " lasts");
	if (fault.kind == Kind::Reorder && !fault.timed)
		fault.ms = 1000;
	return fault;
}

} // namespace

Schedule parseSchedule(const std::string &from) {
	const Json all = parseJson(from);
	if (all.kind != Json::Object)
		wrong("schedule", "an object is needed, such as {\"log\":\"faults.jsonl\",\"faults\":[{\"fault\":\"drop\"}]}");
	Schedule schedule;
	for (const auto &[name, value] : all.members) {
		if (name == "backend")
			schedule.backend = text(value, name);
		else if (name == "plugin")
			schedule.plugin = text(value, name);
		else if (name == "log")
			schedule.log = text(value, name);
		else if (name == "seed")
			schedule.seed = whole(value, name, 0);
		else if (name == "faults" && value.kind == Json::List)
			for (size_t i = 0; i < value.items.size(); i++)
				schedule.faults.push_back(faultOf(value.items[i], "faults[" + std::to_string(i) + "]"));
		else if (name == "faults")
			wrong(name, "a list is needed");
		else
			wrong(name, "there is no such field: use backend, plugin, log, seed, faults");
	}
	if (schedule.log.empty())
		wrong("log", "missing: a file for what is injected");
	if (schedule.backend.empty())
		wrong("backend", "empty: name one of NIXL's, such as UCX, or leave it out");
	return schedule;
}

Draws::Draws(const Schedule &schedule) {
	for (size_t i = 0; i < schedule.faults.size(); i++) {
		std::seed_seq seed{uint32_t(schedule.seed), uint32_t(schedule.seed >> 32), uint32_t(i)};
		states.push_back({schedule.faults[i], std::mt19937_64(seed)});
	}
}

Drawn Draws::notification(const std::string &message) { return next(true, message); }
Drawn Draws::transfer() { return next(false, ""); }

Drawn Draws::next(bool notification, const std::string &message) {
	Drawn drawn;
	for (auto &s : states) {
		if (hitsNotifications(s.fault.kind) != notification || (!s.fault.skip.empty() && message.compare(0, s.fault.skip.size(), s.fault.skip) == 0))
			continue;
		const uint64_t number = s.seen++;
		if (drawn.fault || number < s.fault.from || (s.fault.count > 0 && s.hit >= s.fault.count))
			continue;
		if (s.fault.probability < 1 && double(s.random() >> 11) * 0x1p-53 >= s.fault.probability)
			continue;
		s.hit++;
		drawn = {&s.fault, number, s.random()};
	}
	return drawn;
}

std::vector<Note> Notes::step(uint64_t now, const std::vector<Note> &come, Draws &draws, std::vector<Injected> &injected) {
	std::vector<Note> deliver;
	const auto release = [&](bool passed) {
		std::vector<Held> still;
		for (auto &h : held) {
			const bool overtaken = h.untilNext && passed, leaves = overtaken || h.due <= now;
			if (overtaken || (leaves && h.drawn.fault->kind == Kind::Repeat))
				injected.push_back({h.drawn, h.note});
			if (leaves)
				deliver.push_back(std::move(h.note));
			else
				still.push_back(std::move(h));
		}
		held = std::move(still);
	};
	release(false);
	for (const auto &note : come) {
		const Drawn drawn = draws.notification(note.second);
		if (!drawn.fault) {
			deliver.push_back(note);
			release(true);
			continue;
		}
		const uint64_t due = now + drawn.fault->ms;
		switch (drawn.fault->kind) {
		case Kind::Delay:
			held.push_back({note, drawn, due, false});
			break;
		case Kind::Repeat:
			deliver.push_back(note);
			held.push_back({note, drawn, due, false});
			continue;
		case Kind::Reorder: // neither has taken effect so far
			held.push_back({note, drawn, due, true});
			continue;
		default: // Drop
			break;
		}
		injected.push_back({drawn, note});
	}
	release(false); // repeated at once
	return deliver;
}
