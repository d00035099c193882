"""A whole service under test: kvern-launch with the real model on ports of its own."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "clients" / "python"))
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from kvern import Client, KvernError  # noqa: E402
from processes import BIN, Family, Program, wait_for  # noqa: E402, F401

# A Python client, as a process of its own, starts from here.
CLIENT_PATH = str(ROOT / "tools" / "clients" / "python")

# The same question to everybody, with answers that differ.
PROMPTS = ["The capital of France is", "Water boils at", "My favourite colour is",
           "Once upon a time", "def fibonacci(n):", "The three laws of motion are",
           "In the year 1969", "A recipe for bread:", "The moon is", "To be or not to be"]


@functools.lru_cache
def model():
    done = subprocess.run([ROOT / "tools" / "fetch_model"], capture_output=True, text=True,
                          check=True)
    return done.stdout.split()[-1]


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def segments(pids):
    """(device, inode) of each segment of ours that the processes map; a descriptor of one that is sent
    over a socket counts as soon as it is mapped."""
    found = set()
    for pid in pids:
        try:
            lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found |= {tuple(line.split()[3:5]) for line in lines if "/memfd:kvern" in line}
    return found


# Of a test's requests for their first token: a busy machine decides nothing.
PATIENCE_MS = 300_000


class Service:
    """Ready when constructed. close() kills what is left and is not part of what is tested."""

    def __init__(self, *arguments, tp=2, kv_blocks=512, replicas=1, model_path=None, ready=True):
        self.family = Family()
        self._folder = tempfile.TemporaryDirectory(prefix="kvern-e2e-")
        # Its place for temporary files, too.
        self.folder = pathlib.Path(self._folder.name)
        self.ready_file = self.folder / "ready.json"
        self.segments = set()  # of shared memory, as seen when it was ready
        listen = [] if "--listen" in arguments else ["--listen", "tcp://127.0.0.1:0"]
        self.launch = Program(self.family, [
            BIN / "kvern-launch", "--model", model_path or model(), "--tp", tp,
            "--replicas", replicas, "--kv-blocks", kv_blocks, "--threads", 1,
            *listen, "--status", "127.0.0.1:0",
            "--ready-file", self.ready_file, *arguments],
            environment={"TMPDIR": self._folder.name})
        self.endpoint = self.status_address = None
        if ready:
            self.wait_ready()

    def wait_ready(self):
        wait_for(lambda: self.ready_file.exists() or not self.launch.running(), "ready")
        if not self.launch.running():
            raise AssertionError("kvern-launch ended; it said:\n" + self.launch.stderr)
        ready = json.loads(self.ready_file.read_text())
        self.endpoint, self.status_address = ready["endpoint"], ready["status"]
        self.segments = segments(self.family.pids())

    def client(self, **options):
        return Client(self.endpoint, **{"timeout": 60, **options})

    def get(self, path):
        """-> (HTTP status, body); (0, "") if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.status_address}{path}", timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def capacity(self):
        return json.loads(self.get("/v1/capacity")[1])

    def reserved(self):
        return self.capacity()["total"]["reserved_blocks"]

    def wait_free(self):
        wait_for(lambda: self.reserved() == 0, "no reserved block is left")
        wait_for(lambda: self.capacity()["total"]["used_blocks"] == 0, "no used block is left")

    def rank(self, group, rank):
        """The pid of a rank, 0 if there is none at the moment."""
        for pid in self.family.pids("kvern-worker"):
            words = self.family.arguments(pid)
            if (words.get("--group"), words.get("--rank")) == (group, str(rank)):
                return pid
        return 0

    def worker_endpoint(self):
        return self.family.arguments(self.family.pids("kvern-worker")[0])["--router"]

    def close(self):
        self.launch.close()
        self.family.kill_all()
        self._folder.cleanup()


class ServiceTest(unittest.TestCase):
    """Starts services and checks at the end of each test that they left nothing behind."""

    def start(self, *arguments, **options):
        service = Service(*arguments, **options)
        self.addCleanup(service.close)
        return service

    def assert_nothing_left(self, service, files=()):
        """No process, no shared memory that anybody still maps, and in its folder only `files`."""
        wait_for(lambda: not service.family.pids(), "every process is gone")
        self.assertEqual(service.segments & segments(all_pids()), set())
        self.assertEqual({path.name for path in service.folder.iterdir()}, set(files))

    def error(self, action):
        with self.assertRaises(KvernError) as caught:
            action()
        return caught.exception

    def ask(self, client, prompt, max_tokens=12):
        return client.complete(prompt=prompt, max_tokens=max_tokens, temperature=0,
                               ignore_eos=True, ttft_deadline_ms=PATIENCE_MS)

    def long_stream(self, client, max_tokens=1200):
        """A stream that has begun and has long to go."""
        stream = client.generate(prompt="Count:", max_tokens=max_tokens, temperature=0,
                                 ignore_eos=True)
        next(stream)
        return stream
