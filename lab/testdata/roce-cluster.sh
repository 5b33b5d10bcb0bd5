# Run by every host of a lab: host 1 is proxy, prefill node and client, host 2 is
# the decode node. Each hand-off has a cluster of its own.
profile=/lab/roce-profile.json
node="--rail rdma/rxe0 --profile $profile --kv-warm-mib 0 --log-level warn"
case $KVLAB_HOST in
2)
	for port in 9001 9002; do
		decode --id decode-0 --proxy "$KVLAB_PEER:$port" --grpc "$KVLAB_ADDR_0:9100" $node || exit 1
		[ $port = 9002 ] || echo "decode-0 is over"
	done
	;;
1)
	port=9001
	for handoff in pull layerwise; do
		proxy --handoff $handoff --http 127.0.0.1:8000 --grpc "$KVLAB_ADDR_0:$port" --log-level warn &
		proxy=$!
		prefill --id prefill-0 --proxy "$KVLAB_ADDR_0:$port" --grpc "$KVLAB_ADDR_0:9101" $node &
		prefill=$!
		kvbench mooncake --proxy http://127.0.0.1:8000 --profile $profile --settings $handoff --rows 256/q2 \
			--num-prompts 10 --clock real --ready-timeout 60s --out "$KVLAB_OUT/$handoff" || exit 1
		cat "$KVLAB_OUT/$handoff/table.md"
		kill $prefill $proxy
		wait $prefill $proxy
		port=9002
	done
	;;
esac
