# The three daemons and kvbench.
#
#	docker build -t kvferry .
#	docker build -t kvferry --build-arg RDMA=1 .    # with the RDMA rail
#	docker run --rm kvferry kvbench mooncake --clock virtual --rows 256/q8
#
# compose.yaml starts a proxy, a prefill and a decode node of it. With RDMA a container needs
# the devices, locked memory and the host's network too: --device /dev/infiniband
# --ulimit memlock=-1 --network host.

FROM golang:1.26-bookworm AS build
ARG RDMA=0
# Debian keeps one version of a package, so none is named.
# hadolint ignore=DL3008
RUN [ "$RDMA" = 0 ] || { apt-get update && apt-get install -y --no-install-recommends libibverbs-dev; }
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN set -- && { [ "$RDMA" = 0 ] || set -- -tags=rdma; } \
	&& CGO_ENABLED=$RDMA go build "$@" -trimpath -ldflags=-s -o /out/ ./cmd/proxy ./cmd/prefill ./cmd/decode ./cmd/kvbench

FROM debian:bookworm-slim
ARG RDMA=0
# hadolint ignore=DL3008
RUN [ "$RDMA" = 0 ] || { apt-get update && apt-get install -y --no-install-recommends ibverbs-providers libibverbs1 && rm -rf /var/lib/apt/lists/*; }
COPY --from=build /out/ /usr/local/bin/
USER 65534:65534
WORKDIR /tmp
CMD ["kvbench", "--help"]
