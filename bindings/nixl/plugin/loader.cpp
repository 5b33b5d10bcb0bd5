#include "loader.h"

#include "abi.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;

#ifndef KVFERRY_NIXL_VERSION
#define KVFERRY_NIXL_VERSION "1.5.1" // that abi.h was written for
#endif

namespace {

// A table begins with two words that are no functions. Five functions of lists and 27 of backends are in abi.h.
constexpr long listTable = (2 + 5) * 8, engineTable = (2 + 27) * 8;

// A view of a file's bytes as an array of T, or nullptr if it reaches past the end.
template <class T> const T *view(const std::string &bytes, uint64_t offset, uint64_t count) {
	if (offset > bytes.size() || count > (bytes.size() - offset) / sizeof(T))
		return nullptr;
	return reinterpret_cast<const T *>(bytes.data() + offset);
}

// packageVersion is the version of a wheel that has libnixl.so in its folder of libraries: beside .NAME.mesonpy.libs
// lies NAME-VERSION.dist-info.
std::string packageVersion(const fs::path &library) {
	const fs::path folder = library.parent_path();
	std::string name = folder.filename();
	const std::string after = ".mesonpy.libs";
	if (name.size() <= after.size() || name[0] != '.' || name.compare(name.size() - after.size(), after.size(), after) != 0)
		return "";
	name = name.substr(1, name.size() - 1 - after.size()) + "-";
	std::error_code err;
	for (const auto &entry : fs::directory_iterator(folder.parent_path(), err)) {
		const std::string found = entry.path().filename();
		if (found.compare(0, name.size(), name) == 0 && entry.path().extension() == ".dist-info")
			return entry.path().stem().string().substr(name.size());
	}
	return "";
}

} // namespace

long tableSize(const std::string &path, const std::string &symbol) {
	std::error_code err;
	const auto length = fs::file_size(path, err);
	std::string bytes(err ? 0 : length, 0);
	if (!std::ifstream(path, std::ios::binary).read(bytes.data(), long(bytes.size())))
		return -1;
	const auto *head = view<Elf64_Ehdr>(bytes, 0, 1);
	if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64)
		return -1;
	const auto *sections = view<Elf64_Shdr>(bytes, head->e_shoff, head->e_shnum);
	for (unsigned i = 0; sections && i < head->e_shnum; i++) {
		if (sections[i].sh_type != SHT_DYNSYM || sections[i].sh_link >= head->e_shnum)
			continue;
		const uint64_t count = sections[i].sh_size / sizeof(Elf64_Sym);
		const auto *symbols = view<Elf64_Sym>(bytes, sections[i].sh_offset, count);
		const Elf64_Shdr &names = sections[sections[i].sh_link];
		for (uint64_t k = 0; symbols && k < count; k++) {
			const char *name = view<char>(bytes, names.sh_offset + symbols[k].st_name, symbol.size() + 1);
			if (name && symbols[k].st_shndx != SHN_UNDEF && memcmp(name, symbol.c_str(), symbol.size() + 1) == 0)
				return long(symbols[k].st_size);
		}
	}
	return -1;
}

Loader inspect(const void *address) {
	Loader loader;
	Dl_info info;
	if (!dladdr(const_cast<void *>(address), &info) || !info.dli_fname)
		return loader;
	std::error_code err;
	const fs::path library = fs::canonical(info.dli_fname, err);
	loader.path = err ? std::string(info.dli_fname) : library.string();
	loader.version = packageVersion(loader.path);
	loader.listTable = tableSize(loader.path, "_ZTV12nixlDescListI12nixlMetaDescE");
	for (const auto &entry : fs::directory_iterator(fs::path(loader.path).parent_path() / "plugins", err))
		if (entry.path().filename().string().compare(0, 10, "libplugin_") == 0)
			loader.plugins.push_back(entry.path());
	std::sort(loader.plugins.begin(), loader.plugins.end());
	for (size_t i = 0; i < loader.plugins.size() && loader.engineTable < 0; i++)
		loader.engineTable = tableSize(loader.plugins[i], "_ZTV17nixlBackendEngine");
	return loader;
}

std::string unfit(const Loader &loader, const std::string &accepted) {
	const std::string is = "this plugin was built for NIXL " KVFERRY_NIXL_VERSION ", and " + loader.path;
	const auto differs = [&](const char *what, long bytes, long ours) {
		return is + " has other classes: its " + what + " have " + std::to_string(bytes / 8 - 2) + " virtual functions, not " + std::to_string(ours / 8 - 2) +
		       ": build the plugin for that NIXL (make nixl NIXL_PREFIX=its source)";
	};
	if (loader.listTable < 0)
		return is + ", which loads it, has no class nixlDescList: it is not NIXL, or hides its symbols";
	if (loader.listTable != listTable)
		return differs("lists of descriptors", loader.listTable, listTable);
	if (loader.engineTable >= 0 && loader.engineTable != engineTable)
		return differs("backends", loader.engineTable, engineTable);
	if (!loader.version.empty() && loader.version != KVFERRY_NIXL_VERSION && loader.version != accepted)
		return is + " is NIXL " + loader.version + ": install nixl==" KVFERRY_NIXL_VERSION ", or build the plugin for that NIXL (make nixl NIXL_PREFIX=its source)"
		       "; its sizes are the same, so that KVFERRY_NIXL_VERSION=" + loader.version + " in the environment may do";
	return "";
}
