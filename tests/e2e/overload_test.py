"""Ten times what a service can give, for a few seconds: what must never be, however fast or slow."""

import contextlib
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

from bench_overload import MAX_TOKENS, PROMPT_TOKENS, SleepingService, faults, load  # noqa: E402
from service import Service  # noqa: E402


class OverloadTest(unittest.TestCase):
    def check(self, service, **options):
        """Every request has one end; no drift; no block is held in the end (load waits for that)."""
        result = load(service, duration="5s", clients=8, **options)
        self.assertEqual(faults(result), {})
        self.assertEqual(result["completed"] + sum(result["errors"].values()), result["sent"])
        self.assertGreater(result["completed"], 0)
        self.assertLessEqual(set(result["errors"]), {"overloaded", "deadline_exceeded"})
        self.assertIn("overloaded", result["errors"])

    def test_workers_that_sleep(self):
        with contextlib.closing(SleepingService()) as service:
            self.check(service, rate=500, prompt_tokens=PROMPT_TOKENS, max_tokens=MAX_TOKENS)

    def test_two_groups_of_the_model(self):
        # Far beyond what two ranks can do on any machine; the queue is short so that it ends soon.
        arguments = ["--queue-entries", 16]
        with contextlib.closing(Service(*arguments, tp=1, replicas=2, kv_blocks=128)) as service:
            self.check(service, rate=400, prompt_tokens=64, max_tokens=MAX_TOKENS,
                       ttft_deadline="60s", patience="120s")


if __name__ == "__main__":
    unittest.main()
