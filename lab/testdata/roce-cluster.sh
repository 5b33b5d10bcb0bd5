# Run by every host of a lab: host 1 is proxy, prefill node and client, host 2 is
# the decode node. KV has two ways to go, both RDMA rails. The nodes stay while one
# proxy, of hand-off pull, makes way for another, of layerwise.
profile=/lab/roce-profile.json
node="--rail rdma/rxe0,rdma/rxe1 --profile $profile --kv-warm-mib 0 --log-level warn"
if [ "$KVFERRY_LAB_HOST" = 2 ]; then
	exec decode --id decode-0 --proxy "$KVFERRY_LAB_PEER:9000" --grpc "$KVFERRY_LAB_ADDR_0:9100" $node
fi
prefill --id prefill-0 --proxy "$KVFERRY_LAB_ADDR_0:9000" --grpc "$KVFERRY_LAB_ADDR_0:9101" $node &
for handoff in pull layerwise; do
	proxy --handoff $handoff --http 127.0.0.1:8000 --grpc "$KVFERRY_LAB_ADDR_0:9000" --log-level warn &
	proxy=$!
	kvferry reproduce mooncake --proxy http://127.0.0.1:8000 --settings $handoff --rows 256/q2 \
		--num-prompts 10 --clock real --retries-disturbed 0 --ready-timeout 60s --out "$KVFERRY_LAB_OUT/$handoff" || exit 1
	sleep 2 # a heartbeat says what the rails have moved
	wget -qO- http://127.0.0.1:8000/metrics | grep '^kvferry:rail_' >"$KVFERRY_LAB_OUT/$handoff/rails"
	kill $proxy
	wait $proxy
done
