"""The GPU path as a service: kvern-launch with emulated GPUs and a tiny model."""

import json
import os
import signal
import subprocess
import unittest

from service import BIN, ROOT, ServiceTest, wait_for

MODEL = ROOT / "tests" / "golden" / "tiny" / "llama_gqa"
PROMPT = [5, 6, 7, 8, 9]
OPTIONS = ("--device", "emulated", "--batch-invariant")


class EmulatedTest(ServiceTest):
    def start_emulated(self, *arguments, **options):
        return self.start(*OPTIONS, *arguments, model_path=MODEL, kv_blocks=200, **options)

    def tokens(self, client, max_tokens=24, **fields):
        return client.complete(prompt_token_ids=PROMPT, max_tokens=max_tokens, ignore_eos=True,
                               **{"temperature": 0, **fields}).token_ids

    def run_choices(self, tp, **fields):
        request = {"id": "0", "prompt_token_ids": PROMPT, "max_tokens": 24, "ignore_eos": True,
                   "temperature": 0, **fields}
        done = subprocess.run([BIN / "kvern-run", "--model", MODEL, "--tp", str(tp), "--kv-blocks",
                               "200", *OPTIONS],
                              input=json.dumps(request) + "\n", capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [choice["token_ids"] for choice in json.loads(done.stdout)["choices"]]

    def run_alone(self, tp, **fields):
        return self.run_choices(tp, **fields)[0]

    def test_answers_like_kvern_run(self):
        service = self.start_emulated()
        sampled = {"temperature": 0.9, "top_p": 0.8, "seed": 11, "repetition_penalty": 1.3}
        with service.client() as client:
            self.assertEqual(self.tokens(client), self.run_alone(2))
            self.assertEqual(self.tokens(client, **sampled), self.run_alone(2, **sampled))
        self.assertIn("emulated bf16", service.launch.stderr)
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def test_choices_that_share_blocks_do_not_disturb_each_other(self):
        for tp in 1, 2:  # a prompt of a block and a half, whose half is copied
            prompt = list(range(5, 29))
            alone = self.run_alone(tp, prompt_token_ids=prompt)
            self.assertEqual(self.run_choices(tp, prompt_token_ids=prompt, n=3), [alone] * 3)
            drawn = {"temperature": 1.0, "seed": 4, "prompt_token_ids": prompt}
            choices = self.run_choices(tp, n=3, **drawn)
            self.assertEqual(choices[0], self.run_alone(tp, **drawn))
            self.assertNotEqual(choices[0], choices[1])

    def check_lost_rank(self, rank, lose):
        # The stream goes on only as it is read, so it is not over before the rank is lost.
        service = self.start_emulated("--stream-window", 16)
        with service.client() as client:
            before = self.tokens(client)
            stream = client.generate(prompt_token_ids=PROMPT, max_tokens=450, temperature=0,
                                     ignore_eos=True)
            next(stream)
            pid = service.rank("group-0", rank)
            os.kill(pid, signal.SIGSTOP)  # now its peer waits for it in a collective
            lose(pid)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
            wait_for(lambda: service.rank("group-0", rank) not in (0, pid), "the group is new",
                     deadline_s=120)
            self.assertEqual(self.tokens(client, ttft_deadline_ms=300_000), before)

    def test_a_rank_that_dies_in_a_collective_ends_the_group(self):
        self.check_lost_rank(1, lambda pid: os.kill(pid, signal.SIGKILL))

    def test_the_leader_that_dies_in_a_collective_ends_the_group(self):
        self.check_lost_rank(0, lambda pid: os.kill(pid, signal.SIGKILL))

    def test_a_rank_that_hangs_in_a_collective_ends_the_group(self):
        self.check_lost_rank(1, lambda pid: None)

    def test_the_leader_that_hangs_in_a_collective_ends_the_group(self):
        self.check_lost_rank(0, lambda pid: None)

    def test_other_weights_are_refused_by_name(self):
        done = subprocess.run([BIN / "kvern-run", "--model", MODEL, "--device", "emulated",
                               "--weights", "int8"], input="", capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--weights: 'int8' on emulated, allowed: auto, bf16 (a GPU keeps all weights "
                      "as bf16; others are not there yet)", done.stderr)

    def test_too_few_gpus_are_told(self):
        done = subprocess.run([BIN / "kvern-run", "--model", MODEL, "--device", "emulated", "--tp",
                               "2", "--kv-blocks", "10"], input="", capture_output=True, text=True,
                              env={**os.environ, "KVERN_EMULATED_DEVICES": "1"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("kvern-run: --tp: 2, allowed: 1 to 1 (with --device emulated each rank has a "
                      "GPU, and this machine has 1)", done.stderr)


if __name__ == "__main__":
    unittest.main()
