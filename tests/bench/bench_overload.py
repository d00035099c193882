#!/usr/bin/python3
"""A whole service asked for more than it can give: bench_overload.py sleeping|model [option]...

sleeping: kvern-router with its defaults and two workers of eight slots that sleep 0.32 s a request, so its
capacity is 50 requests/s. model: kvern-launch with two CPU groups of the real model; its capacity is first
measured with a closed loop. Then open_loop asks for multiples of that. Goodput counts requests that were
answered whole, with the first token within 10 s; "in window" those that ended while requests were still sent."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from service import BIN, Family, Program, Service, model, wait_for  # noqa: E402

SLOTS = 8
TOKEN_MS = 10
# A request of both kinds of service: 0.32 s for a worker that sleeps.
PROMPT_TOKENS = 496
MAX_TOKENS = 32
# Eight such requests fit below the watermark, nine do not.
SLEEPING_BLOCKS = 290


class SleepingService(Service):
    """As Service, with kvern-router started by hand and workers that sleep."""

    def __init__(self, *router_arguments, workers=2):
        self.family = Family()
        self._stack = contextlib.ExitStack()
        read, write = os.pipe()
        self.router = Program(self.family, [
            BIN / "kvern-router", "--model", model(), "--model-name", "sleeping",
            "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
            "--expect-groups", workers, "--ready-fd", write, *router_arguments], pass_fds=[write])
        os.close(write)
        self._stack.callback(self.router.close)
        with os.fdopen(read) as lines:
            addresses = json.loads(lines.readline())
            self.endpoint, self.status_address = addresses["endpoint"], addresses["status"]
            for number in range(workers):
                worker = Program(self.family, [
                    BIN / "sleeping_worker", "--router", addresses["worker_endpoint"],
                    "--group", f"sleepers-{number}", "--slots", SLOTS,
                    "--kv-blocks", SLEEPING_BLOCKS, "--token-time", f"{TOKEN_MS}ms"])
                self._stack.callback(worker.close)
            if not any("ready" in json.loads(line) for line in lines):
                raise AssertionError("the router is not ready; it said:\n" + self.router.stderr)

    def close(self):
        self._stack.close()
        self.family.kill_all()


def resident_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


class Watcher:
    """Looks at the service while it is under load: drift, and the router's memory."""

    def __init__(self, service):
        self._service = service
        self._router = service.family.pids("kvern-router")[0]
        self._stop = threading.Event()
        self.drifts, self.resident = [], []
        self._thread = threading.Thread(target=self._run)

    def look(self):
        page = self._service.get("/metrics")[1]
        drifts = [int(value) for value in
                  re.findall(r"^kvern_kv_ledger_drift_blocks\{[^}]*\} (-?\d+)", page, re.M)]
        self.drifts.append(max(abs(drift) for drift in drifts))
        self.resident.append(resident_kib(self._router))

    def _run(self):
        while not self._stop.wait(0.5):
            self.look()

    def __enter__(self):
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self._thread.join()


def load(service, **options):
    """Runs open_loop to its end, then waits until every block is free. Returns what it measured."""
    words = [word for name, value in options.items()
             for word in ("--" + name.replace("_", "-"), str(value))]
    with Watcher(service) as watcher:
        done = subprocess.run([BIN / "open_loop", "--endpoint", service.endpoint, *words],
                              stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    service.wait_free()
    watcher.look()
    # The first third is for caches and tables that grow to their size.
    warm = watcher.resident[len(watcher.resident) // 3]
    result |= {"max_drift": max(watcher.drifts), "router_kib": watcher.resident[-1],
               "router_growth_kib": max(watcher.resident[-1], *watcher.resident) - warm,
               "load_average": os.getloadavg()[0]}
    return result


def faults(result):
    """What must never be, however fast or slow."""
    return {name: result[name] for name in
            ("unanswered", "answered_twice", "broken_streams", "max_drift") if result[name]}


def line(name, result, capacity):
    def ms(values, *which):
        return "/".join(f"{values[key]:.1f}" for key in which) if values else "-"

    refused = sum(result["errors"].values())
    return (f"{name}: offered {result['offered_rps']:.1f}/s, goodput {result['goodput_rps'] / capacity:.2f} of "
            f"capacity ({result['goodput_in_window_rps'] / capacity:.2f} in window), completed "
            f"{result['completed']}, refused {refused} {result['errors']}, TTFT p50/p99 "
            f"{ms(result['ttft_ms'], 'p50', 'p99')} ms, TPOT p50/p99 {ms(result['tpot_ms'], 'p50', 'p99')} ms, "
            f"refusals p50/p99 {ms(result['refusal_ms'], 'p50', 'p99')} ms, client lag p99/max "
            f"{ms(result['lag_ms'], 'p99', 'max')} ms{'' if result['on_time'] else ' TOO LATE, INVALID'}, "
            f"faults {faults(result) or 'none'}, router {result['router_kib'] / 1024:.1f} MiB "
            f"(+{result['router_growth_kib']} KiB), load average {result['load_average']:.1f}")


def run_sleeping(options):
    capacity = 2 * SLOTS * 1000 / (TOKEN_MS * MAX_TOKENS)
    with contextlib.closing(SleepingService()) as service:
        for times in options.loads:
            result = load(service, rate=int(capacity * times), duration=f"{options.seconds}s",
                          prompt_tokens=PROMPT_TOKENS, max_tokens=MAX_TOKENS, clients=8,
                          seed=options.seed)
            yield f"{times}x", result, capacity


def run_model(options):
    with contextlib.closing(Service(tp=1, replicas=2, kv_blocks=options.kv_blocks)) as service:
        shape = {"prompt_tokens": 64, "max_tokens": MAX_TOKENS, "clients": 8, "seed": options.seed}
        # Enough for full batches, and none is refused.
        peak = load(service, concurrency=32, ttft_deadline="50s", duration=f"{options.seconds // 2}s", **shape)
        capacity = peak["goodput_in_window_rps"]
        if capacity == 0:
            raise SystemExit(f"bench_overload: nothing was answered in {options.seconds // 2} s: {peak}")
        yield "closed loop", peak, capacity
        for times in options.loads:
            result = load(service, rate=max(1, round(capacity * times)),
                          duration=f"{options.seconds}s", **shape)
            yield f"{times}x", result, capacity


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", choices=["sleeping", "model"])
    parser.add_argument("--loads", type=float, nargs="+", help="multiples of capacity")
    parser.add_argument("--seconds", type=int, help="of each load (default: sleeping 20, model 60)")
    # Sixteen requests on each group: more would not make a CPU faster, only each of them slower.
    parser.add_argument("--kv-blocks", type=int, default=100, help="of each group of the model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sleeping = options.workers == "sleeping"
    options.loads = options.loads or ([1, 10] if sleeping else [2, 10])
    options.seconds = options.seconds or (20 if sleeping else 60)
    broken = False
    for name, result, capacity in (run_sleeping if sleeping else run_model)(options):
        broken = broken or bool(faults(result))
        print(json.dumps({"load": name, "capacity_rps": capacity, **result}) if options.json
              else line(name, result, capacity), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
