#!/usr/bin/env python3
"""Goodput of the admission policies under virtual time, in the set-up of docs/promises.md.

    tests/bench/bench_policies.py TRACES [--seed N] [--loads 0.5,1,2,5,10] [--workloads conversation,...]

TRACES is a folder with the public traces that tests/bench/README.md names. Each policy is shown at the best of
its own parameters, which stand behind it; beside goodput are the prompt and output tokens per second of what
completed: they do not grow when short requests are preferred. The machine's speed does not matter: time is
virtual, the same seed gives the same table. Takes a minute or two of CPU for each workload and load."""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = pathlib.Path(os.environ.get("KVERN_BIN_DIR", ROOT / "build/release/bin")) / "kvern-sim"
WORKLOADS = {
    "conversation": ("azure2023_conv.csv", 120_000),
    "compute-bound": ("azure2023_conv.csv", 400_000),
    "code": ("azure2023_code.csv", 120_000),
    "mooncake-conversation": ("mooncake_fast25_conversation_first7500.jsonl", 120_000),
    "mooncake-synthetic": ("mooncake_fast25_synthetic.jsonl", 120_000),
}
WATERMARKS = [("--watermark", percent) for percent in (0, 1, 3, 5, 10, 20)]
MOST_RUNNING = [("--max-running", most) for most in (64, 128, 256, 0)]
QUANTILES = [("--quantile", percent) for percent in (0, 65)]
LIKE_ENGINES = [sum(choice, ()) for choice in
                itertools.product(QUANTILES, MOST_RUNNING, WATERMARKS)]
POLICIES = {  # and what each is swept over
    "kvern": [()],
    "reserve-max": [()],
    "optimistic-memory": LIKE_ENGINES,
    "optimistic-engine": LIKE_ENGINES,
    "optimistic": WATERMARKS,
    "clairvoyant": [()],
    "fifo": WATERMARKS,
    "least-requests": [()],
}


def run(common, policy, *extra):
    command = [str(word) for word in (SIM, *common, "--policy", policy, "--json", *extra)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_policies: {' '.join(command)}\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def compare(pool, common, load):
    # The capacity is that of the workload: it is looked for once.
    first = run((*common, "--load", load), "kvern")
    common = (*common, "--rate", first["capacity_rps"] * load)
    runs = [(policy, parameters) for policy, sweep in POLICIES.items() for parameters in sweep]
    results = pool.map(lambda one: run(common, one[0], *one[1]), runs)
    best = {}
    for (policy, parameters), result in zip(runs, results):
        if policy not in best or result["goodput_rps"] > best[policy][0]["goodput_rps"]:
            best[policy] = (result, parameters)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loads", default="0.5,1,2,5,10")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    arguments = parser.parse_args()
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    for name in arguments.workloads.split(","):
        file, kv_tokens = WORKLOADS[name]
        for load in map(float, arguments.loads.split(",")):
            print(f"\n{name}, {load:g} x: {file}, {kv_tokens} tokens of KV, seed {arguments.seed}")
            print("policy             goodput kvern is tokens/s expired preempted TTFT p99")
            common = ("--workload", f"trace:{arguments.traces / file}", "--kv-tokens", kv_tokens,
                      "--seed", arguments.seed)
            best = compare(pool, common, load)
            kvern = best["kvern"][0]["goodput_rps"]
            for policy, (result, parameters) in best.items():
                goodput = result["goodput_rps"]
                ratio = f"{kvern / goodput:.3f} x" if goodput > 0 else "-"
                preempted = result["preempted_requests"] / max(1, result["completed"])
                print(f"{policy:<17} {goodput:>8.2f} {ratio:>8} {result['completed_tokens_ps']:>8.0f} "
                      f"{result['expired']:>7} {preempted:>9.2%} {result['ttft_ms']['p99']:>5.0f} ms  "
                      f"{' '.join(map(str, parameters))}", flush=True)


if __name__ == "__main__":
    main()
