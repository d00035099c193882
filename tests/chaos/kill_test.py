"""Kills at random under load, from a seed that is printed first: ranks of two groups and whole client
processes. Every request of a living client ends exactly once, every answer is the one that the request
gets alone, tokens come without gap or repetition, and at the end all memory is free.

python3 kill_test.py [SEED]"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from service import CLIENT_PATH, PATIENCE_MS, PROMPTS, ServiceTest, wait_for  # noqa: E402

from kvern import KvernError  # noqa: E402

KILLS = 8
CLIENTS = 8
TOKENS = 40
SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else \
    random.SystemRandom().randrange(2**32)

# A client without manners: many long streams, never read, never cancelled.
RUDE_CLIENT = """
import sys
from kvern import Client
client = Client(sys.argv[1])
streams = [client.generate(prompt="Count:", max_tokens=300, temperature=0, ignore_eos=True,
                           ttft_deadline_ms=300000) for _ in range(3)]
next(streams[0])
print("begun", flush=True)
sys.stdin.read()
"""


class Load(threading.Thread):
    """One client that asks and checks until it is told to stop."""

    def __init__(self, service, alone, number):
        super().__init__()
        self.service, self.alone, self.dice = service, alone, random.Random(SEED + number)
        self.stop = threading.Event()
        self.answers, self.lost, self.wrong = 0, 0, []

    def run(self):
        with self.service.client() as client:
            while not self.stop.is_set():
                prompt = self.dice.choice(PROMPTS)
                try:
                    self.check(prompt, client.generate(
                        prompt=prompt, max_tokens=TOKENS, temperature=0, ignore_eos=True,
                        ttft_deadline_ms=PATIENCE_MS))
                except KvernError as error:
                    if error.code == "unavailable":
                        self.lost += 1
                    else:
                        self.wrong.append(str(error))

    def check(self, prompt, stream):
        tokens = []
        for delta in stream:
            if delta.position != len(tokens):
                self.wrong.append(f"position {delta.position} after {len(tokens)} tokens")
            tokens += delta.token_ids
        if tokens != self.alone[prompt]:
            self.wrong.append(f"{prompt!r}: {tokens} instead of {self.alone[prompt]}")
        self.answers += 1


class KillTest(ServiceTest):
    def test_kills_under_load(self):
        print("seed", SEED, flush=True)
        dice = random.Random(SEED)
        service = self.start(replicas=2, tp=1, kv_blocks=256)
        with service.client() as client:
            alone = {prompt: self.ask(client, prompt, TOKENS).token_ids for prompt in PROMPTS}
        loads = [Load(service, alone, number) for number in range(CLIENTS)]
        for load in loads:
            load.start()
        try:
            for _ in range(KILLS):
                self.kill_something(service, loads, dice)
        finally:
            for load in loads:
                load.stop.set()
            for load in loads:
                load.join()
        self.assertEqual([wrong for load in loads for wrong in load.wrong], [])
        self.assertGreater(sum(load.answers for load in loads), KILLS)
        print("answers", sum(load.answers for load in loads), "lost",
              sum(load.lost for load in loads), flush=True)
        service.wait_free()
        drifts = [line for line in service.get("/metrics")[1].splitlines()
                  if line.startswith("kvern_kv_ledger_drift_blocks")]
        self.assertEqual([line.rsplit(" ", 1)[1] for line in drifts], ["0", "0"])
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def kill_something(self, service, loads, dice):
        victim = dice.choice(["group-0", "group-1", "client"])
        before = sum(load.answers for load in loads)
        if victim == "client":
            self.kill_client(service)
        else:
            pid = wait_for(lambda: service.rank(victim, 0), f"{victim} runs")
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: service.rank(victim, 0) not in (0, pid), f"{victim} is back")
        # Life goes on before the next blow.
        wait_for(lambda: sum(load.answers for load in loads) >= before + 2, "answers come")

    def kill_client(self, service):
        client = subprocess.Popen([sys.executable, "-c", RUDE_CLIENT, service.endpoint],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env=dict(os.environ, PYTHONPATH=CLIENT_PATH))
        try:
            client.stdout.readline()
        finally:
            client.kill()
            client.communicate()


if __name__ == "__main__":
    unittest.main()
