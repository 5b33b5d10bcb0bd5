package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRefused: command lines of all subcommands that somebody has really typed, or might.
func TestRefused(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", "/no/hub")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	profile := file("gpu.json", "{\n  \"name\": \"x\",\n  \"vocabulary\": 32000\n}\n")
	trace := file("trace.jsonl", `{"timestamp": "0", "input_length": 5, "output_length": 1, "hash_ids": [1]}`+"\n")
	backwards := file("backwards.jsonl", `{"timestamp": 5, "input_length": 5, "output_length": 1, "hash_ids": [1]}
{"timestamp": 4.5, "input_length": 5, "output_length": 1, "hash_ids": [1]}
`)
	result := file("result.json", `{"total_token_throughput": 1}`)
	garbage := file("garbage.json", `{"total_token_throughput": 1, "ttfts": 3}`)
	matrix := file("matrix.json", `{"cpu:0": "eth0"}`)
	pairs := file("pairs.yaml", "servers:\n  - {name: a, comand: x}\nclients: []\n")
	refuses(t, func() Program { return kvferry(false) }, [][2]string{
		{"reproduce mooncake --kv-blocks 99999999999", "--kv-blocks: 99999999999: use 1 to 4294967295"},
		{"reproduce mooncake --kv-blocks 4000000000", "--kv-blocks: 4000000000: these blocks take "},
		{"reproduce mooncake --kv-warm-mib -1", "--kv-warm-mib: \"-1\": use 0 or more"},
		{"reproduce mooncake --link 10gbits", `--link: "10gbits": there is no such link: use native`},
		{"reproduce mooncake --link rate=10gbit,latency=-3us", "--link: "},
		{"reproduce mooncake --clock fast", `--clock: "fast": use real, virtual or both`},
		{"reproduce mooncake --clock virtual --link native", `--link: "native": it is this machine's network`},
		{"reproduce mooncake --clock virtual --proxy 127.0.0.1:8000 --settings tcp", `--clock: "virtual": it computes what --proxy would measure`},
		{"reproduce mooncake --proxy http://alice:pw@127.0.0.1:8000 --settings tcp", `--proxy: "http://127.0.0.1:8000": metrics, logs and files show it: leave user and password out`},
		{"reproduce mooncake --proxy 127.0.0.1:8000:1 --settings tcp", `--proxy: "127.0.0.1:8000:1": it is no server's address`},
		{"reproduce mooncake --profile " + profile, `--profile: "` + profile + `": line 3: there is no field "vocabulary"`},
		{"reproduce mooncake --rail tcp/nosuch0,tcp/nosuch0", `--rail: "tcp/nosuch0": tcp/nosuch0 is given twice`},
		{"reproduce mooncake --settings ~", "--settings: none given"},
		{"reproduce mooncake --settings tcp,tcp", `--settings: "tcp"`},
		{"reproduce mooncake --seed 4294967296", `--seed: "4294967296": write a whole number from 0 to 4294967295`},
		{"reproduce mooncake --request-timeout 2min", `--request-timeout: "2min": write a time with its unit`},
		{"null-server --listen 8000", "--listen: "},
		{"null-server --tokens 0", "--tokens: 0: use more than 0"},
		{"null-server --ttft 50", `--ttft: "50": write a time with its unit`},
		{"null-server --key ~", "--key: none given"},
		{"sim --trace " + trace, "--trace: trace " + trace + ":1: timestamp: string: want a number"},
		{"sim --trace " + backwards, "--trace: trace " + backwards + ":2: timestamp: 4.5 comes after 5: sort"},
		{"sim --trace /", `--trace: "/": it is a folder`},
		{"sim --profile " + profile, `--profile: "` + profile + `": line 3: there is no field "vocabulary"`},
		{"sim --handoff drop", `--handoff: "drop": `},
		{"sim --dataset-name bogus --random-input-len 16", `--dataset-name: "bogus": there is no such load: use `},
		{"sim --burstiness 1e-9", "--burstiness: 1e-09: use 0.001 to 1e6"},
		{"bench --clock virtual --num-prompts 100000000000", "--num-prompts: 100000000000: use 1 to 100000000"},
		{"sim --num-prompts 9223372036854775807", "--num-prompts: 9223372036854775807: use 1 to 100000000"},
		{"sim --request-rate -2", "--request-rate: -2: use more than 0"},
		{"sim --request-rate NaN", "--request-rate: NaN: write a number"},
		{"sim --burstiness -1", "--burstiness: "},
		{"sim --random-range-ratio 1.5", "--random-range-ratio: 1.5: use "},
		{"sim --goodput ttft=1000", "--goodput: "},
		{"sim --goodput ttft:-5", "--goodput: "},
		{"sim --migration-threshold 3", "--migration-threshold: it is for --migration: give both"},
		{"sim --pcie-gb-s 30", "--pcie-gb-s: it is for --kv-offloading-size: give both"},
		{"profile --check --profile a10-qwen2.5-7b-int4", "--check: it is for --from: give both"},
		{"profile --model x --gpu A10 --rounds 3", "--rounds: it is for --from: give both"},
		{"profile --from http://127.0.0.1:1 --check --profile a10-qwen2.5-7b-int4 --rounds 3", "--rounds: with --profile nothing is fitted"},
		{"profile --from http://127.0.0.1:1 --check --profile a10-qwen2.5-7b-int4 --out x.json", "--out: with --profile nothing is fitted"},
		{"sim --prefill -1", "--prefill: -1: use 0 or more"},
		{"sim --prefill 1000000000", "--prefill: 1000000000: use "},
		{"sim --kv-blocks 99999999999", "--kv-blocks: 99999999999: use "},
		{"sim --max-model-len 1 --random-input-len 5000000000", "--random-input-len: 5000000000: use "},
		{"sim --link -5gbit", "--link: "},
		{"sim --rpc -1ms", "--rpc: \"-1ms\": use 0 or more"},
		{"sim --rpc 2h", "--rpc: 2h0m0s: use 0s to 1s"},
		{"sim --sweep rate", "--sweep: "},
		{"sim --sweep rate=1,1", "--sweep: "},
		{"sim --sweep nodes=1", "--sweep: "},
		{"sim --num-prompts 1e6", `--num-prompts: "1e6": write a whole number`},
		{"rail bench", "--rail: none given: "},
		{"rail bench --rail tcp/nosuch0", `--rail: "tcp/nosuch0": this machine has no interface "nosuch0"`},
		{"rail bench --rail mem --segment 9000000g", "--segment: "},
		{"rail bench --rail mem --segment 1000g", "--segment: "},
		{"rail bench --rail mem --block 1k:", "--block: "},
		{"rail bench --rail mem --threads 0", "--threads: "},
		{"rail bench --rail mem --limit 100", "--limit: "},
		{"rail bench --rail mem --matrix " + matrix, `--matrix: "` + matrix + `": `},
		{"rail bench --rail mem --location node1", `--location: "node1": write cpu:N`},
		{"rail bench --rail tcp/lo 10.0.0.1:port", `HOST: "10.0.0.1:port": the port is "port": use`},
		{"rail bench --rail tcp/lo http://10.0.0.1", `HOST: "http://10.0.0.1": it is no URL`},
		{"rail bench --rail tcp/lo --server --listen 127.0.0.1:70000", `--listen: "127.0.0.1:70000": the port is "70000"`},
		{"rail failover --rail mem --cut 2s", `--cut: "2s": write TIME:RAIL, like 2s:1`},
		{"rail failover --rail mem --fault 2s:burn:0", "--fault: "},
		{"rail failover --rail mem --fault 2s:link-down:7", "--fault: "},
		{"rail failover --rail mem --sample 0", "--sample: 0s: use more than 0"},
		{"rail failover --rail mem --batch -1", `--batch: "-1": write numbers from 1`},
		{"rail failover --rail mem --slice 1000g", `--slice: "1000g": use up to `},
		{"rail failover --cut 2s:1", "--rail: none given: "},
		{"lab nics --rounds 1000", "--rounds: 1000: use 1 to 99"},
		{"lab nics --duration 1", `--duration: "1": write a time with its unit`},
		{"lab nics mooncake --rate 5", "--rate: "},
		{"lab nics mooncake --counts 0", "--counts: "},
		{"lab nics mooncake --row 512/q1", "--row: "},
		{"lab nics moncake", `COMMAND: "moncake": kvferry lab nics has no such command: is it mooncake?`},
		{"lab connectors --settings nixl", `--settings: "nixl": there is no such setting: use mono, kvferry-pull`},
		{"lab connectors --faults=kill", `--faults: "kill": there is no such fault: use all, kill-p-before`},
		{"lab connectors --prompts 5", "--prompts: 5: use 6 or more"},
		{"lab connectors --model gpt", `--model: "gpt": it is no folder of a model`},
		{"rail topo --root /no/such", `--root: "/no/such": there is no such file: name a folder that has sys in it`},
		{"rail topo --matrix " + matrix, `--matrix: "` + matrix + `": `},
		{"rail topo --include ~", "--include: none given"},
		{"rail topo --capture " + dir, `--capture: "` + dir + `": it is a folder`},
		{"lab matrix", "FILE: none given: name a file of servers and clients"},
		{"lab matrix a.yaml b.yaml", "FILE: "},
		{"lab matrix /no/such.yaml", `FILE: "/no/such.yaml": there is no such file: name one in YAML or JSON`},
		{"lab matrix " + pairs, "FILE: " + pairs + ":2: servers[0].comand: there is no such field: kvferry lab matrix --help lists those that there are"},
		{"lab matrix " + pairs + " --out ~", "--out: none given"},
		{"compare", "RESULT: none given: name two files or folders of results"},
		{"compare " + filepath.Join(dir, "nothing.json"), `RESULT: "` + filepath.Join(dir, "nothing.json") + `": there is no such file`},
		{"compare " + dir, "RESULT: " + dir + ": it has no summary.json, so it is no result: name a folder of kvferry bench"},
		{"compare " + profile, "RESULT: " + profile + ": result 1: it is no result: it has neither total_token_throughput"},
		{"compare " + result, "RESULT: 1 result: name two or more to compare"},
		{"compare " + result + " " + garbage, "RESULT: " + garbage + ": result 1: ttfts: number: want a list in brackets"},
		{"compare " + result + " " + result + " --confidence 100", "--confidence: 100: use 50 to 99.9"},
		{"compare " + result + " " + result + " --draws 10", "--draws: 10: use 100 to 100000"},
		{"tokenizer", "--out: none given: name a folder"},
		{"tokenizer --out " + dir + " --profile /no/such", `--profile: "/no/such"`},
		{"tokenizer --out " + matrix, "--out: "},
		{"tokenizer --out " + dir + " --tokenizer Qwen/Qwen3-8B", `--tokenizer: "Qwen/Qwen3-8B": there is no such file or folder, and the cache of the Hugging Face hub (/no/hub) does not have it: download it: hf download Qwen/Qwen3-8B`},
		{"tokenizer --out " + dir + " --tokenizer Qwen/Qwen3-8B --profile zero", "--profile: it is for kvferry's own tokenizer"},
		{"bench --tokenizer Qwen/Qwen3-8B", `--tokenizer: "Qwen/Qwen3-8B": there is no such file or folder`},
		{"tokenizer here", `ARGUMENT: "here": kvferry tokenizer takes none`},
		{"lab connectors --faults flip", `ARGUMENT: "flip": kvferry lab connectors takes none: write --faults=flip if it is that flag's`},
		{"server", `COMMAND: "server": kvferry has no such command`},
		{"--settings tcp", "--settings: write the command before its flags: use serve, bench, sim, reproduce, compare, proxy, node, rail"},
	})
}

// TestHelp: what 0 does, and what build it is.
func TestHelp(t *testing.T) {
	zeros(t, func() Program { return kvferry(false) })
	tells(t, func() Program { return kvferry(false) }, "--version", "kvferry ", ", go1.")
}
