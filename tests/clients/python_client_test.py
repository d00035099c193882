"""The Python client against a scripted router."""

import gc
import math
import pathlib
import queue
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools" / "clients" / "python"))
sys.path.insert(0, str(HERE))

from kvern import Client, KvernError  # noqa: E402
from kvern import _request  # noqa: E402
from kvern._throttle import Throttle  # noqa: E402
from kvern.wire import ServiceClass  # noqa: E402
from scripted_router import NoRouter, ScriptedRouter  # noqa: E402


def wait_for(condition, what):
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within 20 s: {what}")
        time.sleep(0.002)


class CollectingLock:
    """A lock whose holder runs the garbage collector, as any allocation may."""

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self):
        self._lock.acquire()
        gc.collect()

    def __exit__(self, *unused):
        self._lock.release()


class SlowInbox:
    """Takes a while for each delta, and at the last one waits, on the socket's thread, for what the
    router must have heard by then."""

    def __init__(self, connection, router, deltas):
        self.taken = self.reported = 0
        self.result = queue.SimpleQueue()
        self._connection = connection
        self._router = router
        self._left = deltas

    def put(self, event):
        if not hasattr(event, "token_ids"):
            self._before = self._router.count("keep_alive")
            return
        time.sleep(0.005)
        self._connection.took(self, len(event.token_ids))
        self._left -= 1
        if self._left:
            return
        try:
            wait_for(lambda: self._router.count("keep_alive") > self._before + 2, "keep-alives")
            wait_for(lambda: any(entry[:2] == ("consumed", self.request_id)
                                 for entry in list(self._router.log)), "credit")
            self.result.put("heard")
        except AssertionError as error:
            self.result.put(str(error))

    def fail(self, error):
        self.result.put(str(error))


class RouterTest(unittest.TestCase):
    def setUp(self):
        self.router = ScriptedRouter()
        self.addCleanup(lambda: self.router.close())

    def client(self, **options):
        client = Client(self.router.endpoint, **{"timeout": 20, **options})
        self.addCleanup(client.close)
        return client

    def error(self, action):
        with self.assertRaises(KvernError) as caught:
            action()
        return caught.exception


class SyncTest(RouterTest):
    def test_stream(self):
        stream = self.client(tenant="blue").generate(prompt="one two three")
        deltas = list(stream)
        self.assertEqual([d.text for d in deltas], ["one ", "two ", "three "])
        self.assertEqual([d.position for d in deltas], [0, 2, 4])
        self.assertEqual(deltas[1].token_ids, [10, 11])
        self.assertEqual([d.finish_reason for d in deltas], [None, None, "stop"])
        self.assertEqual(deltas[-1].stop_reason, "END")
        self.assertIsNone(deltas[0].usage)
        self.assertEqual(deltas[-1].usage.completion_tokens, 5)
        self.assertIsNone(deltas[0].logprobs)
        self.assertEqual((stream.seed, stream.prompt_tokens), (2**63 + 5, 3))
        self.assertIn(("hello", "blue"), self.router.log)

    def test_complete_joins_choices(self):
        answer = self.client().complete(prompt="a b", n=2)
        self.assertEqual([c.text for c in answer.choices], ["a b ", "a b "])
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        self.assertEqual(answer.text, "a b ")
        self.assertEqual(answer.token_ids, [0, 1, 10, 11])
        self.assertEqual((answer.finish_reason, answer.stop_reason), ("stop", "END"))
        self.assertEqual(answer.usage.ttft_ms, 1.5)

    def test_logprobs(self):
        answer = self.client().complete(prompt="with logprobs", logprobs=2)
        self.assertEqual([item.token_id for item in answer.logprobs], answer.token_ids)
        self.assertEqual(answer.logprobs[3].top, [(11, -0.5), (12, -2.0)])

    def test_status(self):
        status = self.client().status()
        self.assertEqual(status["block_size"], 16)
        self.assertEqual(status["groups"], [{
            "id": "group-0", "model": "scripted", "total_blocks": 64, "reserved_blocks": 10,
            "used_blocks": 4, "free_blocks": 54,
            "ranks": [{"rank": 0, "bytes_per_token": 100}, {"rank": 1, "bytes_per_token": 200}]}])
        self.assertEqual(status["total"], {"total_blocks": 64, "reserved_blocks": 10,
                                           "used_blocks": 4, "free_blocks": 54})

    def test_refusal_has_code_and_numbers(self):
        error = self.error(lambda: self.client().complete(prompt="refuse"))
        self.assertEqual(error.code, "never_fits")
        self.assertEqual(error.details, {"needed_blocks": 99, "available_blocks": 64,
                                         "needed_total_tokens": 1100,
                                         "largest_total_tokens": 1024})

    def test_leaving_the_loop_cancels(self):
        client = self.client()
        request_id = "0123456789abcdef" * 2
        for delta in client.generate(prompt="hang a", request_id=request_id):
            self.assertEqual(delta.text, "hang ")
            break
        wait_for(lambda: ("cancel", request_id) in self.router.log, "the cancellation")
        self.assertEqual(client.complete(prompt="next").text, "next ")

    def test_a_stream_that_the_collector_finds_inside_the_lock_is_cancelled(self):
        client = Client(self.router.endpoint, timeout=20)  # closed below, when nobody hangs
        client._connection._lock = CollectingLock()
        ids = []

        def drop_and_ask():
            stream = client.generate(prompt="hang")
            ids.append(stream.request_id)
            stream.itself = stream
            del stream
            client.status()

        thread = threading.Thread(target=drop_and_ask, daemon=True)
        gc.disable()
        try:
            thread.start()
            thread.join(20)
        finally:
            gc.enable()
        self.assertFalse(thread.is_alive(), "the collector waits for the lock that it interrupted")
        wait_for(lambda: ("cancel", ids[0]) in self.router.log, "the cancellation")
        client.close()

    def test_a_finished_stream_is_not_cancelled(self):
        client = self.client()
        list(client.generate(prompt="a"))
        client.status()  # Behind whatever was sent before.
        self.assertEqual(self.router.count("cancel"), 0)

    def test_close_cancels_what_is_open(self):
        client = self.client()
        stream = client.generate(prompt="hang")
        wait_for(lambda: self.router.count("generate") == 1, "the request")
        client.close()
        wait_for(lambda: ("cancel", stream.request_id) in self.router.log, "the cancellation")
        self.assertEqual(self.error(lambda: list(stream)).code, "cancelled")
        self.assertEqual(self.error(lambda: client.complete(prompt="x")).code, "cancelled")

    def test_keep_alive_only_while_requests_are_open(self):
        client = self.client()
        client.complete(prompt="a")
        self.assertEqual(self.router.count("keep_alive"), 0)
        stream = client.generate(prompt="hang")
        wait_for(lambda: self.router.count("keep_alive") >= 3, "keep-alives")
        stream.close()

    def test_silence_ends_requests(self):
        client = self.client(timeout=0.3)
        stream = client.generate(prompt="hang")
        wait_for(lambda: self.router.count("generate") == 1, "the request")
        self.router.silent = True
        error = self.error(lambda: list(stream))
        self.assertEqual(error.code, "unavailable")
        self.assertIn("0.3 s", error.message)

    def test_a_quiet_client_that_was_forgotten_is_served(self):
        client = self.client(tenant="blue")
        for action in (lambda: client.complete(prompt="a b").text, lambda: client.status()["total"]):
            before = action()
            self.router.forget()
            hellos = self.router.count("hello")
            self.assertEqual(action(), before)
            self.assertEqual(self.router.log[-3][0], "refused")
            self.assertEqual(self.router.log[-2], ("hello", "blue"))
            self.assertEqual(self.router.count("hello"), hellos + 1)

    def test_many_requests_of_a_forgotten_client_are_served_once_each_in_order(self):
        client = self.client()
        self.router.forget()
        streams = [client.generate(prompt=f"w{i}") for i in range(50)]
        self.assertEqual(["".join(delta.text for delta in stream) for stream in streams],
                         [f"w{i} " for i in range(50)])
        served = [entry[1] for entry in self.router.log if entry[0] == "generate"]
        self.assertEqual(served, [stream.request_id for stream in streams])

    def test_a_forgotten_client_hears_that_its_streams_are_over(self):
        client = self.client()
        stream = client.generate(prompt="hang a")
        self.assertEqual([next(stream).text for _ in range(2)], ["hang ", "a "])
        self.router.forget()  # Its next keep-alive tells.
        error = self.error(lambda: next(stream))
        self.assertEqual(error.code, "unavailable")
        self.assertIn("the router forgot this client", error.message)
        self.assertEqual(client.complete(prompt="b").text, "b ")
        self.assertEqual(self.router.count("hello"), 2)

    def test_a_router_that_always_wants_hello_is_given_up(self):
        client = self.client()
        self.router.forgets = True
        for times in (1, 2):
            error = self.error(lambda: client.complete(prompt="a"))
            self.assertEqual(error.code, "unavailable")
            self.assertIn("does not know this client after 4 Hellos", error.message)
        self.assertLessEqual(self.router.count("hello"), 1 + 3 + 4)
        self.router.forgets = False
        self.assertEqual(client.complete(prompt="b").text, "b ")

    def test_a_client_whose_hello_was_refused_says_it_again(self):
        client = self.client()
        self.router.forget()
        welcome, self.router.welcome = self.router.welcome, lambda builder: self.router.error(
            builder, None, 4, "too many clients")
        self.assertEqual(self.error(lambda: client.complete(prompt="a")).code, "overloaded")
        self.router.welcome = welcome
        self.assertEqual(client.complete(prompt="a").text, "a ")

    def test_keep_alives_and_credit_go_while_there_is_much_to_read(self):
        self.router.stream_window = 8
        client = self.client()
        # Many messages, then one message with many deltas.
        for fields in ({"prompt": "hang" + " a" * 199}, {"prompt": "hang", "n": 200}):
            inbox = SlowInbox(client._connection, self.router, 200)
            checked = _request.check_fields(fields)
            inbox.request_id = checked["request_id"]
            client._connection.generate(checked, inbox)
            self.assertEqual(inbox.result.get(timeout=60), "heard")
            client._connection.cancel(inbox)

    def test_a_port_that_is_no_routers(self):
        with NoRouter() as other:
            error = self.error(lambda: Client(other.endpoint, timeout=0.3))
        self.assertEqual(error.code, "unavailable")
        self.assertIn("not reachable for 0.3 s", str(error))

    def test_nobody_there(self):
        error = self.error(lambda: Client("tcp://127.0.0.1:1", timeout=0.2))
        self.assertEqual(error.code, "unavailable")
        self.assertIn("tcp://127.0.0.1:1", error.message)
        for arguments, text in (
                ({"endpoint": "nowhere"}, "endpoint: 'nowhere': Invalid argument, allowed: "
                                          "tcp://HOST:PORT, ipc://PATH"),
                ({"endpoint": None}, "endpoint: None is not a string"),
                ({"endpoint": 5}, "endpoint: 5 is not a string"),
                ({"endpoint": "tcp://\ud800"}, "endpoint: 'tcp://\\ud800' is not well-formed text "
                                               "(it holds a lone surrogate)"),
                ({"endpoint": "tcp://a:1\0"}, "endpoint: 'tcp://a:1\\x00' is not text without zero "
                                              "bytes"),
                ({"tenant": 5}, "tenant: 5 is not a string"),
                ({"tenant": 0}, "tenant: 0 is not a string"),
                ({"tenant": "\ud800"}, "tenant: '\\ud800' is not well-formed text (it holds a lone "
                                       "surrogate)"),
                *(({"timeout": value}, f"timeout: {shown} is not a time in seconds, allowed: a number "
                                       "above 0, at most 1000000")
                  for value, shown in ((0, "0"), (math.nan, "nan"), (math.inf, "inf"), (3e6, "3000000.0"),
                                       ("5", "'5'"), (None, "None"), (True, "True"),
                                       (10**5000, "int that is too long to show")))):
            error = self.error(lambda: Client(**arguments))
            self.assertEqual((error.code, error.message), ("invalid_argument", text))

    def test_router_dies_and_returns(self):
        client = self.client()
        stream = client.generate(prompt="hang")
        wait_for(lambda: self.router.count("generate") == 1, "the request")
        self.router.close()
        self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
        waiting = client.generate(prompt="after the restart")
        self.router = ScriptedRouter(port=self.router.port, incarnation=8)
        self.assertEqual("".join(d.text for d in waiting), "after the restart ")
        self.assertEqual([entry[0] for entry in self.router.log][:2], ["hello", "generate"])

    def test_what_came_before_the_connection_broke_is_read(self):
        # A race within ZeroMQ: with ZMQ_IMMEDIATE, one of ten lost some of it.
        words = " ".join(f"w{i}" for i in range(200))
        for _ in range(60):
            router = ScriptedRouter(leaves_after_answer=True)
            with Client(router.endpoint, timeout=20) as client:
                self.assertEqual(client.complete(prompt=words).text, words + " ")
            router.close()

    def test_garbage_from_the_router(self):
        error = self.error(lambda: self.client().complete(prompt="garbage"))
        self.assertEqual(error.code, "internal")

    def test_unreadable_message_ends_what_was_not_accepted(self):
        client = self.client()
        accepted = client.generate(prompt="hang a")
        next(accepted)
        error = self.error(lambda: client.complete(prompt="unreadable"))
        self.assertEqual((error.code, error.message), ("invalid_argument", "message cannot be read"))
        accepted.close()

    def test_a_request_too_large_for_the_wire_is_not_sent(self):
        client = self.client()
        other = client.generate(prompt="hang a")
        next(other)
        error = self.error(lambda: client.complete(prompt="a" * (8 << 20)))
        self.assertEqual(error.code, "invalid_argument")
        self.assertIn("8388608", error.message)
        self.assertEqual(client.complete(prompt="a b").text, "a b ")
        other.close()

    def test_many_threads(self):
        client = self.client()
        texts = {}

        def ask(number):
            texts[number] = client.complete(prompt=f"number {number}").text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, {number: f"number {number} " for number in range(50)})

    def test_same_open_request_id_twice(self):
        client = self.client()
        stream = client.generate(prompt="hang", request_id="a" * 32)
        error = self.error(lambda: client.complete(prompt="x", request_id="a" * 32))
        self.assertEqual(error.code, "invalid_argument")
        stream.close()

    def test_a_refused_double_does_not_cancel_the_first(self):
        client = self.client()
        first = client.generate(prompt="hang", request_id="a" * 32)
        self.assertEqual(next(first).text, "hang ")
        client.generate(prompt="x", request_id="a" * 32).close()  # Before its error was read.
        client.status()  # Behind whatever was sent before.
        self.assertEqual(self.router.count("cancel"), 0)
        self.assertEqual(self.router.count("generate"), 1)
        first.close()
        wait_for(lambda: self.router.count("cancel") == 1, "the first's own cancellation")

    def test_an_error_about_a_double_does_not_end_the_stream(self):
        self.assertEqual(self.client().complete(prompt="doubled").text, "doubled ")

    def test_same_request_id_twice_while_the_router_is_away(self):
        client = self.client()
        port = self.router.port
        self.router.close()
        wait_for(lambda: client._connection._welcome is None, "the connection is lost")
        first = client.generate(prompt="a", request_id="a" * 32)
        second = client.generate(prompt="b", request_id="a" * 32)
        self.assertEqual(self.error(lambda: next(second)).code, "invalid_argument")
        self.router = ScriptedRouter(port=port, incarnation=8)
        self.assertEqual("".join(delta.text for delta in first), "a ")


class FlowTest(RouterTest):
    def consumed(self):
        return [entry[1:] for entry in self.router.log if entry[0] == "consumed"]

    def test_what_is_read_is_reported_by_half_windows(self):
        self.router.stream_window = 8
        self.router.keep_alive_ms = 60_000
        client = self.client()
        stream = client.generate(prompt="hang a b c d e")  # two tokens each
        client.status()  # All of it is here, and nobody has read it.
        self.assertTrue(self.router.gives_credit)
        next(stream)
        client.status()
        self.assertEqual(self.consumed(), [])
        next(stream)
        wait_for(lambda: self.consumed() == [(stream.request_id, 4)], "half a window")
        next(stream)
        client.status()
        self.assertEqual(len(self.consumed()), 1)
        next(stream)
        wait_for(lambda: self.consumed()[1:] == [(stream.request_id, 8)], "the other half")
        stream.close()

    def test_keep_alives_report_the_rest(self):
        self.router.stream_window = 1000
        client = self.client()
        streams = [client.generate(prompt="hang a b") for _ in range(2)]
        for stream in streams:
            next(stream)
        wait_for(lambda: sorted(self.consumed()) == sorted((s.request_id, 2) for s in streams),
                 "both streams")
        heard = self.router.count("keep_alive")
        wait_for(lambda: self.router.count("keep_alive") > heard + 2, "keep-alives")
        self.assertEqual(len(self.consumed()), 2)  # The same again is no news.
        for stream in streams:
            stream.close()

    def test_a_router_without_windows_hears_of_none(self):
        client = self.client()
        stream = client.generate(prompt="hang a b")
        next(stream)
        wait_for(lambda: self.router.count("keep_alive") > 2, "keep-alives")
        self.assertEqual(self.consumed(), [])
        stream.close()

    def busy(self, **options):
        client = self.client(**options)
        error = self.error(lambda: client.complete(prompt="busy"))
        self.assertEqual((error.code, error.details["retry_after_ms"]),
                         ("overloaded", self.router.retry_after_ms))
        return client

    def test_no_credit_no_requests_until_there_is_some(self):
        self.router.credit = 0
        client = self.busy()
        streams = [client.generate(prompt=text) for text in ("first", "second")]
        client.status()  # Behind whatever was sent before.
        self.assertEqual(self.router.count("generate"), 1)
        self.router.credit = 2  # With the next keep-alive.
        self.assertEqual(["".join(delta.text for delta in stream) for stream in streams],
                         ["first ", "second "])
        self.assertEqual(client.complete(prompt="third").text, "third ")

    def test_only_as_many_as_there_is_credit_for(self):
        self.router.credit = 0
        client = self.busy()
        streams = [client.generate(prompt="hang") for _ in range(3)]
        connection = client._connection
        connection.call(connection._throttle.on_credit, 0, 2)
        client.status()
        wait_for(lambda: self.router.count("generate") == 3, "two more requests")
        for stream in streams:
            stream.close()

    def test_the_advice_passes(self):
        self.router.retry_after_ms = 80
        client = self.busy()
        begun = time.monotonic()
        self.assertEqual(client.complete(prompt="later").text, "later ")
        self.assertGreaterEqual(time.monotonic() - begun, 0.07)

    def test_accepted_without_credit_holds_the_next(self):
        self.router.credit = 0
        self.router.keep_alive_ms = 60_000
        client = self.client()
        client.complete(prompt="a")
        stream = client.generate(prompt="b")
        client.status()
        self.assertEqual(self.router.count("generate"), 1)
        self.assertEqual(self.error(lambda: client.complete(prompt="c", request_id=stream.request_id)
                                    ).code, "invalid_argument")
        stream.close()
        client.status()
        self.assertEqual((self.router.count("generate"), self.router.count("cancel")), (1, 0))

    def test_without_throttle_everything_is_sent(self):
        client = self.busy(throttle=False)
        self.assertEqual(client.complete(prompt="now").text, "now ")

    def test_a_deadline_that_would_pass_is_the_routers_to_answer(self):
        client = self.busy()
        self.assertEqual(client.complete(prompt="now", ttft_deadline_ms=500).text, "now ")

    def test_close_ends_what_is_held(self):
        client = self.busy()
        stream = client.generate(prompt="never")
        client.close()
        self.assertEqual(self.error(lambda: list(stream)).code, "cancelled")

    def test_deadlines_count_while_held(self):
        throttle = Throttle(on=True)
        throttle.on_error(10.0, KvernError("overloaded", "", {"retry_after_ms": 2000}))
        self.assertTrue(throttle.hold(10.5, "a", b"a", {"deadline_ms": 5000}))
        self.assertTrue(throttle.hold(10.5, "b", b"b", {}))
        self.assertFalse(throttle.hold(10.5, "c", b"c", {"ttft_deadline_ms": 1500}))
        self.assertIsNone(throttle.take(11.9))
        self.assertEqual(throttle.next_time(), 12.0)
        self.assertEqual(throttle.take(12.0), ("a", b"a", {"deadline_ms": 3500}))
        self.assertEqual(throttle.take(12.0), ("b", b"b", None))
        self.assertFalse(throttle)


class FieldsTest(RouterTest):
    def test_every_field_reaches_the_wire(self):
        client = self.client()
        fields = dict(
            messages=[{"role": "user", "content": "grüße"}], max_tokens=7, temperature=0,
            top_k=5, top_p=0.5, min_p=0.25, repetition_penalty=1.5, presence_penalty=-0.5,
            frequency_penalty=0.75, logit_bias={3: -1.0, "9": 2}, seed=2**64 - 1, n=2,
            stop=["a", "bc"], stop_token_ids=[4, 5], ignore_eos=True, min_tokens=2, logprobs=0,
            prompt_logprobs=1, priority=-3, ttft_deadline_ms=11, deadline_ms=12, detach_ms=13,
            request_id="00000000000000010000000000000002", model="m", service_class="batch")
        client.generate(**fields).close()
        wait_for(lambda: fields["request_id"] in self.router.requests, "the request")
        wire = self.router.requests[fields["request_id"]]
        self.assertEqual((wire.Messages(0).Role(), wire.Messages(0).Content().decode()),
                         (b"user", "grüße"))
        self.assertTrue(wire.PromptTokenIdsIsNone())
        self.assertIsNone(wire.Prompt())
        self.assertEqual((wire.MaxTokens(), wire.Seed(), wire.N()), (7, 2**64 - 1, 2))
        self.assertEqual([wire.Stop(i) for i in range(wire.StopLength())], [b"a", b"bc"])
        self.assertEqual((wire.Priority(), wire.TtftDeadlineMs(), wire.DeadlineMs(),
                          wire.DetachMs(), wire.Model()), (-3, 11, 12, 13, b"m"))
        self.assertEqual(wire.ServiceClass(), ServiceClass.ServiceClass.Batch)
        sampling = wire.Sampling()
        self.assertEqual((sampling.Temperature(), sampling.TopK(), sampling.TopP(),
                          sampling.MinP(), sampling.RepetitionPenalty(),
                          sampling.PresencePenalty(), sampling.FrequencyPenalty()),
                         (0, 5, 0.5, 0.25, 1.5, -0.5, 0.75))
        self.assertEqual([(sampling.LogitBias(i).TokenId(), sampling.LogitBias(i).Value())
                          for i in range(sampling.LogitBiasLength())], [(3, -1.0), (9, 2.0)])
        self.assertEqual([sampling.StopTokenIds(i) for i in range(2)], [4, 5])
        self.assertEqual((sampling.IgnoreEos(), sampling.MinTokens(), sampling.Logprobs(),
                          sampling.PromptLogprobs()), (True, 2, 0, 1))

    def test_absent_fields_stay_absent(self):
        client = self.client()
        answer = client.generate(prompt_token_ids=[1, 2, 4294967295], prompt=None, seed=None)
        wait_for(lambda: answer.request_id in self.router.requests, "the request")
        wire = self.router.requests[answer.request_id]
        answer.close()
        self.assertEqual([wire.PromptTokenIds(i) for i in range(wire.PromptTokenIdsLength())],
                         [1, 2, 4294967295])
        self.assertIsNone(wire.Seed())
        self.assertIsNone(wire.MaxTokens())
        self.assertIsNone(wire.DeadlineMs())
        self.assertIsNone(wire.Sampling().Logprobs())
        self.assertEqual(wire.Sampling().Temperature(), 1.0)

    def test_wrong_fields(self):
        client = self.client()
        with self.assertRaisesRegex(TypeError, "'temprature'; known: .* service_class, priority"):
            client.generate(prompt="x", temprature=0)
        with self.assertRaisesRegex(TypeError, "class and service_class .* given twice"):
            client.generate(**{"prompt": "x", "class": "guaranteed", "service_class": None})
        for fields, text in (
                ({}, "exactly one of prompt, prompt_token_ids, messages; given: none"),
                ({"prompt": "x", "messages": []}, "given: prompt, messages"),
                ({"prompt": 3}, "prompt: 3 is not a string"),
                ({"prompt": "\ud800"}, "well-formed text"),
                ({"prompt": "x", "max_tokens": -1}, "max_tokens: -1 is not a whole number from 1 to"),
                ({"prompt": "x", "max_tokens": 0}, "max_tokens: 0 is not a whole number from 1 to"),
                ({"prompt": "x", "max_tokens": "x"}, "max_tokens: 'x' is not a whole number from 1"),
                ({"prompt": "x", "n": 0}, "n: 0 is not a whole number from 1 to"),
                ({"prompt": "x", "max_tokens": True}, "max_tokens: True"),
                ({"prompt": "x", "max_tokens": 2.0}, "max_tokens: 2.0"),
                ({"prompt": "x", "temperature": "hot"}, "temperature: 'hot' is not a number"),
                ({"prompt": "x", "stop": "END"}, "stop: 'END' is not a list of strings"),
                ({"prompt": "x", "stop": ["a", 1]}, r"stop\[1\]: 1 is not a string"),
                ({"prompt": "x", "seed": 2**64}, "seed: 18446744073709551616"),
                ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias key: 'a'"),
                ({"prompt": "x", "logit_bias": {"01": 1}}, "logit_bias key: '01'"),
                ({"prompt": "x", "temperature": 1e39}, "temperature: 1e.39 is not a number from -3.40"),
                ({"prompt": "x", "top_p": -10**400}, "top_p: -1000.* is not a number from .* to 3.40"),
                ({"prompt": "x", "seed": 10**5000}, "seed: int that is too long to show is not"),
                ({"prompt": "x", "logit_bias": {1: 1e39}}, r"logit_bias\[1\]: 1e.39 is not a number"),
                ({"prompt": "x", "logit_bias": {"9" * 5000: 1}}, "logit_bias key: '999"),
                ({"prompt": "x", "class": []}, r"class: \[\] is not one of guaranteed, standard$"),
                ({"prompt": "x", "request_id": "xyz"}, "request_id: 'xyz'"),
                ({"prompt": "x", "class": "gold"}, "class: 'gold' is not one of guaranteed, standard$"),
                ({"prompt_token_ids": [1, 2**32]}, r"prompt_token_ids\[1\]: 4294967296"),
                ({"messages": [{"role": "user"}]}, r"messages\[0\]: content is missing"),
                ({"messages": [{"role": "user", "content": "secret", "name": "secret"}]},
                 r"messages\[0\]: 'name' is not known, allowed: role and content$"),
                ({"messages": ["secret"]}, r"messages\[0\] is of type str, allowed: an object with"),
                (self.parts({"type": "image_url", "image_url": {"url": "http://a"}}),
                 r"messages\[0\].content\[1\].type: 'image_url' is not text"),
                (self.parts("b"), r"messages\[0\].content\[1\] is of type str, allowed: an object"),
                (self.parts({"type": "text", "text": 5}), r"content\[1\].text: 5 is not a string"),
                (self.parts({"type": "text", "text": "b", "lang": "c"}), r"content\[1\]: 'lang'")):
            with self.subTest(text):
                with self.assertRaisesRegex(KvernError, text) as caught:
                    client.generate(**fields)
                self.assertEqual(caught.exception.code, "invalid_argument")
                self.assertNotIn("secret", str(caught.exception))
        self.assertEqual(self.router.count("generate"), 0)

    def parts(self, second):
        return {"messages": [{"role": "user",
                              "content": [{"type": "text", "text": "a"}, second]}]}

    def test_text_parts_are_joined(self):
        fields = _request.check_fields(self.parts({"type": "text", "text": " b"}))
        self.assertEqual(fields["messages"], [(b"user", b"a b")])

    def test_request_ids_differ(self):
        drawn = {_request.check_fields({"prompt": "x"})["request_id"] for _ in range(100)}
        self.assertEqual(len(drawn), 100)


if __name__ == "__main__":
    unittest.main()
