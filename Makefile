# make test is what CI runs; make help lists the rest.
GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
COUNT    ?= 3
FUZZTIME ?= 20s
PACKAGES ?= ./... # that make test tests; vet and the linters look at all
SOAK     ?= 20000
SOAK_TIME ?= 30m
FLIPS    ?= 100

# cgo's compiler, with cgo's flags, makes a program: the race detector needs that, and the
# RDMA rail. The probe has no number sign in it: make before 4.3 wants one escaped, and later
# makes keep the backslash. $(MAKEOVERRIDES) is what this make was given as NAME=value; $(shell)
# sees it only since make 4.4.
goenv = env $(MAKEOVERRIDES) $(GO) env
compiles = $(shell out=$$(mktemp); echo 'int main(void) { return rand() == 0; }' | $$($(goenv) CC CGO_CPPFLAGS CGO_CFLAGS) \
	-include stdlib.h -x c - -o $$out $$($(goenv) CGO_LDFLAGS) >/dev/null 2>&1 && echo yes; rm -f $$out)
RAIL = $(if $(filter 1,$(shell $(goenv) CGO_ENABLED)),with the RDMA rail,without the RDMA rail: cgo is off or there is no C compiler ($(GO) env CGO_ENABLED CC))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test test-roce mismatches clients vet format lint unit unit-tools build lib nixl wheel generate check-generate bench-transfer bench-serving bench-contention bench-accuracy bench-simulate soak flips flips-roce bench-roce bench-nics bench-wan bench-incast mooncake-nics rdma-tcp fuzz mutants byzantine

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Garbage is collected after 400 % growth in place of 100: compiling, checking and the race detector's tests take a sixth
# less of the CPU, for a few hundred MB.
vet format lint unit unit-tools test-roce: export GOGC ?= 400

# staticcheck and the test of the mutation tool run on the CPU time that the other tests leave idle. Their output
# follows that of the other tests.
test: vet format ## vet, gofumpt, staticcheck and all tests under the race detector
	@said=$$(mktemp); trap 'kill $$beside 2>/dev/null; rm -f "$$said"' EXIT; trap 'exit 1' INT TERM; \
	nice $(MAKE) --no-print-directory lint unit-tools >"$$said" 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory unit; unit=$$?; \
	wait $$beside; found=$$?; cat "$$said"; [ $$unit = 0 ] && [ $$found = 0 ]
	@echo "make test: go vet, gofumpt, staticcheck and go test -race -shuffle=on of $$($(GO) list $(PACKAGES) | wc -l) packages passed"

vet:
	@echo "== go vet ./..."
	@$(GO) vet ./...
	@$(if $(compiles),echo "== go vet -tags cshared ./cmd/libkvferry" && $(GO) vet -tags cshared ./cmd/libkvferry)

format:
	@echo "== gofumpt -l ."
	@out=$$($(TOOL) gofumpt -l .) || exit 1; [ -z "$$out" ] || { \
		echo "not formatted; run $(TOOL) gofumpt -w on:"; echo "$$out"; exit 1; }

lint:
	@echo "== staticcheck ./..."
	@$(TOOL) staticcheck ./...
	@$(if $(compiles),echo "== staticcheck -tags cshared ./cmd/libkvferry" && $(TOOL) staticcheck -tags cshared ./cmd/libkvferry)

# A program with the race detector sleeps for a second before it exits, every test's and every
# child's of it: a tenth is enough for another thread to report. Tests are vetted by vet. What debuggers
# want of a program takes half of its link, and no trace needs it. -short is fewer cases of what computes
# much in one goroutine: .ci/run has the others, without the race detector.
unit:
	@echo "== go test -race -shuffle=on $(PACKAGES)"
	@$(if $(compiles),:,echo "the race detector needs cgo, and cgo a C compiler that works: apt-get install gcc libc6-dev"; exit 1)
	@CGO_ENABLED=1 GORACE=$${GORACE-atexit_sleep_ms=100} $(GO) test -race -short -vet=off -ldflags="-s -w" -shuffle=on -timeout 30m $(PACKAGES)

unit-tools:
	@echo "== go -C tools test ./..."
	@$(GO) -C tools test -vet=off ./...

build: ## the daemons and kvferry into bin/
	$(GO) build -o bin/ ./cmd/...
	@echo "make build: bin/ is there, $(RAIL)"

lib: ## libkvferry.so and kvferry.h, the transfer engine for C and Python, into bin/
	$(if $(compiles),,@echo "make $@ needs cgo, and cgo a C compiler that works: apt-get install gcc libc6-dev"; exit 1)
	CGO_ENABLED=1 $(GO) build -tags cshared -buildmode=c-shared -o bin/libkvferry.so ./cmd/libkvferry
	@rm -f bin/libkvferry.h && cp cmd/libkvferry/kvferry.h bin/
	@echo "make lib: bin/libkvferry.so and bin/kvferry.h are there"

# Where the library, the programs and Python's package are made one file, and where that is tried.
wheel: ## a wheel of Python's package with the library and the programs, into bin/dist/, and checked without Go (1.5 min)
	$(if $(compiles),,@echo "make $@ needs cgo, and cgo a C compiler that works: apt-get install gcc libc6-dev"; exit 1)
	@set -e; rm -f bin/dist/kvferry-*.whl; wheel=$$(GO="$(GO)" python3 bindings/python/backend.py bin/dist); python3 bindings/python/check.py "$$wheel"

nixl: lib ## libplugin_KVFERRY.so, a backend plugin for NIXL 1.5.1, into bin/ (NIXL_PREFIX=NIXL's source: for another)
	NIXL_PREFIX=$(NIXL_PREFIX) bindings/nixl/build bin
	@echo "make nixl: bin/libplugin_KVFERRY.so is there; NIXL finds it by NIXL_PLUGIN_DIR=$(CURDIR)/bin"

# Every mutant of a package is compiled into one test binary, behind a switch: go doc ./mutants in tools.
SEED  ?= 1
LIMIT ?= 5m
mutants: ## changes to PACKAGES that no test notices (SEED=1 LIMIT=5m SINCE=revision: only changed lines)
	@set -e; bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; $(GO) -C tools build -o $$bin/mutants ./mutants; \
	$$bin/mutants -seed $(SEED) -limit $(LIMIT) $(if $(SINCE),-since $(SINCE)) $(PACKAGES)

# Skipped loudly where the lab cannot run: go test -v says so and why.
test-roce: ## the RDMA rail, faults, a cluster over it, topology, on software RoCE in emulated hosts (5 to 10 min)
	@KVFERRY_LAB=1 $(GO) test -count=1 -timeout 40m -v -run RoCE ./lab

mismatches: lib ## real vLLM whose P differs from D in one field at a time: D's tokens must be right (10 min, after kvferry lab vllm setup)
	@KVFERRY_VLLM=1 KVFERRY_LIBRARY=$(CURDIR)/bin/libkvferry.so PYTHONPATH=bindings/python python3 -m unittest discover -v -s bindings/python/tests -p test_vllm_mismatch.py

# Skipped loudly where packages cannot be installed: go test -v says so and why.
CLIENTS ?=
clients: ## other people's clients against a cluster, figures beside the server's (CLIENTS=all: vLLM's, guidellm ..., 12 GB more)
	@KVFERRY_CLIENTS=$(CURDIR)/bin/.clients KVFERRY_CLIENT=$(CLIENTS) $(GO) test -count=1 -timeout 60m -v -run '^TestClients$$' ./cluster

flips-roce bench-roce rdma-tcp: export CGO_ENABLED = 1

bench-roce: build ## the RDMA rail beside perftest, on one emulated host
	@set -e; bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	$(GO) test -c -o $$bin/rdma.test ./transport/rdma; \
	bin/kvferry lab rdma --hosts 1 --nics 1 --cpus 2 --env KVFERRY_RDMA=rxe0 --env KVFERRY_PERFTEST=1 -- \
		$$bin/rdma.test -test.run TestLabPerftest

bench-nics: build ## several NICs in the NIC lab: rate, selection, MPTCP, failover; fails outside the limits (2.5 min, root)
	@bin/kvferry lab nics --out kvferry-out/nics

bench-wan: build ## the same on links that are long or lose packets; fails outside the limits (35 min, root)
	@bin/kvferry lab nics wan --out kvferry-out/wan

bench-incast: ## 16 initiators that share one target's NIC: how evenly, and its queue; fails outside the limits (2 min, root)
	$(GO) test -run '^$$' -bench Incast -benchtime 1x ./bench/nics

mooncake-nics: build ## TTFT and TPOT over 1, 2 and 4 NICs of 2 Gbit/s in the NIC lab (3 min, root)
	@bin/kvferry lab nics mooncake

rdma-tcp: build ## RDMA against TCP over one NIC of 80 Mbit/s, between two emulated hosts
	@bin/kvferry lab rdma --nics 1 --rate 80mbit --until 2 --file bin/kvferry --file lab/testdata/rdma-tcp.sh -- sh /lab/rdma-tcp.sh

# protoc's plugins are built from tools/go.mod, so that everyone generates the same.
generate: PROTO_OUT ?= proto
generate: ## proto/*.pb.go from proto/kvferry.proto
	@command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler"; exit 1; }
	@echo "== $$(protoc --version), plugins of tools/go.mod"
	@set -e; bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	GOBIN=$$bin $(GO) -C tools install \
		google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; \
	PATH=$$bin:$$PATH protoc -I proto --go_out=$(PROTO_OUT) --go_opt=paths=source_relative \
		--go-grpc_out=$(PROTO_OUT) --go-grpc_opt=paths=source_relative kvferry.proto

# The lines that name protoc's version are left out: it differs between
# distributions and the code does not.
check-generate: ## fail if the committed proto/*.pb.go are not what generate makes
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(MAKE) --no-print-directory generate PROTO_OUT=$$out; \
	[ "$$(cd proto && ls *.pb.go)" = "$$(cd $$out && ls)" ] || { \
		echo "proto/ has other generated files than:" $$(ls $$out)"; run make generate"; exit 1; }; \
	for f in proto/*.pb.go; do \
		diff -u -I '^//.*[[:space:]]protoc  *v' $$f $$out/$${f##*/} || { echo "$$f is stale: run make generate"; exit 1; }; \
	done
	@echo "make check-generate: proto/*.pb.go are what generate makes"

bench-transfer: ## the TCP rail beside bare sockets, same settings, same run (COUNT=3)
	$(GO) test -run '^$$' -bench 'Slab|Bare|Latency' -count $(COUNT) -timeout 30m ./transport/tcp

bench-serving: ## CPU a token, inter-token latency and memory of proxy and node; fails above the limits
	$(GO) test -run '^$$' -bench Serving -benchtime 1x ./cluster

bench-contention: ## 1 to 8 transfers of 470 MB into one node, in both clocks and by the rules of other simulators (4.2 GB of memory)
	$(GO) test -run '^$$' -bench Contention -benchtime 1x ./bench

bench-accuracy: ## what no test may ask of a busy machine: late timers, links of the NIC lab, the account of a request's time (COUNT=3, root)
	$(GO) test -run '^$$' -bench Lateness -count $(COUNT) ./clock
	$(GO) test -run '^$$' -bench 'Links|Management' -benchtime 1x -count $(COUNT) ./lab/nics
	$(GO) test -run '^$$' -bench Breakdown -benchtime 5x -count $(COUNT) ./cluster

bench-simulate: ## events a second in virtual time, and where the time goes (COUNT=3)
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(GO) test -run '^$$' -bench 'Network|Histogram|VirtualTable' -count $(COUNT) ./sim ./bench/stats ./bench; \
	$(GO) test -run '^$$' -bench Simulation -count $(COUNT) -cpuprofile $$out/cpu -o $$out/bench.test ./bench/simulation; \
	$(GO) tool pprof -top -nodecount 16 $$out/bench.test $$out/cpu 2>/dev/null

soak: ## tokens drawn from KV, clients that leave, nodes that are killed: for SOAK_TIME=30m, then SOAK=20000 requests a hand-off (45 min)
	$(GO) test -count=1 -timeout 0 -parallel 8 -v -run '^TestSoakMixed$$' ./cluster -soak-time $(SOAK_TIME)
	$(GO) test -count=1 -timeout 60m -v -run '^TestSoak$$' ./cluster -soak $(SOAK)

byzantine: ## nodes, engines and servers that break the protocol: 10,000 seeds of each, 200 between processes (40 min)
	KVFERRY_SEEDS=10000 $(GO) test -count=1 -timeout 60m -v -run '^TestByzantineNodes$$' ./proxy
	KVFERRY_SEEDS=200 $(GO) test -count=1 -timeout 30m -v -run '^TestByzantineNodes$$' ./cluster
	KVFERRY_SEEDS=10000 $(GO) test -count=1 -timeout 60m -v -run '^TestByzantine' ./proxy/upstream ./bench/client
	KVFERRY_SEEDS=200 $(GO) test -count=1 -timeout 30m -v -run '^TestByzantineEngines$$' ./proxy

flips: ## flips bits of KV in each memory and on each kind of rail, FLIPS=100 requests each: what became of them, whom it blames
	$(GO) test -count=1 -timeout 30m -v -run '^TestFlips$$' ./node -flips $(FLIPS)

flips-roce: build ## the same on an RDMA rail, on one emulated host (after kvferry lab setup)
	@set -e; bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	$(GO) test -c -o $$bin/node.test ./node; \
	bin/kvferry lab rdma --hosts 1 --nics 1 --cpus 2 -- \
		$$bin/node.test -test.run 'TestFlips/.*/rail_rdma' -test.v -flips $(FLIPS) -flips-rail rdma/rxe0

fuzz: ## every fuzz target (FUZZTIME=20s each)
	@set -e; for pkg in $$(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$pkg/*_test.go); do \
			echo "== $$target in $$pkg, $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done
