"""Clients that send faster than the router reads, and then are gone, all at once: they cost themselves only.

With its input stopped by a full queue a connection is in a state of its own when it breaks."""

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
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
incarnation = os.getpid()
socket.send(_request.encode_hello(incarnation, "", "flood"))
fields = _request.check_fields({"prompt": "x", "max_tokens": 1, "request_id": f"{incarnation:032x}"})
message = _request.encode_generate(incarnation, fields)
while True:
    socket.send(message)
"""


class FloodTest(ServiceTest):
    def refused(self, service):
        page = service.get("/metrics")[1]
        found = re.search(r'^kvern_refused_total\{reason="invalid_argument"\} (\S+)', page, re.M)
        return float(found[1]) if found else 0

    def flood(self, service):
        before = self.refused(service)
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, service.endpoint, str(CLIENTS)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=dict(os.environ, PYTHONPATH=CLIENT_PATH),
                                 start_new_session=True)
        try:
            flood.stdout.readline()
            wait_for(lambda: self.refused(service) > before + MESSAGES, "the flood is read")
        finally:
            os.killpg(flood.pid, signal.SIGKILL)
            flood.communicate()

    def test_clients_that_flood_and_vanish(self):
        service = self.start(tp=1)
        with service.client() as client:
            for _ in range(ROUNDS):
                self.flood(service)
                for _ in range(3):  # long enough for whatever is due on their connections
                    self.ask(client, "Life goes on", 40)
        service.wait_free()
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)


if __name__ == "__main__":
    unittest.main()
