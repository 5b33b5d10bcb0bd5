# Run by both hosts of a lab: RDMA against TCP over the same shaped NIC, and
# ib_write_bw beside them. Host 1 is the target.
if [ "$KVFERRY_LAB_HOST" = 1 ]; then
	ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 400 >/dev/null
	kvferry rail bench --rail tcp/eth0 --server --once --listen :18516 2>/dev/null
	exec kvferry rail bench --rail rdma/rxe0 --server --once --listen :18517 2>/dev/null
fi
point="--op both --block 64k,256k --batch 4 --depth 2 --duration 5s --segment 16m --check --limit 80mbit --out /tmp/out"
wait_for() { until "$@" 2>/dev/null; do sleep 0.3; done; }
echo "== ib_write_bw, 64 KiB: MB are 2^20 bytes"
wait_for ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 400 "$KVFERRY_LAB_PEER" | grep -A1 '^ #bytes'
for rail in tcp/eth0:18516 rdma/rxe0:18517; do
	echo "== kvferry rail bench --rail ${rail%:*}"
	wait_for kvferry rail bench --rail "${rail%:*}" "$KVFERRY_LAB_PEER:${rail##*:}" $point | grep -E '^(op|write|read|initiator) '
done
