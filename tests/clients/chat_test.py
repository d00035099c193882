"""kvern-chat against a scripted router."""

import json
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools" / "clients" / "python"))
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE))

from processes import BIN, Family, Program, wait_for  # noqa: E402
from scripted_router import NoRouter, ScriptedRouter  # noqa: E402

CHAT = BIN / "kvern-chat"


class ChatTest(unittest.TestCase):
    def setUp(self):
        self.router = ScriptedRouter()
        self.addCleanup(lambda: self.router.close())

    def chat(self, *arguments, **options):
        return subprocess.run([CHAT, "--endpoint", self.router.endpoint, *arguments],
                              capture_output=True, text=True, timeout=60, **options)

    def start(self, *arguments, **options):
        program = Program(Family(), [CHAT, "--endpoint", self.router.endpoint, *arguments],
                          **options)
        self.addCleanup(program.close)
        return program

    def contents(self, request_id):
        wire = self.router.requests[request_id]
        return [(wire.Messages(i).Role().decode(), wire.Messages(i).Content().decode())
                for i in range(wire.MessagesLength())]

    def test_one_question(self):
        done = self.chat("--prompt", "one two three", "--system", "Be brief.", "--max-tokens", "9",
                         "--temperature", "0.5", "--seed", "18446744073709551615")
        self.assertEqual((done.returncode, done.stdout), (0, "one two three \n"))
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^6 tokens, first after \d+ ms, .* tokens/s, queued 0 ms$")
        (request_id, wire), = self.router.requests.items()
        self.assertEqual(self.contents(request_id),
                         [("system", "Be brief."), ("user", "one two three")])
        self.assertEqual((wire.MaxTokens(), wire.Seed()), (9, 2**64 - 1))
        self.assertEqual(wire.Sampling().Temperature(), 0.5)

    def test_json(self):
        done = self.chat("--prompt", "one two", "--json")
        answer = json.loads(done.stdout)
        self.assertEqual((answer["text"], answer["token_ids"]), ("one two ", [0, 1, 10, 11]))
        self.assertEqual((answer["finish_reason"], answer["stop_reason"]), ("stop", "END"))
        self.assertEqual(answer["seed"], 2**63 + 5)
        self.assertEqual(answer["usage"]["ttft_ms"], 1.5)

    def test_refusal(self):
        done = self.chat("--prompt", "refuse")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("kvern-chat: never_fits: needs 99 blocks (needed_blocks 99, "
                      "available_blocks 64, needed_total_tokens 1100, "
                      "largest_total_tokens 1024)", done.stderr)
        error = json.loads(self.chat("--prompt", "refuse", "--json").stdout)["error"]
        self.assertEqual((error["code"], error["details"]["needed_blocks"]), ("never_fits", 99))

    def test_no_summary_of_nothing(self):
        self.assertEqual(len(self.chat("--prompt", "refuse").stderr.splitlines()), 1)

    def test_which_limit_cut_the_answer(self):
        for arguments, text in ((["--max-tokens", "4"], "cut by --max-tokens 4"),
                                ([], "cut by the service's limit of 4 (--max-tokens sets another)")):
            with self.subTest(arguments):
                done = self.chat("--prompt", "is cut", *arguments)
                self.assertEqual((done.returncode, done.stdout), (0, "is cut \n"))
                self.assertTrue(done.stderr.endswith(", queued 0 ms, " + text + "\n"), done.stderr)

    def test_it_says_that_nobody_answers_yet(self):
        self.router.close()
        chat = self.start("--prompt", "one")
        said = f"kvern-chat: no router answers at {self.router.endpoint} yet; trying for 30 s (--timeout)\n"
        wait_for(lambda: chat.stderr == said, "word of the wait")
        self.router = ScriptedRouter(port=self.router.port)
        self.assertEqual((chat.wait(), chat.stdout), (0, "one \n"))

    def test_it_says_that_the_router_is_gone_when_it_asks_again(self):
        chat = self.start(stdin=subprocess.PIPE)
        chat.process.stdin.write(b"hang on\n")
        chat.process.stdin.flush()
        wait_for(lambda: "on" in chat.stdout, "the answer begins")
        self.router.close()
        wait_for(lambda: "the connection to the router was lost" in chat.stderr, "the loss")
        chat.process.stdin.write(b"two\n")
        chat.process.stdin.close()
        said = f"kvern-chat: the router at {self.router.endpoint} has not accepted the question yet"
        wait_for(lambda: said in chat.stderr, "word of the wait")
        self.router = ScriptedRouter(port=self.router.port)
        self.assertEqual((chat.wait(), chat.stdout), (0, "hang on \ntwo \n"))

    def test_conversation_keeps_its_history(self):
        done = self.chat(input="one\n\nrefuse\ntwo")
        self.assertEqual((done.returncode, done.stdout), (0, "one \ntwo \n"))
        last = [entry[1] for entry in self.router.log if entry[0] == "generate"][-1]
        self.assertEqual(self.contents(last), [("user", "one"), ("assistant", "one "),
                                               ("user", "two")])

    def test_new_forgets_all_but_the_system_message(self):
        done = self.chat("--system", "Be brief.", input="one\n/new\ntwo")
        self.assertEqual((done.returncode, done.stdout), (0, "one \ntwo \n"))
        last = [entry[1] for entry in self.router.log if entry[0] == "generate"][-1]
        self.assertEqual(self.contents(last), [("system", "Be brief."), ("user", "two")])
        self.assertIn("/help", self.chat("--help").stdout)

    def test_commands_are_not_asked(self):
        done = self.chat(input="/help\n")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIn("/new    forgets", done.stderr)
        self.assertNotIn("no command", done.stderr)
        done = self.chat(input="one\n/bogus\x1b[2J\n")
        self.assertEqual((done.returncode, done.stdout), (1, "one \n"))
        self.assertIn("kvern-chat: '/bogus", done.stderr)
        self.assertIn("is no command and was not asked\n  /new    forgets", done.stderr)
        self.assertNotIn("\x1b", done.stderr)
        done = self.chat(input=" /etc/hosts\n")
        self.assertEqual((done.returncode, done.stdout), (0, "/etc/hosts \n"))
        self.assertEqual(len(self.router.requests), 2)

    def test_how_long_a_silent_router_is_waited_for(self):
        self.router.close()
        done = self.chat("--prompt", "one", "--timeout", "1100ms")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("yet; trying for 1.1 s (--timeout)", done.stderr)
        self.assertIn("--timeout: '0s', allowed: 1ms to 24h", self.chat("--timeout", "0s").stderr)

    def test_a_port_that_is_no_routers_is_waited_for_no_longer(self):
        with NoRouter() as other:
            self.router.endpoint = other.endpoint
            done = self.chat("--prompt", "one", "--timeout", "300ms")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("not reachable for 300 ms", done.stderr)

    def test_time_to_the_first_token(self):
        self.chat("--prompt", "one", "--ttft-deadline", "2m")
        self.chat("--prompt", "two")
        self.assertEqual([wire.TtftDeadlineMs() for wire in self.router.requests.values()],
                         [120_000, None])

    def test_what_helps_when_the_deadline_is_too_short(self):
        done = self.chat("--prompt", "late")
        self.assertIn("kvern-chat: deadline_exceeded: ", done.stderr)
        self.assertIn("--ttft-deadline TIME", done.stderr.splitlines()[-1])

    def test_interrupt_cancels_then_leaves(self):
        chat = self.start(stdin=subprocess.PIPE)
        chat.process.stdin.write(b"hang on\n")
        chat.process.stdin.flush()
        wait_for(lambda: "on" in chat.stdout, "the answer begins")
        chat.signal(signal.SIGINT)
        wait_for(lambda: self.router.count("cancel") == 1, "the cancellation")
        chat.process.stdin.write(b"again\n")
        chat.process.stdin.flush()
        wait_for(lambda: "again" in chat.stdout, "the next answer")
        wait_for(lambda: "queued" in chat.stderr, "the next answer's end")
        chat.signal(signal.SIGINT)
        self.assertEqual(chat.wait(), 0)
        self.assertIn("cancelled", chat.stderr)

    def test_interrupt_ends_a_single_answer(self):
        chat = self.start("--prompt", "hang on")
        wait_for(lambda: "on" in chat.stdout, "the answer begins")
        chat.signal(signal.SIGINT)
        self.assertEqual(chat.wait(), 1)
        wait_for(lambda: self.router.count("cancel") == 1, "the cancellation")

    def test_lost_router(self):
        chat = self.start("--prompt", "hang on")
        wait_for(lambda: "on" in chat.stdout, "the answer begins")
        self.router.close()
        self.assertEqual(chat.wait(), 1)
        self.assertIn("kvern-chat: unavailable: the connection to the router was lost",
                      chat.stderr)
        self.router = ScriptedRouter()

    def test_usage(self):
        for arguments, text in ((["--temperature", "-1"], "--temperature: '-1' is not a number"),
                                (["--temperature", "100.5"],
                                 "--temperature: '100.5' is not a number from 0 to 100"),
                                (["--temperature", "nan"], "--temperature: 'nan' is not a number"),
                                (["--ttft-deadline", "10"], "--ttft-deadline: '10' is not a time"),
                                (["--ttft-deadline", "0s"], "--ttft-deadline: '0s', allowed: 1ms"),
                                (["--seed", "-1"], "--seed: '-1' is not a whole number"),
                                (["--max-tokens", "0"], "--max-tokens: '0'"),
                                (["--top-k", "3"], "--top-k: unknown option")):
            with self.subTest(arguments):
                done = self.chat(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn("kvern-chat: " + text, done.stderr)


if __name__ == "__main__":
    unittest.main()
