#!/usr/bin/env python3
"""Goodput of the admission policies under virtual time, in the set-up of docs/promises.md.

    tests/bench/bench_policies.py TRACES [--seeds 1,...] [--loads 0.5,1,2,5,10] [--workloads conversation,...]

TRACES is a folder with the public traces that tests/bench/README.md names. Each policy is shown at the best of
its own parameters, which stand behind it and are the same for all seeds, of which the mean is shown; beside goodput are the prompt and output tokens per second of what
completed: they do not grow when short requests are preferred. The machine's speed does not matter: time is
virtual, the same seed gives the same table. Takes a minute or two of CPU for each workload and load."""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import statistics
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


def mean(results):
    """Of what is shown of each run."""
    values = {name: statistics.fmean(result[name] for result in results)
              for name in ("goodput_rps", "completed_tokens_ps", "expired")}
    values["preempted"] = statistics.fmean(
        result["preempted_requests"] / max(1, result["completed"]) for result in results)
    values["ttft_p99_ms"] = statistics.fmean(result["ttft_ms"]["p99"] for result in results)
    values["goodputs"] = [result["goodput_rps"] for result in results]
    return values


def compare(pool, common, load, seeds):
    # The capacity is that of the workload: it is looked for once a seed.
    bases = [(*common, "--seed", seed) for seed in seeds]
    firsts = pool.map(lambda base: run((*base, "--load", load), "kvern"), bases)
    bases = [(*base, "--rate", first["capacity_rps"] * load) for base, first in zip(bases, firsts)]
    swept = [(policy, parameters) for policy, sweep in POLICIES.items() for parameters in sweep]
    runs = [(base, *one) for one in swept for base in bases]
    results = list(pool.map(lambda one: run(one[0], one[1], *one[2]), runs))
    best = {}
    for index, (policy, parameters) in enumerate(swept):
        result = mean(results[index * len(seeds):(index + 1) * len(seeds)])
        if policy not in best or result["goodput_rps"] > best[policy][0]["goodput_rps"]:
            best[policy] = (result, parameters)
    return best


def show(best):
    kvern = best["kvern"][0]
    for policy, (result, parameters) in best.items():
        goodput = result["goodput_rps"]
        ratio = f"{kvern['goodput_rps'] / goodput:.3f} x" if goodput > 0 else "-"
        by_seed = [own / other for own, other in zip(kvern["goodputs"], result["goodputs"]) if other > 0]
        spread = f"({min(by_seed):.2f} to {max(by_seed):.2f})" if len(by_seed) > 1 else ""
        print(f"{policy:<17} {goodput:>8.2f} {ratio:>8} {spread:<15} {result['completed_tokens_ps']:>8.0f} "
              f"{result['expired']:>7.0f} {result['preempted']:>9.2%} {result['ttft_p99_ms']:>5.0f} ms  "
              f"{' '.join(map(str, parameters))}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--loads", default="0.5,1,2,5,10")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    arguments = parser.parse_args()
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for name in arguments.workloads.split(","):
        file, kv_tokens = WORKLOADS[name]
        for load in map(float, arguments.loads.split(",")):
            print(f"\n{name}, {load:g} x: {file}, {kv_tokens} tokens of KV, seeds {arguments.seeds}")
            print("policy             goodput kvern is (by seed)      tokens/s expired preempted TTFT p99")
            common = ("--workload", f"trace:{arguments.traces / file}", "--kv-tokens", kv_tokens)
            show(compare(pool, common, load, seeds))


if __name__ == "__main__":
    main()
