package main

import (
	"os"
	"path/filepath"
	"testing"

	"kvferry/internal/cli"
	"kvferry/internal/cli/clitest"
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
	clitest.Refused(t, func() cli.Program { return program(false) }, [][2]string{
		{"mooncake --num-gpu-blocks-override 99999999999", "--num-gpu-blocks-override: 99999999999: use 1 to 4294967295"},
		{"mooncake --num-gpu-blocks-override 4000000000", "--num-gpu-blocks-override: 4000000000: these blocks take "},
		{"mooncake --kv-warm-mib -1", "--kv-warm-mib: -1: use 0 or more"},
		{"mooncake --link 10gbits", `--link: "10gbits": there is no such link: use native`},
		{"mooncake --link rate=10gbit,latency=-3us", "--link: "},
		{"mooncake --clock fast", `--clock: "fast": use real, virtual or both`},
		{"mooncake --clock virtual --link native", `--link: "native": it is this machine's network`},
		{"mooncake --clock virtual --proxy 127.0.0.1:8000 --settings tcp", `--clock: "virtual": it computes what --proxy would measure`},
		{"mooncake --proxy http://alice:pw@127.0.0.1:8000 --settings tcp", `--proxy: "http://127.0.0.1:8000": metrics, logs and files show it: leave user and password out`},
		{"mooncake --proxy 127.0.0.1:8000:1 --settings tcp", `--proxy: "127.0.0.1:8000:1": it is no server's address`},
		{"mooncake --profile " + profile, `--profile: "` + profile + `": line 3: there is no field "vocabulary"`},
		{"mooncake --rail tcp/nosuch0,tcp/nosuch0", `--rail: "tcp/nosuch0": tcp/nosuch0 is given twice`},
		{"mooncake --settings ~", "--settings: none given"},
		{"mooncake --settings tcp,tcp", `--settings: "tcp"`},
		{"mooncake --seed 4294967296", `--seed: "4294967296": write a whole number from 0 to 4294967295`},
		{"mooncake --request-timeout 2min", `--request-timeout: "2min": write a time with its unit`},
		{"null-server --listen 8000", "--listen: "},
		{"null-server --tokens 0", "--tokens: 0: use more than 0"},
		{"null-server --ttft 50", `--ttft: "50": write a time with its unit`},
		{"null-server --key ~", "--key: none given"},
		{"simulate --trace " + trace, "--trace: trace " + trace + ":1: timestamp: string: want a number"},
		{"simulate --trace " + backwards, "--trace: trace " + backwards + ":2: timestamp: 4.5 comes after 5: sort"},
		{"simulate --trace /", `--trace: "/": it is a folder`},
		{"simulate --profile " + profile, `--profile: "` + profile + `": line 3: there is no field "vocabulary"`},
		{"simulate --handoff drop", `--handoff: "drop": `},
		{"simulate --dataset-name bogus --random-input-len 16", `--dataset-name: "bogus": there is no such load: use `},
		{"simulate --burstiness 1e-9", "--burstiness: 1e-09: use 0.001 to 1e6"},
		{"serve --clock virtual --num-prompts 100000000000", "--num-prompts: 100000000000: use 1 to 100000000"},
		{"simulate --num-prompts 9223372036854775807", "--num-prompts: 9223372036854775807: use 1 to 100000000"},
		{"simulate --request-rate -2", "--request-rate: -2: use more than 0"},
		{"simulate --request-rate NaN", "--request-rate: NaN: write a number"},
		{"simulate --burstiness -1", "--burstiness: "},
		{"simulate --random-range-ratio 1.5", "--random-range-ratio: 1.5: use "},
		{"simulate --goodput ttft=1000", "--goodput: "},
		{"simulate --goodput ttft:-5", "--goodput: "},
		{"simulate --migration-threshold 3", "--migration-threshold: it is for --migration: give both"},
		{"simulate --pcie-gb-s 30", "--pcie-gb-s: it is for --kv-offloading-size: give both"},
		{"profile --check --profile a10-qwen2.5-7b-int4", "--check: it is for --from: give both"},
		{"profile --model x --gpu A10 --rounds 3", "--rounds: it is for --from: give both"},
		{"profile --from http://127.0.0.1:1 --check --profile a10-qwen2.5-7b-int4 --rounds 3", "--rounds: with --profile nothing is fitted"},
		{"profile --from http://127.0.0.1:1 --check --profile a10-qwen2.5-7b-int4 --out x.json", "--out: with --profile nothing is fitted"},
		{"simulate --prefill -1", "--prefill: -1: use 0 or more"},
		{"simulate --prefill 1000000000", "--prefill: 1000000000: use "},
		{"simulate --kv-blocks 99999999999", "--kv-blocks: 99999999999: use "},
		{"simulate --max-model-len 1 --random-input-len 5000000000", "--random-input-len: 5000000000: use "},
		{"simulate --link -5gbit", "--link: "},
		{"simulate --rpc -1ms", "--rpc: -1ms: use 0 or more"},
		{"simulate --rpc 2h", "--rpc: 2h0m0s: use 0s to 1s"},
		{"simulate --sweep rate", "--sweep: "},
		{"simulate --sweep rate=1,1", "--sweep: "},
		{"simulate --sweep nodes=1", "--sweep: "},
		{"simulate --num-prompts 1e6", `--num-prompts: "1e6": write a whole number`},
		{"transfer", "--rail: none given: "},
		{"transfer --rail tcp/nosuch0", `--rail: "tcp/nosuch0": this machine has no interface "nosuch0"`},
		{"transfer --rail mem --segment 9000000g", "--segment: "},
		{"transfer --rail mem --segment 1000g", "--segment: "},
		{"transfer --rail mem --block 1k:", "--block: "},
		{"transfer --rail mem --threads 0", "--threads: "},
		{"transfer --rail mem --limit 100", "--limit: "},
		{"transfer --rail mem --matrix " + matrix, `--matrix: "` + matrix + `": `},
		{"transfer --rail mem --location node1", `--location: "node1": write cpu:N`},
		{"transfer --rail tcp/lo 10.0.0.1:port", `HOST: "10.0.0.1:port": the port is "port": use`},
		{"transfer --rail tcp/lo http://10.0.0.1", `HOST: "http://10.0.0.1": it is no URL`},
		{"transfer --rail tcp/lo --server --listen 127.0.0.1:70000", `--listen: "127.0.0.1:70000": the port is "70000"`},
		{"failover --rail mem --cut 2s", `--cut: "2s": write TIME:RAIL, like 2s:1`},
		{"failover --rail mem --fault 2s:burn:0", "--fault: "},
		{"failover --rail mem --fault 2s:link-down:7", "--fault: "},
		{"failover --rail mem --sample 0", "--sample: 0s: use more than 0"},
		{"failover --rail mem --batch -1", "--batch: -1: use more than 0"},
		{"failover --rail mem --slice 1000g", `--slice: "1000g": use up to `},
		{"failover --cut 2s:1", "--rail: none given: "},
		{"nics --rounds 1000", "--rounds: 1000: use 1 to 99"},
		{"nics --duration 1", `--duration: "1": write a time with its unit`},
		{"nics mooncake --rate 5", "--rate: "},
		{"nics mooncake --counts 0", "--counts: "},
		{"nics mooncake --row 512/q1", "--row: "},
		{"nics moncake", `COMMAND: "moncake": kvbench nics has no such command: is it mooncake?`},
		{"engines --settings nixl", `--settings: "nixl": there is no such setting: use mono, kvferry-pull`},
		{"engines --faults=kill", `--faults: "kill": there is no such fault: use all, kill-p-before`},
		{"engines --prompts 5", "--prompts: 5: use 6 or more"},
		{"engines --model gpt", `--model: "gpt": it is no folder of a model`},
		{"topo --root /no/such", `--root: "/no/such": there is no such file: name a folder that has sys in it`},
		{"topo --matrix " + matrix, `--matrix: "` + matrix + `": `},
		{"topo --include ~", "--include: none given"},
		{"topo --capture " + dir, `--capture: "` + dir + `": it is a folder`},
		{"matrix", "FILE: none given: name a file of servers and clients"},
		{"matrix a.yaml b.yaml", "FILE: "},
		{"matrix /no/such.yaml", `FILE: "/no/such.yaml": there is no such file: name one in YAML or JSON`},
		{"matrix " + pairs, "FILE: " + pairs + ":2: servers[0].comand: there is no such field: use command, dir"},
		{"matrix " + pairs + " --out ~", "--out: none given"},
		{"serving --repeat 0", "--repeat: 0: use more than 0, or leave it out for 3"},
		{"compare", "RESULT: none given: name two files or folders of results"},
		{"compare " + filepath.Join(dir, "nothing.json"), `RESULT: "` + filepath.Join(dir, "nothing.json") + `": there is no such file`},
		{"compare " + dir, "RESULT: " + dir + ": it has no summary.json, so it is no result: name a folder of kvbench serve"},
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
		{"serve --tokenizer Qwen/Qwen3-8B", `--tokenizer: "Qwen/Qwen3-8B": there is no such file or folder`},
		{"tokenizer here", `ARGUMENT: "here": kvbench tokenizer takes none`},
		{"serving now", `ARGUMENT: "now": kvbench serving takes none`},
		{"engines --faults flip", `ARGUMENT: "flip": kvbench engines takes none: write --faults=flip if it is that flag's`},
		{"server", `COMMAND: "server": kvbench has no such command`},
		{"--settings tcp", "--settings: write the command before its flags: use check, compare, contention, engines, failover, matrix, mooncake"},
	})
}

// TestHelp: what 0 does, and what build it is.
func TestHelp(t *testing.T) {
	clitest.Zeros(t, func() cli.Program { return program(false) })
	clitest.Tells(t, func() cli.Program { return program(false) }, "--version", "kvbench ", ", go1.")
}
