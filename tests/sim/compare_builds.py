#!/usr/bin/env python3
"""Do two builds simulate the same? Compares the event hashes of the swarm and of kvern-sim.

    compare_builds.py BIN_DIR BIN_DIR [--seeds N]

The programs of the two folders may come from other compilers, at other levels of optimisation, with or
without sanitizers: a difference is a decision that hangs on an order of evaluation or of a hash table, on
memory that nobody wrote, or on how floating-point numbers are computed."""

import argparse
import json
import pathlib
import subprocess
import sys

SEEDS = 60
# Workloads whose lengths and gaps are computed, with every kind of fault, and the policies.
RUNS = [
    "--workload poisson --rate 12 --faults all --groups 2 --tp 2 --duration 40 --seed 1",
    "--workload bursts --rate 12 --faults all --groups 3 --duration 40 --seed 2",
    "--workload flash --rate 20 --shares 9,1,1 --duration 30 --seed 3",
    "--workload poisson --load 4 --policy optimistic --watermark 0 --duration 30 --seed 4",
    "--workload poisson --load 4 --policy optimistic-engine --max-running 64 --duration 30 --seed 4",
    "--workload poisson --load 4 --policy optimistic-memory --duration 30 --seed 4",
    "--workload poisson --load 4 --policy clairvoyant --duration 30 --seed 5",
    "--workload poisson --rate 30 --policy least-requests --groups 2 --duration 20 --seed 6",
]


def output(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare_builds: {program} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def swarm(bin_dir, seeds):
    """{"seed N": "hash ..."}"""
    lines = output(bin_dir / "sim_swarm", "1", str(seeds)).split("\n")
    return dict(zip(lines[0::2], lines[1::2]))


def simulation(bin_dir, run):
    text = output(bin_dir / "kvern-sim", *run.split(), "--json")
    return json.loads(text[text.index("{"):])["event_hash"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dirs", nargs=2, type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    one, two = arguments.bin_dirs
    first, second = (swarm(bin_dir, arguments.seeds) for bin_dir in (one, two))
    compared = {seed: (first[seed], second[seed]) for seed in first}
    for run in RUNS:
        compared[f"kvern-sim {run}"] = (simulation(one, run), simulation(two, run))
    differ = [f"{name}: {a} and {b}" for name, (a, b) in compared.items() if a != b]
    print(f"{len(compared)} runs in {one} and {two}: {len(differ)} differ")
    for line in differ:
        print(line)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
