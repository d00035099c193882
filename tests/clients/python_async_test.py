"""The asyncio client against a scripted router."""

import asyncio
import contextlib
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from python_client_test import RouterTest, wait_for  # noqa: E402

from kvern import AsyncClient, KvernError  # noqa: E402


class AsyncTest(RouterTest):
    def run_async(self, body):
        async def connected():
            async with AsyncClient(self.router.endpoint, timeout=20) as client:
                return await body(client)
        return asyncio.run(connected())

    def test_stream_complete_and_status(self):
        async def body(client):
            texts = [delta.text async for delta in client.generate(prompt="one two")]
            answer = await client.complete(prompt="three", n=2)
            return texts, answer.text, len(answer.choices), await client.status(), client.model
        texts, text, choices, status, model = self.run_async(body)
        self.assertEqual((texts, text, choices), (["one ", "two "], "three ", 2))
        self.assertEqual(status["total"]["free_blocks"], 54)
        self.assertEqual(model, "scripted")

    def test_reading_gives_credit(self):
        self.router.stream_window = 4
        self.router.keep_alive_ms = 60_000
        async def body(client):
            stream = client.generate(prompt="hang a b")
            await client.status()
            self.assertEqual(self.router.count("consumed"), 0)
            await stream.__anext__()
            await client.status()
            self.assertIn(("consumed", stream.request_id, 2), self.router.log)
            stream.close()
        self.run_async(body)

    def test_throttle_can_be_switched_off(self):
        async def body():
            async with AsyncClient(self.router.endpoint, timeout=20, throttle=False) as client:
                with self.assertRaises(KvernError):
                    await client.complete(prompt="busy")
                return (await client.complete(prompt="now")).text
        self.assertEqual(asyncio.run(body()), "now ")

    def test_many_at_once(self):
        async def body(client):
            return await asyncio.gather(*(client.complete(prompt=f"n {i}") for i in range(100)))
        self.assertEqual([answer.text for answer in self.run_async(body)],
                         [f"n {i} " for i in range(100)])

    def test_errors(self):
        async def body(client):
            with self.assertRaises(KvernError) as caught:
                await client.complete(prompt="refuse")
            return caught.exception
        self.assertEqual(self.run_async(body).code, "never_fits")

    def test_leaving_the_loop_cancels(self):
        async def body(client):
            async for _ in client.generate(prompt="hang a", request_id="b" * 32):
                break
            await client.status()
        self.run_async(body)
        wait_for(lambda: ("cancel", "b" * 32) in self.router.log, "the cancellation")

    def test_a_named_stream_is_closed_by_aclose_or_by_the_end_of_its_name(self):
        async def body(client):
            async with contextlib.aclosing(client.generate(prompt="hang a",
                                                           request_id="d" * 32)) as stream:
                async for _ in stream:
                    break
            dropped = client.generate(prompt="hang a", request_id="e" * 32)
            await dropped.__anext__()
            del dropped
            await client.status()
        self.run_async(body)
        for letter in "de":
            self.assertIn(("cancel", letter * 32), self.router.log)

    def test_cancelled_task_cancels(self):
        async def body(client):
            task = asyncio.ensure_future(client.complete(prompt="hang", request_id="c" * 32))
            while self.router.count("generate") == 0:
                await asyncio.sleep(0.002)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await client.status()
        self.run_async(body)
        self.assertIn(("cancel", "c" * 32), self.router.log)

    def test_nobody_there(self):
        async def body():
            async with AsyncClient("tcp://127.0.0.1:1", timeout=0.2):
                self.fail("connected to nobody")
        self.assertEqual(self.error(lambda: asyncio.run(body())).code, "unavailable")


if __name__ == "__main__":
    unittest.main()
