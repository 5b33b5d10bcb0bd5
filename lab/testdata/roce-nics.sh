# Run by both hosts of a lab with two RoCE NICs: one NIC and then both, and both
# again while the lab pulls the cable of the second and plugs it in. Host 1 is the
# target.
rails="--rail rdma/rxe0 --rail rdma/rxe1"
if [ "$KVFERRY_LAB_HOST" = 1 ]; then
	exec kvferry rail bench $rails --server --listen :18515 --segment 16m
fi
tries=0
until kvferry rail bench $rails "$KVFERRY_LAB_PEER" --block 64k --batch 1 --iters 1 --segment 16m --out /tmp/probe >/tmp/said 2>&1; do
	tries=$((tries + 1))
	[ $tries -lt 20 ] || { cat /tmp/said; exit 1; }
	sleep 0.5
done
kvferry rail bench $rails "$KVFERRY_LAB_PEER" --rails 1,2 --block 256k --batch 4 --depth 4 --duration 6s --warmup 1s \
	--segment 16m --check --limit 80mbit,80mbit --out "$KVFERRY_LAB_OUT/transfer" || exit 1
exec kvferry rail failover $rails "$KVFERRY_LAB_PEER" --block 128k --slice 128k --batch 4 --depth 4 --segment 16m --warmup 1s \
	--sample 50ms --duration 16s --cut 4s:1 --restore 8s:1 --out "$KVFERRY_LAB_OUT/failover"
