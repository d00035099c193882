"""One service from start to end in under a minute: router, two tensor-parallel ranks, the real model."""

import json
import os
import signal
import subprocess
import threading
import unittest

import zmq

from service import BIN, PROMPTS, ServiceTest, wait_for

CLIENTS = 12


class CompactTest(ServiceTest):
    def test_a_life(self):
        service = self.start()
        self.assertEqual(service.launch.stdout, f"ready {service.endpoint}\n")
        with service.client() as client:
            self.check_status(service, client)
            self.check_chat(service)
            self.check_many(service, client)
            self.check_never_fits(service, client)
            self.check_cancel(service, client)
            self.check_garbage(service, client)
            self.check_drain(service, client)
        self.assert_nothing_left(service)
        self.assertFalse(service.ready_file.exists())

    def check_status(self, service, client):
        self.assertEqual(service.get("/live")[0], 200)
        self.assertEqual(service.get("/ready")[0], 200)
        capacity = service.capacity()
        self.assertEqual(capacity, client.status())
        self.assertEqual(capacity["block_size"], 16)
        self.assertEqual([group["id"] for group in capacity["groups"]], ["group-0"])
        self.assertEqual(capacity["total"], {"total_blocks": 512, "reserved_blocks": 0,
                                             "used_blocks": 0, "free_blocks": 512})
        # 30 layers, 64 numbers per head, bf16, K and V; 3 KV heads over two ranks are 2 and 1.
        self.assertEqual(capacity["groups"][0]["ranks"],
                         [{"rank": 0, "bytes_per_token": 15360},
                          {"rank": 1, "bytes_per_token": 7680}])
        self.assertRegex(service.launch.stderr, r"KV/token.*\n.*15\.0 KiB.*\n.*7\.5 KiB")

    def check_chat(self, service):
        done = subprocess.run(
            [BIN / "kvern-chat", "--endpoint", service.endpoint, "--prompt",
             "What is the capital of France?", "--max-tokens", "24", "--temperature", "0"],
            capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)
        self.assertRegex(done.stderr.splitlines()[-1], r"^\d+ tokens, first after \d+ ms")

    def check_many(self, service, client):
        alone = {prompt: self.ask(client, prompt) for prompt in PROMPTS}
        answers = {}

        def run(number):
            with service.client() as own:
                answers[number] = self.ask(own, PROMPTS[number % len(PROMPTS)])

        threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), CLIENTS)
        for number, answer in answers.items():
            expected = alone[PROMPTS[number % len(PROMPTS)]]
            self.assertEqual(answer.token_ids, expected.token_ids)
            self.assertEqual(answer.text, expected.text)
        service.wait_free()

    def check_never_fits(self, service, client):
        # 512 blocks hold 8192 tokens, which is also the model's longest sequence.
        error = self.error(lambda: client.complete(prompt="x", n=8, max_tokens=2000))
        self.assertEqual(error.code, "never_fits", error)
        # p = 1 token: floor(1/16) + 8 * ceil((1 + 2000)/16)
        self.assertEqual(error.details["needed_blocks"], 8 * 126)
        self.assertEqual(error.details["available_blocks"], 512)
        self.assertGreater(error.details["largest_total_tokens"], 0)
        self.assertEqual(error.details["needed_total_tokens"], 2001)

    def check_cancel(self, service, client):
        stream = self.long_stream(client)
        wait_for(lambda: service.reserved() >= 75, "its blocks are reserved")
        stream.close()
        service.wait_free()

    def check_garbage(self, service, client):
        context = zmq.Context.instance()
        for endpoint in (service.endpoint, service.worker_endpoint()):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 1000)
            socket.connect(endpoint)
            for body in (b"", b"\0" * 64, os.urandom(2000), b"\x08\0\0\0KVCR" + os.urandom(500)):
                socket.send(body)
            socket.send_multipart([b"one", b"frame", b"too", b"many"])
            socket.close()
        self.assertEqual(len(self.ask(client, "Still here?").token_ids), 12)
        wait_for(lambda: self.refused(service) >= 10, "the garbage is counted")

    def refused(self, service):
        """Messages that were refused on both ports, whatever the reason."""
        lines = service.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith("kvern_bad_messages_total"))

    def check_drain(self, service, client):
        stream = client.generate(prompt="Count:", max_tokens=40, temperature=0, ignore_eos=True)
        first = next(stream)
        service.launch.signal(signal.SIGTERM)
        tokens = len(first.token_ids) + sum(len(delta.token_ids) for delta in stream)
        self.assertEqual(tokens, 40)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)


if __name__ == "__main__":
    unittest.main()
