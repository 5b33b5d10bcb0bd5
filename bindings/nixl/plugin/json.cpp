#include "json.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {

class Reader {
public:
	explicit Reader(const std::string &from) : text(from) {}

	Json all() {
		Json value = next(0);
		if (skip() != 0)
			fail("something behind the end");
		return value;
	}

private:
	[[noreturn]] void fail(const std::string &what) const {
		throw std::runtime_error("line " + std::to_string(1 + std::count(text.begin(), text.begin() + long(std::min(at, text.size())), '\n')) + ": " + what);
	}
	char peek() const { return at < text.size() ? text[at] : 0; }
	// skip goes past white space, and returns what comes, or 0.
	char skip() {
		while (peek() && strchr(" \t\r\n", peek()))
			at++;
		return peek();
	}
	void expect(const char *word) {
		if (text.compare(at, strlen(word), word) != 0)
			fail(std::string("not JSON: ") + word + " was expected");
		at += strlen(word);
	}

	Json next(int depth) {
		if (depth > 64)
			fail("lists in lists, more than 64 deep");
		Json value;
		switch (skip()) {
		case '{':
			value.kind = Json::Object;
			elements('}', [&] {
				if (skip() != '"')
					fail("not JSON: the name of a member was expected");
				std::string name = string();
				skip();
				expect(":");
				for (const auto &member : value.members)
					if (member.first == name)
						fail("two members " + quoted(name));
				value.members.emplace_back(std::move(name), next(depth + 1));
			});
			break;
		case '[':
			value.kind = Json::List;
			elements(']', [&] { value.items.push_back(next(depth + 1)); });
			break;
		case '"':
			value.kind = Json::Text;
			value.text = string();
			break;
		case 't':
		case 'f':
			value.kind = Json::Bool;
			value.truth = peek() == 't';
			expect(value.truth ? "true" : "false");
			break;
		case 'n':
			expect("null");
			break;
		default:
			value.kind = Json::Number;
			value.number = number();
		}
		return value;
	}

	template <class F> void elements(char end, F &&element) {
		at++;
		if (skip() == end) {
			at++;
			return;
		}
		for (;;) {
			element();
			const char c = skip();
			if (c != ',' && c != end)
				fail(std::string("not JSON: , or ") + end + " was expected");
			at++;
			if (c == end)
				return;
		}
	}

	double number() {
		if (!strchr("-0123456789", peek()) || peek() == 0)
			fail("not JSON: a value was expected");
		char *end = nullptr;
		const double value = strtod(text.c_str() + at, &end);
		at = size_t(end - text.c_str());
		return value;
	}

	std::string string() {
		std::string out;
		for (at++; peek() != '"'; at++) {
			if (at >= text.size() || (unsigned char)peek() < ' ')
				fail("not JSON: a text without its end");
			if (peek() != '\\') {
				out += peek();
				continue;
			}
			at++;
			static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
			const char *escape = peek() ? strchr(from, peek()) : nullptr;
			if (!escape)
				fail("not JSON: \\ and what cannot follow it (\\u is not read)");
			out += to[escape - from];
		}
		at++;
		return out;
	}

	const std::string &text;
	size_t at = 0;
};

} // namespace

Json parseJson(const std::string &text) { return Reader(text).all(); }

std::string quoted(const std::string &text) {
	std::string out = "\"";
	for (const char c : text) {
		char hex[8];
		if (c == '"' || c == '\\')
			out += std::string("\\") + c;
		else if ((unsigned char)c < ' ' || (unsigned char)c >= 0x7f) // bytes need not be UTF-8: each is one character
			out += (snprintf(hex, sizeof(hex), "\\u%04x", (unsigned char)c), hex);
		else
			out += c;
	}
	return out + "\"";
}
