"""Clients that send faster than the router reads: they cost themselves only.

Those that are gone then, all at once: with its input stopped by a full queue a connection is in a state of
its own when it breaks. And those whose messages are large: what waits to be read has a bound."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from service import CLIENT_PATH, ServiceTest, wait_for  # noqa: E402

CLIENTS = 30
ROUNDS = 2
# So many were read of a round's messages: the queues have been full by then.
MESSAGES = 200_000

# Of large messages, 32 of each connection may wait to be read; they have 8 MiB at most (README.md, "Bounded").
LARGE_CLIENTS = 2
LARGE_MESSAGES = 1000
LARGE_BOUND = LARGE_CLIENTS * 32 * (8 << 20)
# What the router is without them, and those that it or ZeroMQ has in its hands.
REST = 160 << 20

# Processes that say hello and then the same request over and over; whoever answers is not read.
FLOOD = """
import os, sys, zmq
from kvern import _request
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        break
else:
    print("begun", flush=True)
    sys.stdin.read()
incarnation = os.getpid()
socket = zmq.Context().socket(zmq.DEALER)
if sys.argv[3] == "small":
    request = {"prompt": "x", "request_id": f"{incarnation:032x}"}
else:  # more text than a request may have, which is seen when all of it was looked at
    request = {"messages": [{"role": "user", "content": "\\u00e9" * 3900}] * 1000}
    socket.set(zmq.SNDHWM, 2)
socket.connect(sys.argv[1])
socket.send(_request.encode_hello(incarnation, "", "flood"))
message = _request.encode_generate(incarnation, _request.check_fields({**request, "max_tokens": 1}))
while True:
    socket.send(message)
"""


class FloodTest(ServiceTest):
    def count(self, service, name):
        page = service.get("/metrics")[1]
        return sum(float(value) for value in re.findall(rf"^{name} (\S+)", page, re.M))

    @contextlib.contextmanager
    def flood(self, service, clients, size):
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, service.endpoint, str(clients), size],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=dict(os.environ, PYTHONPATH=CLIENT_PATH),
                                 start_new_session=True)
        try:
            flood.stdout.readline()
            yield
        finally:
            os.killpg(flood.pid, signal.SIGKILL)
            flood.communicate()

    def end(self, service):
        service.wait_free()
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def test_clients_that_flood_and_vanish(self):
        service = self.start(tp=1)
        refused = r'kvern_refused_total\{reason="invalid_argument"\}'
        with service.client() as client:
            for _ in range(ROUNDS):
                before = self.count(service, refused)
                with self.flood(service, CLIENTS, "small"):
                    wait_for(lambda: self.count(service, refused) > before + MESSAGES,
                             "the flood is read")
                for _ in range(3):  # long enough for whatever is due on their connections
                    self.ask(client, "Life goes on", 40)
        self.end(service)

    def memory(self, service, what):
        """Of the router, in bytes: VmRSS is what it has, VmHWM the most that it has had."""
        status = pathlib.Path(f"/proc/{service.family.pids('kvern-router')[0]}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB", status, re.M)[1]) << 10

    def test_what_waits_to_be_read_has_a_bound(self):
        service = self.start(tp=1)
        before = self.memory(service, "VmRSS")
        refused = r'kvern_bad_messages_total\{socket="client",reason="out_of_range"\}'
        with self.flood(service, LARGE_CLIENTS, "large"):
            wait_for(lambda: self.count(service, refused) > LARGE_MESSAGES, "the flood is read")
        self.assertLess(self.memory(service, "VmHWM"), before + LARGE_BOUND + REST)
        with service.client() as client:
            self.ask(client, "Life goes on", 40)
        wait_for(lambda: self.memory(service, "VmRSS") < before + REST,
                 "what it no longer needs is given back")
        self.end(service)


if __name__ == "__main__":
    unittest.main()
