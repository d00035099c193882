"""One group is told to end: it finishes what it runs, leaves, and comes back. Nobody loses a token."""

import json
import os
import signal
import unittest

from service import PROMPTS, ServiceTest, wait_for


class RollingTest(ServiceTest):
    def groups(self, service):
        progress = json.loads(service.get("/health/progress")[1])
        return {group["id"]: group for group in progress["groups"]}

    def metric(self, service, line):
        return line in service.get("/metrics")[1].splitlines()

    def wait_live(self, service, group):
        wait_for(lambda: self.groups(service)[group]["live"]
                 and not self.groups(service)[group]["draining"], f"{group} takes requests")

    def begin_streams(self, service, client, max_tokens):
        """Streams under way, on each of the groups: so many as that takes."""
        streams = []

        def all_run():
            streams.append(self.long_stream(client, max_tokens))
            return all(group["running"] for group in self.groups(service).values())

        wait_for(all_run, "every group runs a stream")
        return streams

    def tokens(self, stream):
        """All that is left of a stream whose first delta was taken."""
        deltas = list(stream)
        self.assertEqual(deltas[-1].finish_reason, "length")
        return [token for delta in deltas for token in delta.token_ids]

    def test_sigterm_to_one_rank_rolls_its_group(self):
        service = self.start("--log-level", "info", replicas=2, kv_blocks=128)
        with service.client() as client:
            alone = self.tokens(self.long_stream(client, max_tokens=200))
            streams = self.begin_streams(service, client, max_tokens=200)
            before = {rank: service.rank("group-1", rank) for rank in range(2)}
            others = {rank: service.rank("group-0", rank) for rank in range(2)}
            os.kill(before[1], signal.SIGTERM)
            wait_for(lambda: self.groups(service)["group-1"]["draining"]
                     or "group_left" in service.launch.stderr, "the router was told")
            # Whatever is asked meanwhile is answered.
            self.assertEqual(len(self.ask(client, PROMPTS[0]).token_ids), 12)
            for stream in streams:
                self.assertEqual(self.tokens(stream), alone)
            wait_for(lambda: all(service.rank("group-1", rank) not in (0, before[rank])
                                 for rank in range(2)), "both ranks are new")
            self.wait_live(service, "group-1")
            self.assertEqual({rank: service.rank("group-0", rank) for rank in range(2)}, others)
            self.begin_streams(service, client, max_tokens=40)
        said = service.launch.stderr
        for line in ("group_draining group=group-1 rank=1 running=", "group_left group=group-1",
                     "group_restarts group=group-1 after=left"):
            self.assertIn(line, said)
        for word in ("group_died", "group_lost", "group_hung"):
            self.assertNotIn(word, said)
        service.wait_free()
        service.launch.signal(signal.SIGTERM)
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def test_the_only_group_drains_while_its_requests_wait(self):
        service = self.start("--log-level", "info", kv_blocks=128)
        with service.client() as client:
            stream = self.long_stream(client, max_tokens=200)
            before = service.rank("group-0", 0)
            os.kill(before, signal.SIGTERM)
            wait_for(lambda: service.get("/ready")[0] == 503, "it is not ready")
            # Sent now, it waits for the group to come back.
            self.assertEqual(len(self.ask(client, PROMPTS[0]).token_ids), 12)
            self.assertNotIn(service.rank("group-0", 0), (0, before))
            self.assertEqual(service.get("/ready")[0], 200)
            self.tokens(stream)

    def test_sigterm_to_every_process_at_once_loses_no_stream(self):
        """As systemd and Slurm stop a service; the router hears of it twice, once from the launcher."""
        service = self.start("--log-level", "info", replicas=2, kv_blocks=128)
        with service.client() as client:
            streams = self.begin_streams(service, client, max_tokens=200)
            for pid in service.family.pids():
                os.kill(pid, signal.SIGTERM)
            answers = [self.tokens(stream) for stream in streams]
            self.assertEqual(answers, answers[:1] * len(answers))
        self.assertEqual(service.launch.wait(), 0, service.launch.stderr)
        self.assert_nothing_left(service)

    def test_a_draining_group_is_no_capacity(self):
        service = self.start("--log-level", "info", replicas=2, tp=1, kv_blocks=128)
        with service.client() as client:
            streams = self.begin_streams(service, client, max_tokens=800)
            os.kill(service.rank("group-0", 0), signal.SIGTERM)
            wait_for(lambda: self.groups(service)["group-0"]["draining"], "group-0 drains")
            self.assertEqual([group["id"] for group in service.capacity()["groups"]], ["group-1"])
            self.assertEqual(json.loads(service.get("/ready")[1])["live_groups"], 1)
            self.assertTrue(self.metric(service, 'kvern_group_live{group="group-0"} 0'))
            self.assertTrue(self.metric(service, 'kvern_group_draining{group="group-0"} 1'))
            self.assertTrue(
                self.metric(service, 'kvern_kv_blocks{group="group-0",state="free"} 0'))
            # The second one ends it at once, as ever.
            os.kill(service.rank("group-0", 0), signal.SIGTERM)
            codes = []
            for stream in streams:
                try:
                    list(stream)
                    codes.append("whole")
                except Exception as error:
                    codes.append(getattr(error, "code", repr(error)))
            self.assertEqual(set(codes), {"unavailable", "whole"})
            wait_for(lambda: "group_died group=group-0 rank=0" in service.launch.stderr, "it died")
            self.wait_live(service, "group-0")


if __name__ == "__main__":
    unittest.main()
