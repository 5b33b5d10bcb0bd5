#!/bin/sh
# On the first machine: the proxy and a prefill node, until Ctrl-C.
#
#	sh examples/two-machines/first.sh 10.0.0.1 [flags of prefill]
#
# 10.0.0.1 is this machine, as the second one reaches it. Needs: make build, and the
# ports 8000 (HTTP), 9000, 9100 and 9101 free.
set -u
here=${1:?the address of this machine, as the other one reaches it}
shift
bin=$(dirname "$0")/../../bin

"$bin/proxy" --http "$here:8000" --grpc "$here:9000" --handoff layerwise &
proxy=$!
"$bin/prefill" --id prefill-0 --proxy "$here:9000" --grpc "$here:9100" --rail "$here:9101" "$@" &
prefill=$!
trap : INT TERM
wait $prefill # ends with the signal, or when prefill says what is wrong
status=$?
kill -INT $prefill 2>/dev/null && wait $prefill
kill -INT $proxy 2>/dev/null
wait
exit $status
