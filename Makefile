# make test is what CI runs; make help lists the rest.
GO    ?= go
TOOL  := $(GO) tool -modfile=tools/go.mod
GOSRC  = $(shell git ls-files --cached --others --exclude-standard '*.go')

.DEFAULT_GOAL := help
.PHONY: help test vet format lint unit build generate check-generate bench-transfer bench-serving fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: vet format lint unit ## vet, gofumpt, staticcheck and all tests under the race detector
	@echo "make test: vet, gofumpt, staticcheck and go test -race -shuffle=on passed"

vet:
	@echo "== go vet"
	@$(GO) vet ./...

format:
	@echo "== gofumpt"
	@out=$$($(TOOL) gofumpt -l $(GOSRC)); if [ -n "$$out" ]; then \
		echo "not formatted; run: $(TOOL) gofumpt -w" $$out; exit 1; fi

lint:
	@echo "== staticcheck"
	@$(TOOL) staticcheck ./...

unit:
	@echo "== go test -race -shuffle=on"
	@command -v $${CC:-cc} >/dev/null || { echo "the race detector needs a C compiler: apt-get install gcc"; exit 1; }
	@CGO_ENABLED=1 $(GO) test -race -shuffle=on ./...

build: ## the daemons and kvbench into bin/
	$(GO) build -o bin/ ./cmd/...

# protoc's plugins come from tools/go.mod, so that everyone generates the same.
define protoc
	@command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler"; exit 1; }
	@protoc --version
	@set -e; bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	(cd tools && GOBIN=$$bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc); \
	PATH=$$bin:$$PATH protoc -I proto --go_out=$(1) --go_opt=paths=source_relative \
		--go-grpc_out=$(1) --go-grpc_opt=paths=source_relative kvferry.proto
endef

generate: ## proto/*.pb.go from proto/kvferry.proto
	$(call protoc,proto)

check-generate: ## fail if the committed proto/*.pb.go are not what generate makes
	@rm -rf .generated && mkdir .generated
	$(call protoc,.generated)
	@for f in kvferry.pb.go kvferry_grpc.pb.go; do \
		sed '/protoc  *v/d' proto/$$f > .generated/committed; sed -i '/protoc  *v/d' .generated/$$f; \
		diff -q .generated/committed .generated/$$f || { echo "proto/$$f is stale: run make generate"; exit 1; }; done
	@rm -rf .generated; echo "proto/*.pb.go are up to date"

bench-transfer: ## the TCP rail beside bare sockets, same settings, same run
	$(GO) test -run '^$$' -bench 'Slab|Bare|Latency' -count 3 -timeout 20m ./transport/tcp

bench-serving: ## CPU a token, inter-token latency and memory of proxy and node; fails above the limits
	$(GO) run ./cmd/kvbench serving

fuzz: ## every fuzz target for 20 s
	@set -e; grep -lE '^func Fuzz' $$(git ls-files '*_test.go') | while read -r f; do \
		for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' $$f); do \
			echo "== $$t ($$(dirname $$f))"; $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime 20s ./$$(dirname $$f); done; done
