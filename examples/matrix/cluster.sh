#!/bin/sh
# cluster.sh BIN HANDOFF HOST PORT: a proxy, a prefill and a decode node of BIN on this
# machine, which serve at HOST:PORT until they are told to end.
set -eu
bin=$1 handoff=$2 host=$3 port=$4
# Nodes register at another address of this machine, so that one port is enough.
grpc=127.0.0.2:$port
"$bin/proxy" --handoff "$handoff" --http "$host:$port" --grpc "$grpc" &
for role in prefill decode; do
	"$bin/$role" --id "$role-0" --proxy "$grpc" --grpc 127.0.0.1:0 --kv-warm-mib 0 &
done
wait
