// units: what the plugin is made of and needs no library.
#include "../plugin/loader.h"
#include "../plugin/ranges.h"
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
	CHECK(settings({}).rails == everyInterface() && everyInterface().compare(0, 4, "tcp/") == 0 && settings({}).timeoutMs == 0);
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

int main(int, char **argv) {
	nixl_meta_dlist_t list(DRAM_SEG); // its table is looked for
	ranges();
	loader(argv[0]);
	settingsOf();
	puts("ok");
}
