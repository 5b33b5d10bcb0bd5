// units: what the plugin is made of and needs no library.
#include "../plugin/json.h"
#include "../plugin/loader.h"
#include "../plugin/ranges.h"
#include "../plugin/schedule.h"
#include "../plugin/settings.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#define CHECK(cond) ((cond) ? void() : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond), exit(1)))

static void ranges() {
	std::vector<kvf_range> all;
	const auto is = [&](size_t i, uintptr_t local, uint64_t remote, uint64_t length, uint64_t count, int64_t localStride, int64_t remoteStride) {
		const kvf_range &r = all[i];
		return r.local == reinterpret_cast<void *>(local) && r.remote == remote && r.length == length && r.count == count &&
		       r.local_stride == localStride && r.remote_stride == remoteStride && r.segment == 0;
	};
	for (uint64_t i = 0; i < 2000; i++) // a layer's blocks
		append(all, {0x10000 + i * 300, 5000 - i * 2, 100}, i == 0);
	CHECK(all.size() == 1 && is(0, 0x10000, 5000, 100, 2000, 300, -2));
	append(all, {0x10000 + 2000 * 300, 5000 - 2000 * 2, 100}, true); // would go on, in other registered memory
	append(all, {0x1, 9, 0}, false);                                 // no bytes
	append(all, {0x20000, 0, 101}, false);                           // another length
	append(all, {0x20065, 101, 101}, false);                         // touches
	append(all, {0x20065 + 101, 200, 101}, false);                   // goes on here, not there
	append(all, {0x40, 0, 101}, false);                              // any two are at some distance
	append(all, {0x40, 0, 101}, false);
	CHECK(all.size() == 5 && is(1, 0x10000 + 600000, 1000, 100, 1, 0, 0) && is(2, 0x20000, 0, 101, 2, 101, 101));
	CHECK(is(3, 0x20065 + 101, 200, 101, 2, 0x40 - 0x20065 - 101, -200) && is(4, 0x40, 0, 101, 1, 0, 0));
}

static void loader(const char *self) {
	Loader fits;
	fits.path = "/x/libnixl.so";
	fits.version = "1.5.1";
	fits.listTable = 7 * 8;
	fits.engineTable = 29 * 8;
	const auto says = [&](const char *text, const std::string &accepted, void (*change)(Loader &)) {
		Loader l = fits;
		change(l);
		const std::string said = unfit(l, accepted);
		if (*text == 0 ? said.empty() : said.find(text) != std::string::npos)
			return true;
		fprintf(stderr, "\"%s\"\n", said.c_str());
		return false;
	};
	CHECK(says("", "", [](Loader &) {}));
	CHECK(says("", "", [](Loader &l) { l.version = "", l.engineTable = -1; })); // not of a wheel, and no plugins
	CHECK(says("/x/libnixl.so is NIXL 1.6.0: install nixl==1.5.1", "", [](Loader &l) { l.version = "1.6.0"; }));
	CHECK(says("", "1.6.0", [](Loader &l) { l.version = "1.6.0"; }));
	CHECK(says("is NIXL 1.6.1", "1.6.0", [](Loader &l) { l.version = "1.6.1"; }));
	CHECK(says("its backends have 28 virtual functions, not 27", "1.6.0", [](Loader &l) { l.version = "1.6.0", l.engineTable = 30 * 8; }));
	CHECK(says("its lists of descriptors have 6 virtual functions, not 5", "", [](Loader &l) { l.listTable = 8 * 8; }));
	CHECK(says("no class nixlDescList", "", [](Loader &l) { l.listTable = -1; }));
	CHECK(tableSize(self, "_ZTV12nixlDescListI12nixlMetaDescE") == 7 * 8); // this program's, as abi.h has it
	CHECK(tableSize(self, "_ZTVnosuch") == -1 && tableSize("/dev/null", "x") == -1 && tableSize("/nosuch", "x") == -1 && tableSize(__FILE__, "x") == -1);
}

static void settingsOf() {
	unsetenv("KVFERRY_RAILS");
	unsetenv("KVFERRY_TIMEOUT");
	CHECK(settings({}).rails == "tcp/all" && settings({}).timeoutMs == 0);
	setenv("KVFERRY_RAILS", "cma", 1);
	setenv("KVFERRY_TIMEOUT", "2.5", 1);
	CHECK(settings({}).rails == "cma" && settings({{"rails", ""}}).rails == "cma" && settings({{"rails", "tcp/lo"}}).rails == "tcp/lo");
	CHECK(settings({}).timeoutMs == 2500 && settings({{"timeout", "1"}}).timeoutMs == 1000);
	const auto refuses = [](const nixl_b_params_t &params, const char *text) {
		try {
			settings(params);
		} catch (const std::runtime_error &e) {
			return std::string(e.what()).find(text) != std::string::npos;
		}
		return false;
	};
	CHECK(refuses({{"timeout", "1s"}}, "parameter timeout \"1s\"") && refuses({{"timeout", "0"}}, "from 0.001") && refuses({{"num_threads", "4"}}, "parameter num_threads"));
	setenv("KVFERRY_TIMEOUT", "nan", 1);
	CHECK(refuses({}, "KVFERRY_TIMEOUT \"nan\""));
}

// refused says whether reading a schedule fails with this text.
static bool refused(const std::string &schedule, const std::string &text) {
	try {
		parseSchedule(schedule);
	} catch (const std::runtime_error &e) {
		if (std::string(e.what()).find(text) != std::string::npos)
			return true;
		fprintf(stderr, "%s: %s\n", schedule.c_str(), e.what());
	}
	return false;
}

static void schedules() {
	const Schedule s = parseSchedule(" {\"backend\":\"UCX\",\n\"plugin\": \"/p\", \"log\":\"a\\\"\\n\", \"seed\":7e2,\"faults\" : [ {\"fault\":\"flip\",\"bytes\":64,\"from\":3,\"count\":2,\"probability\":0.25},"
	                                 "{\"fault\":\"delay\",\"ms\":5,\"skip\":\"HB:\"},{\"ms\":9,\"fault\":\"stall\"},{\"fault\":\"replay\",\"after\":4},{\"fault\":\"reorder\"}]} ");
	CHECK(s.backend == "UCX" && s.plugin == "/p" && s.log == "a\"\n" && s.seed == 700 && s.faults.size() == 5);
	CHECK(s.faults[0].kind == Kind::Flip && s.faults[0].bytes == 64 && s.faults[0].from == 3 && s.faults[0].count == 2 && s.faults[0].probability == 0.25);
	CHECK(s.faults[1].kind == Kind::Delay && s.faults[1].ms == 5 && s.faults[1].skip == "HB:" && s.faults[2].timed && s.faults[2].ms == 9);
	CHECK(s.faults[3].after == 4 && s.faults[3].count == 1 && s.faults[3].probability == 1 && s.faults[4].ms == 1000);
	CHECK(parseSchedule("{\"log\":\"x\"}").backend == "KVFERRY");
	const auto fault = [](const char *text) { return std::string("{\"log\":\"x\",\"faults\":[{\"fault\":\"drop\"},\n") + text + "]}"; };
	CHECK(refused(fault("{\"fault\":\"drip\"}"), "faults[1].fault: \"drip\": use one of delay, drop") && refused(fault("{}"), "faults[1]: no fault"));
	CHECK(refused(fault("{\"fault\":\"drop\",\"ms\":1}"), "faults[1].ms: a drop has no such field: use fault from count probability skip"));
	CHECK(refused(fault("{\"fault\":\"flap\"}"), "faults[1].ms: missing") && refused(fault("{\"fault\":\"flap\",\"ms\":0.5}"), "faults[1].ms: a whole number"));
	CHECK(refused(fault("{\"fault\":\"drop\",\"count\":-1}"), "at least 0") && refused(fault("{\"fault\":\"drop\",\"probability\":2}"), "at most 1") && refused(fault("3"), "faults[1]: an object"));
	CHECK(refused("{\"log\":\"\"}", "log: missing") && refused("{\"log\":1}", "log: a text") && refused("{\"log\":\"x\",\"faults\":{}}", "faults: a list") && refused("{\"lag\":1}", "lag: there is no such field"));
	CHECK(refused(fault("}"), "line 2") && refused("", "line 1") && refused("{} {}", "behind the end") && refused("{\"a\":1,\"a\":2}", "two members") && refused("\"x", "without its end"));
	CHECK(refused("[\"\\u0041\"]", "\\u is not read") && refused(std::string(100, '['), "deep") && refused("[]", "schedule: an object"));
	CHECK(quoted("a\"\\\n\xff") == "\"a\\\"\\\\\\u000a\\u00ff\"");
}

// hits are the numbers of n transfers that a schedule hits.
static std::vector<uint64_t> hits(const std::string &faults, uint64_t seed, int n) {
	Schedule s = parseSchedule("{\"log\":\"x\",\"faults\":[" + faults + "]}");
	s.seed = seed;
	Draws draws(s);
	std::vector<uint64_t> all;
	for (int i = 0; i < n; i++)
		if (draws.transfer().fault)
			all.push_back(uint64_t(i));
	return all;
}

static void draws() {
	CHECK((hits("{\"fault\":\"tear\",\"from\":2,\"count\":3}", 1, 10) == std::vector<uint64_t>{2, 3, 4}));
	CHECK((hits("{\"fault\":\"tear\"},{\"fault\":\"flip\"},{\"fault\":\"drop\"}", 1, 10) == std::vector<uint64_t>{0, 1})); // one fault each
	const std::string often = "{\"fault\":\"flip\",\"count\":0,\"probability\":0.25}";
	const auto some = hits(often, 1, 1000);
	CHECK(some.size() > 150 && some.size() < 350 && some == hits(often, 1, 1000) && some != hits(often, 2, 1000));
}

static void notes() {
	const auto run = [](const char *fault, const std::vector<std::pair<uint64_t, std::string>> &come) {
		const Schedule s = parseSchedule(std::string("{\"log\":\"x\",\"faults\":[") + fault + "]}");
		Draws draws(s);
		Notes notes;
		std::vector<Notes::Injected> injected;
		std::string out;
		for (const auto &[now, texts] : come) { // each letter is a message
			std::vector<Note> list;
			for (const char c : texts)
				list.push_back({"peer", std::string(1, c)});
			for (const auto &n : notes.step(now, list, draws, injected))
				out += n.second;
			out += "|";
			for (const auto &i : injected)
				out += "!" + i.note.second;
			injected.clear();
		}
		return out;
	};
	CHECK(run("{\"fault\":\"drop\",\"from\":1}", {{0, "abc"}, {1, "d"}}) == "ac|!bd|");
	CHECK(run("{\"fault\":\"drop\",\"skip\":\"b\",\"count\":2}", {{0, "bab"}, {1, "cd"}}) == "bb|!ad|!c");
	CHECK(run("{\"fault\":\"repeat\"}", {{0, "ab"}}) == "aba|!a");
	CHECK(run("{\"fault\":\"repeat\",\"ms\":10}", {{5, "ab"}, {14, "c"}, {15, ""}}) == "ab|c|a|!a");
	CHECK(run("{\"fault\":\"delay\",\"ms\":10}", {{5, "ab"}, {14, "c"}, {15, "d"}}) == "b|!ac|ad|");
	CHECK(run("{\"fault\":\"reorder\",\"ms\":10}", {{5, "a"}, {14, ""}, {14, "b"}}) == "||ba|!a");
	CHECK(run("{\"fault\":\"reorder\",\"ms\":10}", {{5, "a"}, {15, "b"}}) == "|ab|"); // none came: it was not reordered
	CHECK(run("{\"fault\":\"reorder\"}", {{5, "abc"}}) == "bac|!a");
}

int main(int, char **argv) {
	nixl_meta_dlist_t list(DRAM_SEG); // its table is looked for
	ranges();
	loader(argv[0]);
	settingsOf();
	schedules();
	draws();
	notes();
	puts("ok");
}
