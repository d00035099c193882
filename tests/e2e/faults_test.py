"""What dies, and what its clients and its memory see of it: kill -9 of every kind of process."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from service import BIN, CLIENT_PATH, PROMPTS, ServiceTest, model, wait_for


class FaultsTest(ServiceTest):
    def check_killed_rank(self, rank):
        service = self.start()
        with service.client() as client:
            before = self.ask(client, PROMPTS[0])
            stream = self.long_stream(client)
            pids = {service.rank("group-0", 0), service.rank("group-0", 1)}
            os.kill(service.rank("group-0", rank), signal.SIGKILL)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
            wait_for(lambda: service.rank("group-0", 0) and service.rank("group-0", 1)
                     and not pids & {service.rank("group-0", 0), service.rank("group-0", 1)},
                     "both ranks are new")
            # Waits in the queue until the group is back, and gets the same tokens.
            self.assertEqual(self.ask(client, PROMPTS[0]).token_ids, before.token_ids)
            self.assertEqual(service.get("/ready")[0], 200)
            service.wait_free()
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def test_killed_rank_0(self):
        self.check_killed_rank(0)

    def test_killed_rank_1(self):
        self.check_killed_rank(1)

    def test_stopped_rank_is_a_dead_rank(self):
        service = self.start()
        with service.client() as client:
            stream = self.long_stream(client)
            stopped = service.rank("group-0", 1)
            os.kill(stopped, signal.SIGSTOP)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
            wait_for(lambda: service.rank("group-0", 1) not in (0, stopped), "the group is new",
                     deadline_s=120)
            self.assertEqual(len(self.ask(client, PROMPTS[0]).token_ids), 12)

    def test_group_that_stops_as_a_whole_is_a_dead_group(self):
        service = self.start()  # none of its ranks is left to notice
        with service.client() as client:
            stream = self.long_stream(client)
            stopped = {service.rank("group-0", rank) for rank in range(2)}
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
            self.assertEqual(len(self.ask(client, PROMPTS[0]).token_ids), 12)
            self.assertFalse(stopped & set(service.family.pids("kvern-worker")))
            self.assertIn("group_hung group=group-0", service.launch.stderr)
        service.wait_free()

    def test_other_group_does_not_notice(self):
        service = self.start(replicas=2, tp=1)
        with service.client() as client:
            streams = [self.long_stream(client, max_tokens=150) for _ in range(2)]
            os.kill(service.rank("group-1", 0), signal.SIGKILL)
            ends = []
            for stream in streams:
                try:
                    ends.append(sum(len(delta.token_ids) for delta in stream) > 100)
                except Exception as error:
                    ends.append(getattr(error, "code", error))
            self.assertEqual(sorted(map(str, ends)), ["True", "unavailable"])

    def test_killed_router(self):
        service = self.start()
        with service.client() as client:
            stream = self.long_stream(client)
            os.kill(service.family.pids("kvern-router")[0], signal.SIGKILL)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
        self.assertEqual(service.launch.wait(), 1)
        self.assertEqual(service.launch.last_error_line(),
                         "kvern-launch: router: killed by signal 9 (Killed)")
        self.assert_nothing_left(service)

    def test_killed_launcher(self):
        service = self.start()
        with service.client() as client:
            stream = self.long_stream(client)
            service.launch.signal(signal.SIGKILL)
            self.assertEqual(self.error(lambda: list(stream)).code, "unavailable")
        self.assert_nothing_left(service, files={"ready.json"})

    def test_killed_everything_at_once(self):
        service = self.start()
        self.assertNotEqual(service.segments, set())  # or nothing would be looked for at the end
        with service.client() as client:
            self.long_stream(client)
            service.family.kill_all()
        self.assert_nothing_left(service, files={"ready.json"})

    def test_socket_file_of_a_killed_service_hinders_no_other_and_goes_at_a_clean_end(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "clients"
            killed = self.start("--listen", f"ipc://{path}", tp=1)
            taken = subprocess.run(
                [BIN / "kvern-launch", "--model", model(), "--listen", f"ipc://{path}",
                 "--status", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
            self.assertEqual(taken.returncode, 1)
            self.assertIn(f"cannot listen on ipc://{path}: somebody listens there", taken.stderr)
            with killed.client() as client:
                before = self.ask(client, PROMPTS[0]).token_ids
            killed.family.kill_all()
            killed.launch.wait()
            self.assertTrue(path.is_socket())
            service = self.start("--listen", f"ipc://{path}", tp=1)
            with service.client() as client:
                self.assertEqual(self.ask(client, PROMPTS[0]).token_ids, before)
            service.launch.signal(signal.SIGTERM)
            self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
            self.assert_nothing_left(service)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])

    def test_killed_client_frees_its_blocks(self):
        service = self.start()
        script = ("import sys; from kvern import Client\n"
                  "for d in Client(sys.argv[1]).generate(prompt='Count:', max_tokens=1200,"
                  " temperature=0, ignore_eos=True): print(d.text, flush=True)")
        client = subprocess.Popen([sys.executable, "-c", script, service.endpoint],
                                  stdout=subprocess.PIPE,
                                  env=dict(os.environ, PYTHONPATH=CLIENT_PATH))
        try:
            client.stdout.readline()
            self.assertGreaterEqual(service.reserved(), 75)
        finally:
            client.kill()
            client.communicate()
        service.wait_free()

    def test_ctrl_c_drains_then_second_one_kills(self):
        service = self.start()
        with service.client() as client:
            stream = self.long_stream(client)
            service.launch.signal(signal.SIGINT)
            wait_for(lambda: "info draining open_requests=1" in service.launch.stderr,
                     "the router drains")
            # Draining: what runs goes on, what is new is refused.
            refusal = self.error(lambda: self.ask(client, "x"))
            self.assertEqual(refusal.code, "unavailable")
            self.assertGreater(len(next(stream).token_ids), 0)
            self.assertEqual(service.launch.insist(signal.SIGINT), 1)
        self.assert_nothing_left(service)

    def test_rank_killed_under_load_gives_every_request_one_end(self):
        service = self.start()
        ends = []

        def run(number):
            with service.client() as client:
                try:
                    self.ask(client, PROMPTS[number % len(PROMPTS)], max_tokens=60)
                    ends.append("answer")
                except Exception as error:
                    ends.append(getattr(error, "code", repr(error)))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        wait_for(lambda: service.capacity()["total"]["used_blocks"] > 10, "work has begun")
        os.kill(service.rank("group-0", 1), signal.SIGKILL)
        for thread in threads:
            thread.join()
        self.assertEqual(len(ends), 20)
        self.assertLessEqual(set(ends), {"answer", "unavailable"})
        self.assertIn("unavailable", ends)
        service.wait_free()


class StartTest(ServiceTest):
    def refusal(self, data):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "broken.gguf"
            path.write_bytes(data)
            service = self.start(model_path=path, ready=False)
            self.assertEqual(service.launch.wait(), 1, service.launch.stderr)
            self.assert_nothing_left(service)
            return service.launch.last_error_line()

    def test_broken_model_files(self):
        whole = pathlib.Path(model()).read_bytes()
        for name, data in (("not a model", b"hello" * 100), ("empty", b""),
                           ("header cut off", whole[:1000]),
                           ("tensors cut off", whole[:len(whole) // 2]),
                           ("absurd tensor count", whole[:8] + b"\xff" * 8 + whole[16:4096])):
            with self.subTest(name):
                line = self.refusal(data)
                self.assertRegex(line, r"^kvern-launch: (router|group-0 rank \d): .*broken\.gguf")

    def test_model_that_is_not_there(self):
        service = self.start(model_path="/no/such/model.gguf", ready=False)
        self.assertEqual(service.launch.wait(), 1)
        self.assertIn("/no/such/model.gguf: No such file", service.launch.last_error_line())
        self.assert_nothing_left(service)

    def test_more_ranks_than_kv_heads(self):
        service = self.start(tp=4, ready=False)
        self.assertEqual(service.launch.wait(), 1)
        self.assertRegex(service.launch.last_error_line(), r"kvern-launch: group-0 rank \d: .*3")
        self.assert_nothing_left(service)

    def test_port_that_is_taken(self):
        first = self.start(tp=1)
        second = self.start("--log-level", "info", tp=1, ready=False)
        second.launch.signal(signal.SIGTERM)
        second.launch.wait()
        done = subprocess.run(
            [BIN / "kvern-launch", "--model", model(), "--listen", first.endpoint,
             "--status", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1], "kvern-launch: router: .*" + first.endpoint)

    def test_address_that_is_not_loopback(self):
        done = subprocess.run(
            [BIN / "kvern-launch", "--model", model(), "--listen", "tcp://0.0.0.0:0"],
            capture_output=True, text=True, timeout=60)
        self.assertIn(done.returncode, (1, 2))
        self.assertIn("0.0.0.0", done.stderr.splitlines()[-1])

    def test_unknown_options_of_every_program(self):
        for program in sorted(BIN.glob("kvern-*")):
            with self.subTest(program.name):
                done = subprocess.run([program, "--no-such-option", "1"], capture_output=True,
                                      text=True, timeout=60, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 2)
                self.assertIn("no-such-option", done.stderr)
                self.assertTrue(done.stderr.startswith(program.name + ": "), done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
