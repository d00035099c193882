"""kvern-launch with stand-ins for the router and the ranks: what it does when they start, die, hang
and leave. The real ones are in tests/e2e."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "e2e"))

from processes import BIN, Family, Program, wait_for  # noqa: E402

LAUNCH = BIN / "kvern-launch"


class LaunchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvern-launch-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for stand_in in (HERE / "stand_ins").iterdir():
            shutil.copy(stand_in, self.folder)
        # It looks for the programs beside itself, so it must be here, too.
        shutil.copy(LAUNCH, self.folder)
        self.family = Family()
        self.addCleanup(self.family.kill_all)

    def launch(self, *arguments, fault="", ready=True, tp=2, **options):
        program = Program(self.family, [
            self.folder / "kvern-launch", "--model", "model.gguf", "--tp", tp, *arguments],
            environment={"KVERN_TEST_FOLDER": str(self.folder), "KVERN_TEST_FAULT": fault},
            **options)
        self.addCleanup(program.close)
        if ready:
            (self.folder / "live").touch()
            wait_for(lambda: "ready" in program.stdout or not program.running(), "ready")
        return program

    def ranks(self):
        return {(words["--group"], words["--rank"]): (pid, words["--group-incarnation"])
                for pid in self.family.pids("kvern-worker")
                for words in [self.family.arguments(pid)] if words}

    def all_ranks(self, count=2, instead_of=()):
        """The ranks, as one look at /proc found them; None until there are so many and all are new."""
        ranks = self.ranks()
        old = [rank for rank in ranks if rank in instead_of and ranks[rank] == instead_of[rank]]
        return ranks if len(ranks) == count and not old else None

    def finish_drain(self):
        wait_for((self.folder / "draining").exists, "the router heard of the drain")
        (self.folder / "drained").touch()

    def assert_nothing_left(self):
        wait_for(lambda: not self.family.pids(), "every process is gone")

    def test_ready_then_drain(self):
        ready_file = self.folder / "ready.json"
        launch = self.launch("--ready-file", ready_file, "--replicas", 2)
        self.assertEqual(launch.stdout, "ready tcp://127.0.0.1:1\n")
        self.assertEqual(json.loads(ready_file.read_text()),
                         {"endpoint": "tcp://127.0.0.1:1", "status": "127.0.0.1:2",
                          "pid": launch.pid})
        ranks = wait_for(lambda: self.all_ranks(4), "two groups of two ranks")
        self.assertEqual(set(ranks), {("group-0", "0"), ("group-0", "1"),
                                      ("group-1", "0"), ("group-1", "1")})
        launch.signal(signal.SIGTERM)
        self.finish_drain()
        self.assertEqual(launch.wait(), 0, launch.stderr)
        self.assertFalse(ready_file.exists())
        self.assert_nothing_left()

    def test_ready_only_when_all_groups_are_live(self):
        launch = self.launch(ready=False)
        wait_for(lambda: len(list(self.folder.glob("up-*"))) == 2, "both ranks run")
        self.assertEqual(launch.stdout, "")
        (self.folder / "live").touch()
        wait_for(lambda: launch.stdout == "ready tcp://127.0.0.1:1\n", "ready")

    def test_ready_fd(self):
        read_end, write_end = os.pipe()
        self.launch("--ready-fd", write_end, pass_fds=[write_end])
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            self.assertEqual(json.loads(ready.read())["endpoint"], "tcp://127.0.0.1:1")

    def test_ready_file_of_a_launch_that_serves_is_refused_and_stays(self):
        ready_file = self.folder / "ready.json"
        first = self.launch("--ready-file", ready_file)
        line = ready_file.read_text()
        second = self.launch("--ready-file", ready_file, ready=False)
        self.assertEqual(second.wait(), 1)
        self.assertIn(f"kvern-launch: --ready-file: '{ready_file}' is of process {first.pid}, which "
                      "still serves, allowed: ", second.last_error_line())
        self.assertEqual(ready_file.read_text(), line)

    def test_ready_file_of_a_killed_launch_is_replaced_but_only_by_one_that_listens(self):
        ready_file = self.folder / "ready.json"
        first = self.launch("--ready-file", ready_file)
        first.signal(signal.SIGKILL)
        first.wait()
        line = ready_file.read_text()
        second = self.launch("--ready-file", ready_file, ready=False,
                             fault="router_exit:1:kvern-router: cannot listen")
        self.assertEqual(second.wait(), 1)
        self.assertEqual(ready_file.read_text(), line)
        third = self.launch("--ready-file", ready_file)
        self.assertEqual(json.loads(ready_file.read_text())["pid"], third.pid)

    def test_ready_file_never_replaces_another_file(self):
        keep = self.folder / "keep.txt"
        keep.write_text("precious")
        launch = self.launch("--ready-file", keep, ready=False)
        self.assertEqual(launch.wait(), 1)
        self.assertIn(f"kvern-launch: --ready-file: '{keep}' is not a ready file, allowed: ",
                      launch.last_error_line())
        self.assertEqual(keep.read_text(), "precious")

    def test_rank_that_cannot_start_ends_the_launch_with_its_first_error(self):
        launch = self.launch(fault="1:1:group-0 rank 1: model.gguf: tensor 'x' is cut off",
                             ready=False)
        self.assertEqual(launch.wait(), 1)
        self.assertEqual(launch.last_error_line(),
                         "kvern-launch: group-0 rank 1: model.gguf: tensor 'x' is cut off")
        self.assertEqual(launch.stderr.count("is cut off"), 1, launch.stderr)
        self.assertIn("group-0 rank 1 | kvern-worker: a later error\n", launch.stderr)
        self.assert_nothing_left()

    def test_usage_error_of_a_child_is_one_of_the_launch(self):
        launch = self.launch(fault="0:2:--weights: 'x', allowed: auto", ready=False)
        self.assertEqual(launch.wait(), 2)
        self.assertEqual(launch.last_error_line(),
                         "kvern-launch: group-0 rank 0: --weights: 'x', allowed: auto")

    def test_router_that_cannot_start_ends_the_launch(self):
        launch = self.launch(fault="router_exit:1:kvern-router: cannot listen", ready=False)
        self.assertEqual(launch.wait(), 1)
        self.assertEqual(launch.stderr, "kvern-launch: router: cannot listen\n")
        self.assert_nothing_left()

    def test_missing_program_is_named(self):
        (self.folder / "kvern-worker").unlink()
        launch = self.launch(ready=False)
        self.assertEqual(launch.wait(), 1)
        # Either rank may be seen first.
        self.assertRegex(launch.last_error_line(),
                         "group-0 rank [01]: .*/kvern-worker: cannot be started: No such file")

    def test_killed_in_a_loop_before_ready_gives_up(self):
        launch = self.launch(fault="0:signal:9", ready=False)
        self.assertEqual(launch.wait(), 1)
        self.assertEqual(launch.last_error_line(),
                         "kvern-launch: group-0 rank 0: killed by signal 9 (Killed)")
        self.assertEqual(launch.stderr.count("group_died"), 3)
        self.assert_nothing_left()

    def all_but_the_same(self, count, before, restarted):
        """One look at the ranks: all of them, when `restarted` is another process than before."""
        ranks = self.ranks()
        return ranks if len(ranks) == count and ranks[restarted] != before[restarted] else None

    def test_one_rank_dies_and_its_group_alone_restarts(self):
        launch = self.launch("--replicas", 2)
        before = wait_for(lambda: self.all_ranks(4), "four ranks")
        os.kill(before["group-0", "1"][0], signal.SIGKILL)
        after = wait_for(
            lambda: self.all_but_the_same(4, before, ("group-0", "1")), "group-0 is back")
        for rank in ("0", "1"):
            self.assertEqual(after["group-1", rank], before["group-1", rank])
            self.assertNotEqual(after["group-0", rank][0], before["group-0", rank][0])
            self.assertNotEqual(after["group-0", rank][1], before["group-0", rank][1])
        self.assertEqual(after["group-0", "0"][1], after["group-0", "1"][1])
        down = wait_for(lambda: (self.folder / "down").exists()
                        and (self.folder / "down").read_bytes(), "the router was told")
        self.assertIn(b"group-0", down)
        self.assertIn(b"rank 1: killed by signal 9", down)
        self.assertTrue(launch.running())

    # UBSan probes memory through a pipe of its own: without descriptors it reports what is well.
    @unittest.skipIf("UBSAN_OPTIONS" in os.environ, "a sanitizer needs descriptors")
    def test_a_restart_that_the_system_refuses_is_tried_again(self):
        launch = self.launch("--replicas", 2)
        before = wait_for(lambda: self.all_ranks(4), "four ranks")
        limits = resource.prlimit(launch.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(launch.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # less than it watches
        os.kill(before["group-1", "1"][0], signal.SIGKILL)
        wait_for(lambda: launch.stderr.count("group_not_started") >= 2 or not launch.running(),
                 "two restarts failed")
        self.assertIn("group_not_started group=group-1 reason=", launch.stderr)
        resource.prlimit(launch.pid, resource.RLIMIT_NOFILE, limits)
        after = wait_for(
            lambda: self.all_but_the_same(4, before, ("group-1", "1")), "group-1 is back")
        self.assertEqual(after["group-0", "0"], before["group-0", "0"])

    def give_up(self, *starts):
        self.say(*({"given_up": group, "incarnation": int(incarnation), "reason": "silent"}
                   for group, incarnation in starts))

    def say(self, *lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "given_up.part").write_text(text)
        (self.folder / "given_up.part").rename(self.folder / "given_up")
        wait_for((self.folder / "said").exists, "the router said so")

    def test_a_group_that_the_router_gave_up_and_that_does_not_end_is_killed(self):
        launch = self.launch("--replicas", 2)
        before = wait_for(lambda: self.all_ranks(4), "four ranks")
        self.give_up(("group-1", before["group-1", "0"][1]))
        after = wait_for(
            lambda: self.all_but_the_same(4, before, ("group-1", "0")), "group-1 is back")
        self.assertNotEqual(after["group-1", "1"], before["group-1", "1"])
        self.assertEqual(after["group-0", "1"], before["group-0", "1"])
        self.assertIn("group_hung group=group-1 reason=silent", launch.stderr)

    def test_starts_that_are_not_ours_are_none_of_ours(self):
        launch = self.launch()
        before = wait_for(self.all_ranks, "both ranks")
        # More than a pipe holds, and than one line may have.
        self.give_up(*[("group-0", 1), ("stranger", before["group-0", "0"][1])] * 2000,
                     ("group-0", before["group-0", "0"][1]))
        wait_for(lambda: self.all_ranks(instead_of=before), "the group is back")
        self.assertEqual(launch.stderr.count("group_hung"), 1)

    def test_a_group_of_which_no_rank_joins_is_killed_and_another_is_not(self):
        launch = self.launch("--replicas", 2, "--join-timeout", "15s")
        before = wait_for(lambda: self.all_ranks(4), "four ranks")
        self.say({"joining": "group-0", "incarnation": int(before["group-0", "0"][1])},
                 {"joining": "group-1", "incarnation": int(before["group-0", "0"][1])})
        after = wait_for(
            lambda: self.all_but_the_same(4, before, ("group-1", "0")), "group-1 is back")
        self.assertEqual(after["group-0", "1"], before["group-0", "1"])
        self.assertIn("group_hung group=group-1 reason=\"no rank has joined the router within 15 s "
                      "(--join-timeout)\"", launch.stderr)

    def test_a_launch_none_of_whose_ranks_joins_ends(self):
        launch = self.launch("--join-timeout", "1s", ready=False)
        self.assertEqual(launch.wait(), 1)
        self.assertIn("kvern-launch: group-0 rank 0: no rank has joined the router within 1 s "
                      "(--join-timeout)", launch.stderr)
        self.assertEqual(launch.stderr.count("group_hung"), 3)
        self.assert_nothing_left()

    def leave(self, group, *ranks):
        for rank in ranks:
            (self.folder / f"leave-{group}-{rank}").touch()

    def test_a_group_that_leaves_is_started_again_and_nobody_died(self):
        launch = self.launch("--replicas", 2)
        before = wait_for(lambda: self.all_ranks(4), "four ranks")
        self.leave("group-1", 1)
        wait_for(lambda: len(self.ranks()) == 3, "rank 1 has left; rank 0 is not killed for that")
        self.leave("group-1", 0)
        after = wait_for(lambda: self.all_but_the_same(4, before, ("group-1", "0")), "it is back")
        self.assertNotEqual(after["group-1", "1"], before["group-1", "1"])
        self.assertEqual(after["group-0", "0"], before["group-0", "0"])
        self.assertIn("group_restarts group=group-1 after=left", launch.stderr)
        self.assertNotIn("group_died", launch.stderr)
        self.assertNotIn("group_hung", launch.stderr)
        self.assertFalse((self.folder / "down").exists())

    def test_a_rank_that_stays_when_its_group_leaves_is_killed(self):
        launch = self.launch()
        before = wait_for(self.all_ranks, "both ranks")
        self.leave("group-0", 0)
        wait_for(lambda: self.all_ranks(instead_of=before), "the group is back")
        self.assertIn("group_hung group=group-0 reason=\"rank 0 left, others did not\"", launch.stderr)

    def test_a_rank_that_dies_while_its_group_leaves_is_told(self):
        launch = self.launch()
        before = wait_for(self.all_ranks, "both ranks")
        self.leave("group-0", 1)
        wait_for(lambda: len(self.ranks()) == 1, "rank 1 has left")
        os.kill(before["group-0", "0"][0], signal.SIGKILL)
        wait_for(lambda: self.all_ranks(instead_of=before), "the group is back")
        self.assertIn("group_died group=group-0 rank=0 reason=\"killed by signal 9", launch.stderr)

    def test_a_hung_group_while_draining_is_told(self):
        launch = self.launch()
        ranks = wait_for(self.all_ranks, "both ranks")
        self.give_up(("group-0", ranks["group-0", "0"][1]))
        launch.signal(signal.SIGTERM)
        wait_for(lambda: not self.family.pids("kvern-worker"), "the ranks were killed")
        self.finish_drain()
        self.assertEqual(launch.wait(), 1)
        self.assertRegex(launch.last_error_line(),
                         "group-0 rank 0: died while draining: the router gave it up: silent")

    def test_killed_router_ends_everything(self):
        launch = self.launch()
        os.kill(self.family.pids("kvern-router")[0], signal.SIGKILL)
        self.assertEqual(launch.wait(), 1)
        self.assertEqual(launch.last_error_line(),
                         "kvern-launch: router: killed by signal 9 (Killed)")
        self.assert_nothing_left()

    def test_router_that_leaves_cleanly_by_itself_is_told_as_that(self):
        launch = self.launch()
        (self.folder / "drained").touch()
        os.kill(self.family.pids("kvern-router")[0], signal.SIGTERM)
        self.assertEqual(launch.wait(), 1)
        self.assertEqual(launch.last_error_line(), "kvern-launch: router: exited with status 0 before "
                                                   "this launcher was told to end")

    def test_killed_launcher_leaves_nothing(self):
        launch = self.launch("--replicas", 2)
        launch.signal(signal.SIGKILL)
        self.assert_nothing_left()

    def test_signal_before_ready_ends_at_once(self):
        launch = self.launch(ready=False)
        wait_for(lambda: len(list(self.folder.glob("up-*"))) == 2, "both ranks run")
        launch.signal(signal.SIGINT)
        self.assertEqual(launch.wait(), 0)
        self.assert_nothing_left()

    def test_second_signal_kills(self):
        launch = self.launch()
        launch.signal(signal.SIGINT)
        wait_for((self.folder / "draining").exists, "the router heard of the drain")
        self.assertEqual(launch.insist(signal.SIGINT), 1)
        self.assert_nothing_left()

    def test_ranks_that_stay_after_the_drain_are_killed(self):
        launch = self.launch(fault="stubborn")
        wait_for(lambda: len(list(self.folder.glob("up-*"))) == 2, "both ranks run")
        launch.signal(signal.SIGTERM)
        self.finish_drain()
        self.assertEqual(launch.wait(), 0)
        self.assertIn("ranks_did_not_leave", launch.stderr)
        self.assert_nothing_left()

    def test_rank_that_dies_while_draining_is_told(self):
        launch = self.launch()
        ranks = wait_for(self.all_ranks, "both ranks")
        launch.signal(signal.SIGTERM)
        wait_for((self.folder / "draining").exists, "the router heard of the drain")
        os.kill(ranks["group-0", "0"][0], signal.SIGKILL)
        wait_for(lambda: not self.family.pids("kvern-worker"), "the other rank was killed")
        (self.folder / "drained").touch()
        self.assertEqual(launch.wait(), 1)
        self.assertIn("died while draining", launch.last_error_line())

    def test_ranks_that_the_drained_router_left_behind_are_no_failure(self):
        launch = self.launch(fault="orphan")
        wait_for(lambda: len(list(self.folder.glob("up-*"))) == 2, "both ranks run")
        launch.signal(signal.SIGTERM)
        self.finish_drain()
        self.assertEqual(launch.wait(), 0, launch.stderr)
        self.assertNotIn("died while draining", launch.stderr)
        self.assertIn("group_left_behind", launch.stderr)
        self.assert_nothing_left()

    def test_nobody_reading_stderr_does_not_stop_the_watch(self):
        (self.folder / "live").touch()
        environment = dict(self.family.environment, KVERN_TEST_FOLDER=str(self.folder),
                           KVERN_TEST_FAULT="flood")
        launch = subprocess.Popen(
            [self.folder / "kvern-launch", "--model", "m", "--tp", "2"], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.assertEqual(launch.stdout.readline(), b"ready tcp://127.0.0.1:1\n")
            before = wait_for(lambda: len(list(self.folder.glob("up-*"))) == 2
                              and self.all_ranks(), "both ranks")
            os.kill(before["group-0", "0"][0], signal.SIGKILL)
            wait_for(lambda: self.all_ranks(instead_of=before), "the group is back")
        finally:
            launch.kill()
            launch.communicate()

    def test_variables_that_are_nobodys_are_warned_of_once(self):
        options = {option for program in ("kvern-launch", "kvern-router", "kvern-worker")
                   for option in re.findall(r"^  --([a-z-]+)", subprocess.run(
                       [BIN / program, "--help"], capture_output=True, text=True).stdout, re.M)}
        known = {"KVERN_" + option.replace("-", "_").upper(): ""
                 for option in options - {"help", "version"}}
        # And what the sources read by themselves.
        read = {name for folder in ("cluster", "router", "worker", "kernels")
                for source in pathlib.Path(folder).rglob("*.cc")
                for name in re.findall(r'"(KVERN_[A-Z_]+)"', source.read_text())}
        self.assertIn("KVERN_EMULATED_MEMORY", read)
        known.update({name: "" for name in read})
        slips = {"KVERN_KV_MEMROY": "1GiB", "KVERN_ANYTHING_AT_ALL": "1",
                 "KVERN_SERVICE_HOST": "10.0.0.1"}
        program = Program(self.family, [
            self.folder / "kvern-launch", "--model", "model.gguf", "--tp", "1"],
            environment={**known, **slips, "KVERN_TEST_FOLDER": str(self.folder)})
        self.addCleanup(program.close)
        ranks = wait_for(lambda: self.all_ranks(1), "the rank runs")
        said = [line for line in program.stderr.splitlines() if "unknown_variable" in line]
        self.assertEqual(said, [
            "kvern-launch: warning unknown_variable_ignored name=KVERN_KV_MEMROY "
            "nearest=KVERN_KV_MEMORY",
            "kvern-launch: warning unknown_variable_ignored name=KVERN_ANYTHING_AT_ALL"])
        # Its children do not get them.
        (pid, _), = ranks.values()
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        self.assertNotIn(b"KVERN_KV_MEMROY", environment)
        self.assertIn(b"KVERN_SERVICE_HOST", environment)


if __name__ == "__main__":
    unittest.main()
