"""kvern-router and kvern-worker without kvern-launch: started by hand, as Slurm, Kubernetes or ssh do."""

import json
import os
import pathlib
import signal
import tempfile
import unittest
import urllib.request

from service import BIN, PROMPTS, ServiceTest, model
from processes import Family, Program, wait_for
from kvern import Client

# What of the machine that runs the test could place a rank.
PLACES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LWS_WORKER_INDEX",
          "LWS_GROUP_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"]


class ByHandTest(ServiceTest):
    def setUp(self):
        self.family = Family()
        for name in PLACES:
            self.family.environment.pop(name, None)
        self.addCleanup(self.family.kill_all)
        folder = tempfile.TemporaryDirectory(prefix="kvern-by-hand-")
        self.addCleanup(folder.cleanup)
        self.ready_file = pathlib.Path(folder.name) / "ready.json"
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.router = self.program(
            "kvern-router", "--model", model(), "--listen", "tcp://127.0.0.1:0",
            "--status", "127.0.0.1:0", "--ready-file", self.ready_file, "--ready-fd", write,
            pass_fds=[write])
        os.close(write)
        with os.fdopen(os.dup(read)) as lines:
            self.addresses = json.loads(lines.readline())

    def program(self, name, *arguments, **options):
        program = Program(self.family, [BIN / name, *arguments], **options)
        self.addCleanup(program.close)
        return program

    def rank(self, *arguments, environment=None, router=True):
        """A rank with what every rank has; where it belongs is the caller's to say."""
        where = ["--router", self.addresses["worker_endpoint"]] if router else []
        return self.program("kvern-worker", "--model", model(), "--kv-blocks", 64, *where,
                            *arguments, environment=environment)

    def pair(self, *arguments):
        return [self.rank("--rank", rank, "--world", 2, "--group", "pair", *arguments)
                for rank in range(2)]

    def wait_ready(self, ranks):
        wait_for(lambda: self.ready_file.exists() or not all(r.running() for r in ranks), "ready")
        self.assertTrue(all(rank.running() for rank in ranks), [rank.stderr for rank in ranks])

    def answer(self):
        with Client(self.addresses["endpoint"], timeout=60) as client:
            return self.ask(client, PROMPTS[0]).token_ids

    def check_drain(self, ranks):
        """SIGTERM to the router is the group's end, too: each exits 0."""
        self.router.signal(signal.SIGTERM)
        self.assertEqual([rank.wait() for rank in ranks], [0] * len(ranks),
                         [rank.stderr for rank in ranks])
        self.assertEqual(self.router.wait(), 0, self.router.stderr)

    def test_by_options(self):
        ranks = self.pair()
        self.wait_ready(ranks)
        self.assertEqual(len(self.answer()), 12)
        self.assertIn("group pair: 2 ranks, 64 KV blocks", self.router.stderr)
        self.check_drain(ranks)

    def test_by_the_environment(self):
        address, port = self.addresses["worker_endpoint"].removeprefix("tcp://").split(":")
        environments = [
            # As torchrun has it; the router counts as the master.
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port},
            # As Slurm has it; own flags come first, so the step's other tasks do not count.
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "KVERN_WORLD": "2",
             "KVERN_ROUTER": self.addresses["worker_endpoint"]},
        ]
        ranks = [self.rank(environment=environment, router=False) for environment in environments]
        self.wait_ready(ranks)
        self.assertEqual(len(self.answer()), 12)
        self.check_drain(ranks)

    def check_killed(self, killed):
        ranks = self.pair()
        self.wait_ready(ranks)
        before = self.answer()
        ranks[killed].signal(signal.SIGKILL)
        self.assertEqual(ranks[1 - killed].wait(), 1)
        self.assertRegex(ranks[1 - killed].last_error_line(),
                         f"^kvern-worker: pair rank {1 - killed}: ")
        # The router goes on, and takes the group again under its name.
        self.pair()
        wait_for(lambda: self.router.stderr.count("group pair: 2 ranks") == 2, "the group is new")
        self.assertEqual(self.answer(), before)

    def test_killed_leader_ends_the_other(self):
        self.check_killed(0)

    def test_killed_rank_1_ends_the_leader(self):
        self.check_killed(1)

    def test_sigterm_to_rank_1_is_the_end_of_its_group_alone(self):
        ranks = self.pair()
        self.wait_ready(ranks)
        before = self.answer()
        ranks[1].signal(signal.SIGTERM)
        self.assertEqual([rank.wait() for rank in ranks], [0, 0], [rank.stderr for rank in ranks])
        self.pair()
        wait_for(lambda: self.router.stderr.count("group pair: 2 ranks") == 2, "the group is new")
        self.assertEqual(self.answer(), before)

    def test_sigterm_before_the_start_is_a_ranks_end(self):
        rank = self.rank("--world", 2, "--group", "pair", "--rank", 0)
        wait_for(lambda: self.groups() == ["pair"], "rank 0 has joined")
        rank.signal(signal.SIGTERM)
        self.assertEqual(rank.wait(), -signal.SIGTERM)

    def groups(self):
        with urllib.request.urlopen(f"http://{self.addresses['status']}/health/progress",
                                    timeout=30) as reply:
            return [group["id"] for group in json.load(reply)["groups"]]

    def test_a_rank_that_stops_before_they_meet_is_named(self):
        where = ["--world", 2, "--group", "pair", "--rank"]
        stopped = self.rank(*where, 1)
        wait_for(lambda: self.groups() == ["pair"], "rank 1 has joined")
        stopped.signal(signal.SIGSTOP)
        leader = self.rank(*where, 0)
        self.assertEqual(leader.wait(), 1)
        self.assertRegex(leader.last_error_line(),
                         "^kvern-worker: pair rank 0: of 2 ranks, these did not come .*: 1$")

    def check_refused(self, ranks, reason):
        """Both hear it, whoever comes second."""
        self.assertEqual([rank.wait() for rank in ranks], [1, 1])
        for rank in ranks:
            self.assertIn("the router refuses this rank: " + reason, rank.last_error_line())
        self.assertTrue(self.router.running())

    def test_another_world_is_refused(self):
        ranks = [self.rank("--rank", 0, "--world", 2), self.rank("--rank", 1, "--world", 3)]
        self.check_refused(ranks, "world of rank ")

    def test_other_weights_are_refused(self):
        ranks = [self.rank("--rank", 0, "--world", 2, "--weights", "f32"),
                 self.rank("--rank", 1, "--world", 2, "--weights", "bf16")]
        self.check_refused(ranks, "weights_fingerprint of rank ")

    def test_usage_errors(self):
        router = ["--router", self.addresses["worker_endpoint"]]
        for arguments, environment, line in (
                ([], {}, "--router: needed, or MASTER_ADDR and MASTER_PORT (see --help)"),
                (router + ["--rank", 2, "--world", 2], {}, "--rank: 2, allowed: 0 to 1 (--world is 2)"),
                (router, {"SLURM_PROCID": "x"},
                 "SLURM_PROCID: 'x' is not a whole number from 0 to 63"),
                (router, {"KVERN_RANK": "64"},
                 "KVERN_RANK: '64' is not a whole number from 0 to 63")):
            with self.subTest(line):
                rank = self.rank(*arguments, environment=environment, router=False)
                self.assertEqual(rank.wait(), 2)
                self.assertEqual(rank.stderr, f"kvern-worker: {line}\n")

    def test_no_such_model(self):
        rank = self.program("kvern-worker", "--router", self.addresses["worker_endpoint"],
                            "--model", "/no/such/model.gguf")
        self.assertEqual(rank.wait(), 1)
        self.assertRegex(rank.last_error_line(),
                         "^kvern-worker: group-0 rank 0: .*/no/such/model.gguf")


if __name__ == "__main__":
    unittest.main()
