"""Many clients at once, with answers to compare and cancellations in between."""

import asyncio
import random
import threading
import unittest

from service import PATIENCE_MS, PROMPTS, ServiceTest  # first: it knows where the package is

from kvern import AsyncClient, KvernError

CLIENTS = 50


class LoadTest(ServiceTest):
    def test_fifty_clients_get_what_each_gets_alone(self):
        service = self.start()
        with service.client() as client:
            alone = {prompt: self.ask(client, prompt, 16).token_ids for prompt in PROMPTS}
        ends = []

        def run(number):
            prompt = PROMPTS[number % len(PROMPTS)]
            try:
                with service.client() as own:
                    for _ in range(2):
                        same = self.ask(own, prompt, 16).token_ids == alone[prompt]
                        ends.append("same" if same else "different")
            except Exception as error:
                ends.append(repr(error))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(ends, ["same"] * (2 * CLIENTS))
        service.wait_free()

    def test_random_cancellations_leak_nothing(self):
        service = self.start()
        dice = random.Random(20)  # Any choice will do; the same one each time is easier to follow.

        async def one(client, number):
            stream = client.generate(prompt=PROMPTS[number % len(PROMPTS)], temperature=1,
                                     max_tokens=dice.randrange(1, 80), n=dice.choice([1, 1, 3]),
                                     ttft_deadline_ms=PATIENCE_MS)
            patience = dice.randrange(0, 40)
            try:
                async for delta in stream:
                    patience -= len(delta.token_ids)
                    if patience < 0:
                        stream.close()
                        return "left"
                return "answer"
            except KvernError as error:
                return error.code

        async def body():
            async with AsyncClient(service.endpoint, timeout=60) as client:
                return await asyncio.gather(*(one(client, number) for number in range(120)))

        ends = asyncio.run(body())
        self.assertLessEqual(set(ends), {"left", "answer"})
        self.assertGreater(ends.count("left"), 10)
        self.assertGreater(ends.count("answer"), 10)
        service.wait_free()

    def test_full_queue_refuses_with_a_time_to_retry(self):
        service = self.start("--queue-entries", 4, kv_blocks=64)

        async def one(client):
            try:
                await client.complete(prompt="Count:", max_tokens=200, temperature=0,
                                      ignore_eos=True, ttft_deadline_ms=PATIENCE_MS)
                return "answer"
            except KvernError as error:
                self.assertGreater(error.details.get("retry_after_ms", 0), 0, error)
                return error.code

        async def body():
            # A client that throttles itself would not send what is refused.
            async with AsyncClient(service.endpoint, timeout=60, throttle=False) as client:
                return await asyncio.gather(*(one(client) for _ in range(30)))

        ends = asyncio.run(body())
        self.assertEqual(set(ends), {"answer", "overloaded"})
        self.assertGreaterEqual(ends.count("answer"), 4)
        service.wait_free()


if __name__ == "__main__":
    unittest.main()
