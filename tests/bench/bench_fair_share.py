#!/usr/bin/env python3
"""What nine tenants keep of their own when a tenth asks for 50 times as much, under virtual time.

    tests/bench/bench_fair_share.py [--groups 10] [--loads 5.3,5.9] [--seeds 1,2,3,4] [--normal 9] [--abuse 50]

For each load and seed: all on a service of that many groups; then each normal tenant with the very same requests alone,
on its fair share of the groups and on all of them. Shown per tenant: good requests per second and tokens of what
completed in the first run, as parts of those in the others, and the least of the nine."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = pathlib.Path(os.environ.get("KVERN_BIN_DIR", ROOT / "build/release/bin")) / "kvern-sim"


def run(*options):
    command = [str(word) for word in (SIM, *options, "--json")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_fair_share: {' '.join(command)}\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def ratio(part, whole):
    return part / whole if whole else float("nan")


def compare(pool, arguments, load, seed):
    tenants = arguments.normal + 1
    common = ["--seed", seed, "--shares", ",".join([str(arguments.abuse)] + ["1"] * arguments.normal)]
    together = run(*common, "--groups", arguments.groups, "--load", load)
    # The rate is that of all requests, whatever they run on.
    common += ["--rate", repr(together["capacity_rps"] * load)]

    def alone(groups):
        names = [f"t{i}" for i in range(1, tenants)]
        runs = pool.map(lambda t: run(*common, "--groups", groups, "--only-tenant", t), names)
        return {t: result["per_tenant"][t] for t, result in zip(names, runs)}

    shares = {"fair share": alone(arguments.groups // tenants), "all": alone(arguments.groups)}
    print(f"\nload {load:g}, seed {seed}: fairness gap {together['fairness_gap_tokens']} tokens; refused and expired of "
          f"t0: {together['per_tenant']['t0']['refused']}, {together['per_tenant']['t0']['expired']}")
    print("tenant offered goodput refused expired   of fair share: good tokens   of all: good tokens")
    least = [9.0] * 4
    for name in shares["all"]:
        own = together["per_tenant"][name]
        parts = [ratio(own[what], share[name][what]) for share in shares.values()
                 for what in ("goodput_rps", "tokens")]
        least = [min(pair) for pair in zip(least, parts)]
        print(f"{name:6} {own['offered_rps']:7.2f} {own['goodput_rps']:7.2f} {own['refused']:7} {own['expired']:7}"
              f"   {parts[0]:20.3f} {parts[1]:6.3f}   {parts[2]:12.3f} {parts[3]:6.3f}")
    print(f"{'least':34}   {least[0]:20.3f} {least[1]:6.3f}   {least[2]:12.3f} {least[3]:6.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--loads", default="5.3,5.9")
    parser.add_argument("--seeds", default="1,2,3,4")
    parser.add_argument("--normal", type=int, default=9)
    parser.add_argument("--abuse", type=int, default=50)
    arguments = parser.parse_args()
    if arguments.groups % (arguments.normal + 1) != 0:
        parser.error(f"--groups: {arguments.groups} groups are no {arguments.normal + 1} equal shares")
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    for load in map(float, arguments.loads.split(",")):
        for seed in map(int, arguments.seeds.split(",")):
            compare(pool, arguments, load, seed)


if __name__ == "__main__":
    main()
