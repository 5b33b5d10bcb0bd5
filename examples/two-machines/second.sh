#!/bin/sh
# On the second machine: a decode node, until Ctrl-C.
#
#	sh examples/two-machines/second.sh 10.0.0.2 10.0.0.1 [flags of decode]
#
# 10.0.0.2 is this machine, as the first one reaches it, 10.0.0.1 the first. Needs: make
# build, and the ports 9100 and 9101 free.
set -eu
here=${1:?the address of this machine, as the other one reaches it}
first=${2:?the address of the machine with the proxy}
shift 2
bin=$(dirname "$0")/../../bin

exec "$bin/decode" --id decode-0 --proxy "$first:9000" --grpc "$here:9100" --rail "$here:9101" "$@"
