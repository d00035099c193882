"""What flows through: readers that are slow, one that stops for ever, long prompts of token ids."""

import unittest

from service import PATIENCE_MS, ServiceTest, wait_for  # first: it knows where the package is


class FlowTest(ServiceTest):
    def metric(self, service, name):
        lines = service.get("/metrics")[1].splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))

    def test_a_slow_reader_loses_nothing(self):
        service = self.start("--stream-window", 16)
        with service.client() as client:
            expected = self.ask(client, "Count:", 60).token_ids
            stream = client.generate(prompt="Count:", max_tokens=60, temperature=0,
                                     ignore_eos=True, ttft_deadline_ms=PATIENCE_MS)
            token_ids = list(next(stream).token_ids)
            wait_for(lambda: self.metric(service, "kvern_paused_streams") == 1, "it is paused")
            # Its worker goes on: blocks are held no longer than by a fast reader.
            service.wait_free()
            self.assertGreater(self.metric(service, "kvern_client_buffer_bytes"), 0)
            for delta in stream:
                self.assertEqual(delta.position, len(token_ids))
                token_ids += delta.token_ids
            self.assertEqual(token_ids, expected)
            self.assertEqual(self.metric(service, "kvern_paused_streams"), 0)
            self.assertEqual(self.metric(service, "kvern_client_buffer_bytes"), 0)

    def test_one_that_stops_for_ever_is_given_up(self):
        service = self.start("--stream-window", 16, "--slow-reader-timeout", "500ms")
        with service.client() as client:
            stream = self.long_stream(client)
            wait_for(lambda: self.metric(service, "kvern_slow_readers_total") == 1, "given up")
            service.wait_free()
            error = self.error(lambda: list(stream))
            self.assertEqual(error.code, "cancelled")
            self.assertIn("slow reader", str(error))
            self.assertEqual(len(self.ask(client, "Count:", 8).token_ids), 8)

    def test_long_prompts_of_token_ids(self):
        service = self.start()
        with service.client() as client:
            def ask(prompt_token_ids):
                return client.complete(prompt_token_ids=prompt_token_ids, max_tokens=4,
                                       temperature=0, ttft_deadline_ms=PATIENCE_MS)
            token_ids = [500 + i % 300 for i in range(3000)]  # a frame of its own to the worker
            self.assertEqual(ask(token_ids).usage.prompt_tokens, 3000)
            for length in (2, 3000):  # the router looks at short ones, the worker at all
                error = self.error(lambda: ask([5] * (length - 1) + [2**20]))
                self.assertEqual(error.code, "invalid_argument")
                self.assertIn("token id in the prompt is 1048576, allowed: below", str(error))
            # It counts against nobody.
            service.wait_free()
            self.assertEqual(service.get("/ready")[0], 200)
            self.assertEqual(len(ask(token_ids[:50]).token_ids), 4)


if __name__ == "__main__":
    unittest.main()
