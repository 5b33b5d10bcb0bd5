#!/bin/sh
# A completion, streamed, with where its time went.
#
#	sh examples/curl/completion.sh [127.0.0.1:8000]
#
# Needs curl and a proxy at that address.
set -eu
exec curl --silent --show-error --fail-with-body --no-buffer "${1:-127.0.0.1:8000}/v1/completions" --data \
	'{"prompt":"Tell me about ferries","max_tokens":4,"stream":true,"return_breakdown":true}'
