# kvferry, which is the daemons too.
#
#	docker build -t kvferry .
#	docker run --rm kvferry kvferry reproduce mooncake --clock virtual --rows 256/q8
#
# compose.yaml starts a proxy, a prefill and a decode node of it. For RDMA a container needs
# the devices, locked memory and the host's network: --device /dev/infiniband
# --ulimit memlock=-1 --network host.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=1 go build -trimpath -ldflags=-s -o /out/ ./cmd/kvferry

FROM debian:bookworm-slim
# Rails over RDMA open libibverbs and its drivers. Debian keeps one version of a package, so none
# is named.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ibverbs-providers libibverbs1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /usr/local/bin/
USER 65534:65534
WORKDIR /tmp
CMD ["kvferry", "--help"]
