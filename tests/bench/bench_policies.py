#!/usr/bin/env python3
"""Goodput of the admission policies under virtual time, in the set-up of docs/promises.md.

    tests/bench/bench_policies.py TRACES [--seed N] [--loads 0.5,1,2,5,10]

TRACES is a folder with the public traces that tests/bench/README.md names. Each policy is shown at the
best of its own parameters; every figure is goodput in requests per second, behind it the prompt and output
tokens per second of what completed: they do not grow when short requests are preferred. The machine's speed
does not matter: time is virtual, the same seed gives the same table."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = pathlib.Path(os.environ.get("KVERN_BIN_DIR", ROOT / "build/release/bin")) / "kvern-sim"
WORKLOADS = [
    ("conversation", "azure2023_conv.csv", 120_000),
    ("conversation, compute-bound", "azure2023_conv.csv", 400_000),
    ("code", "azure2023_code.csv", 120_000),
    ("Mooncake conversation", "mooncake_fast25_conversation_first7500.jsonl", 120_000),
    ("Mooncake synthetic", "mooncake_fast25_synthetic.jsonl", 120_000),
]
WATERMARKS = (0, 1, 3, 5, 10, 20)


def run(trace, kv_tokens, load, seed, policy, *extra):
    command = [SIM, "--workload", f"trace:{trace}", "--kv-tokens", kv_tokens, "--load", load,
               "--seed", seed, "--policy", policy, "--json", *extra]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_policies: {' '.join(map(str, command))}\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def best_optimistic(trace, kv_tokens, load, seed):
    runs = [(run(trace, kv_tokens, load, seed, "optimistic", "--watermark", w), w)
            for w in WATERMARKS]
    return max(runs, key=lambda pair: pair[0]["goodput_rps"])


def figures(result):
    return f"{result['goodput_rps']:>8.2f} {result['completed_tokens_ps']:>7.0f} "


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loads", default="0.5,1,2,5,10")
    arguments = parser.parse_args()
    loads = [float(load) for load in arguments.loads.split(",")]
    policies = ("reserve-max", "clairvoyant", "fifo", "least-requests")
    head = "".join(f"{word:>16} " for word in ("kvern", *policies, "optimistic"))
    for name, file, kv_tokens in WORKLOADS:
        trace = arguments.traces / file
        print(f"\n{name}: {file}, {kv_tokens} tokens of KV, seed {arguments.seed}")
        print(f"load {head} watermark preempted  TTFT p99")
        for load in loads:
            common = (trace, kv_tokens, load, arguments.seed)
            kvern = run(*common, "kvern")
            others = "".join(figures(run(*common, policy)) for policy in policies)
            optimistic, watermark = best_optimistic(*common)
            preempted = kvern["preempted_requests"] / max(1, kvern["completed"])
            print(f"{load:>4g} {figures(kvern)}{others}{figures(optimistic)} {watermark:>8d}%"
                  f"{preempted:>10.2%} {kvern['ttft_ms']['p99']:>6.0f} ms", flush=True)


if __name__ == "__main__":
    main()
