#!/usr/bin/python3
"""Start-up time and resident memory of a whole service: bench_launch.py [--runs N] [--json]

Prints kvern-launch's time to `ready` beside the physical limit measured in the same run: reading the
model file from the page cache and touching the KV memory with one thread. Memory is the resident set of
router and ranks when idle, beside what each rank says it holds (weights, workspace, KV)."""

import argparse
import json
import mmap
import os
import re
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("KVERN_BIN_DIR", os.path.join(ROOT, "build/release/bin"))
MODEL = os.environ.get("KVERN_MODEL", os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
KV_BYTES = 256 << 20


def floor_seconds():
    """Reading the file once and touching as much memory as the ranks' KV."""
    start = time.monotonic()
    with open(MODEL, "rb", buffering=0) as file:
        while file.read(1 << 22):
            pass
    with mmap.mmap(-1, 2 * KV_BYTES) as memory:
        for offset in range(0, 2 * KV_BYTES, 4096):
            memory[offset] = 1
    return time.monotonic() - start


def rss_mib(pid):
    """Resident memory that belongs to the process itself: anonymous and shared, not file pages."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", status.read(), re.M))
    return int(fields["VmRSS"]) / 1024


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def run_once():
    with tempfile.TemporaryDirectory() as folder:
        ready = os.path.join(folder, "ready.json")
        start = time.monotonic()
        launch = subprocess.Popen(
            [os.path.join(BIN, "kvern-launch"), "--model", MODEL, "--tp", "2",
             "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
             "--kv-memory", str(KV_BYTES), "--log-level", "warning", "--ready-file", ready],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = launch.stdout.readline()
        seconds = time.monotonic() - start
        if not line.startswith("ready "):
            raise SystemExit(f"bench_launch: no ready line: {line!r} {launch.stderr.read()}")
        memory = {}
        for child in children(launch.pid):
            with open(f"/proc/{child}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            name = os.path.basename(words[0].decode())
            if b"--rank" in words:
                name += " rank " + words[words.index(b"--rank") + 1].decode()
            memory[name] = rss_mib(child)
        launch.terminate()
        table = launch.communicate()[1]
        return seconds, memory, table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    floors = [floor_seconds() for _ in range(options.runs)]
    runs = [run_once() for _ in range(options.runs)]
    seconds = sorted(run[0] for run in runs)
    result = {"ready_seconds_min": seconds[0], "ready_seconds_median": seconds[len(seconds) // 2],
              "floor_seconds_min": min(floors), "rss_mib": runs[-1][1]}
    if options.json:
        print(json.dumps(result))
        return
    print(f"ready: min {seconds[0]:.3f} s, median {result['ready_seconds_median']:.3f} s "
          f"(reading the file and touching the KV memory alone: {min(floors):.3f} s)")
    for name, mib in sorted(runs[-1][1].items()):
        print(f"{name}: {mib:.1f} MiB resident")
    print(runs[-1][2])


if __name__ == "__main__":
    main()
