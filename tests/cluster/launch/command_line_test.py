"""The command lines of all programs and scripts: what they refuse, in which words and with which exit
code, and what their help says."""

import pathlib
import re
import socket
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "e2e"))

from processes import BIN  # noqa: E402

LAUNCH = BIN / "kvern-launch"


class CommandLineTest(unittest.TestCase):
    def test_usage(self):
        for arguments, text in (
                (["--model=m", "--join-timeout=571s"], "--join-timeout: '571s', allowed: 1s to 570s"),
                (["--model=m", "--default-ttft-deadline=0s"],
                 "--default-ttft-deadline: '0s', allowed: 1ms to 24h"),
                (["--model=m", "--slow-reader-timeout=25h"],
                 "--slow-reader-timeout: '25h', allowed: 1ms to 24h"),
                (["--model=m", "--client-buffer=0"], "--client-buffer: '0', allowed: 64KiB or more"),
                (["--model=m", "--queue-bytes=1"], "--queue-bytes: '1', allowed: 1KiB or more"),
                (["--model=m", "--kv-memory=0"], "--kv-memory: '0', allowed: 1B or more"),
                (["--model", "m", "--queue-seconds", "0"],
                 "--queue-seconds: '0' is not a whole number from 1 to 86400"),
                (["--model", "m", "--device", "gpu"],
                 "--device: 'gpu', allowed: cpu, cuda, emulated, auto"),
                (["--model", "m", "--tp", "0"], "--tp: '0' is not a whole number from 1 to 64"),
                (["--model", "m", "--threads", "9999"],
                 "--threads: '9999' is not a whole number from 1 to 1024"),
                (["--model", "m", "--kv-blocks", "0"],
                 "--kv-blocks: '0' is not a whole number from 1 to 2147483648"),
                (["--model", "m", "--max-batch-tokens", "65537"],
                 "--max-batch-tokens: '65537' is not a whole number from 1 to 65536"),
                (["--model", "m", "--max-seq-len", "1"],
                 "--max-seq-len: '1' is not a whole number from 2 to 16777216"),
                (["--model", "m", "--default-max-tokens", "99999999"],
                 "--default-max-tokens: '99999999' is not a whole number from 1 to 16777216"),
                (["--model", "m", "--queue-entries", "1048577"],
                 "--queue-entries: '1048577' is not a whole number from 1 to 1048576"),
                (["--model", "m", "--kv-memory", "1GB"], "--kv-memory: '1GB' is not a size"),
                (["--model", "m", "--kv-memory", "1GiB", "--kv-blocks", "9"], "--kv-blocks: not"),
                (["--model", "m", "--ready-fd", "77"], "--ready-fd: '77' is not an open"),
                ([], "--model: needed")):
            with self.subTest(arguments):
                done = subprocess.run([LAUNCH, *arguments], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn("kvern-launch: " + text, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_refusals_of_all_programs_name_option_value_and_what_is_allowed(self):
        model = "tests/golden/tiny/llama_gqa"
        router, worker = ["kvern-router", "--model", model], ["kvern-worker", "--model", model]
        ports = ["--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0"]
        for arguments, code, text in (
                ([*router, "--listen", "foo"], 2,
                 "--listen: 'foo', allowed: tcp://127.0.0.1:PORT, ipc://PATH"),
                ([*router, "--worker-listen", "tcp://10.0.0.1:1"], 2,
                 "--worker-listen: 'tcp://10.0.0.1:1' is not a loopback address"),
                ([*router, "--status", "foo"], 2,
                 "--status: 'foo' is not an address and a port, allowed: 127.0.0.1:PORT"),
                ([*router, "--status", "0.0.0.0:5599"], 2,
                 "--status: '0.0.0.0:5599' is not a loopback address, allowed: 127.0.0.1:PORT"),
                ([*router, "--tenants", "/nope"], 1, "--tenants: cannot open /nope: No such file"),
                (["kvern-launch", "--model", model, "--listen", "foo"], 2,
                 "--listen: 'foo', allowed: tcp://127.0.0.1:PORT, ipc://PATH"),
                (["kvern-launch", "--model", model, "--status", "foo"], 2,
                 "router: --status: 'foo' is not an address and a port"),
                ([*worker, "--router", "foo"], 2,
                 "--router: 'foo', allowed: tcp://HOST:PORT, ipc://PATH"),
                ([*worker, "--router", "tcp://127.0.0.1:1", "--device", "emulated", "--gpu-index",
                  "8"], 2, "--gpu-index: 8, allowed: 0 to 7 (with --device emulated"),
                (["kvern-run", "--model", model, "--device", "emulated", "--tp", "9"], 2,
                 "--tp: 9, allowed: 1 to 8 (with --device emulated"),
                # A value that is never allowed is usage.
                ([*router, "--chat-template", "foo"], 2, "--chat-template: chat template 'foo'"),
                (["kvern-launch", "--model", model, "--chat-template", "foo", *ports], 2,
                 "router: --chat-template: chat template 'foo', allowed: chatml, smollm2"),
                (["kvern-run", "--model", model, "--chat-template", "foo"], 2,
                 "--chat-template: chat template 'foo', allowed: chatml, smollm2"),
                (["kvern-tokenizer", "chat", "--model", model, "--chat-template", "foo"], 2,
                 "--chat-template: chat template 'foo', allowed: chatml, smollm2"),
                (["kvern-launch", "--model", model, "--weights", "foo"], 2,
                 "--weights: 'foo', allowed: auto, f32, bf16, int8, int4"),
                (["kvern-launch", "--model", model, "--kv-dtype", "foo"], 2,
                 "--kv-dtype: 'foo', allowed: auto, f32, bf16"),
                # One that this model does not allow is a failure.
                ([*router, "--max-seq-len", "9999", *ports], 1,
                 "--max-seq-len: 9999, the model allows 512"),
                (["kvern-run", "--model", model, "--max-seq-len", "9999"], 1,
                 "--max-seq-len: 9999, the model allows 512"),
                (["kvern-launch", "--model", model, "--max-seq-len", "9999", *ports], 1,
                 "router: --max-seq-len: 9999, the model allows 512"),
                ([*router, "--default-max-tokens", "9999", *ports], 1,
                 "--default-max-tokens: 9999, allowed: below"),
                (["kvern-run", "--model", model, "--tp", "63"], 1,
                 "tensor-parallel size 63, allowed: 1 to "),
                (["kvern-run", "--model", model, "--kv-memory", "1"], 1, "--kv-memory: 1 B, allowed: "),
                (["kvern-launch", "--model", model, "--kv-memory", "1", *ports], 1,
                 "group-0 rank 0: --kv-memory: 1 B, allowed: "),
                # So is what is named and cannot be read or had.
                (["kvern-run", "--model", "/nope"], 1, "cannot open model /nope"),
                (["kvern-tokenizer", "chat", "--model", "/nope"], 1, "--model: /nope: cannot open"),
                (["kvern-router", "--model", "/nope", *ports], 1, "cannot open model /nope"),
                ([*router, "--ready-file", "/nope/ready", *ports], 1,
                 "--ready-file: cannot write into the folder of /nope/ready: No such file"),
                (["kvern-sim", "--load", "1", "--tenants", "/nope"], 1,
                 "--tenants: cannot open /nope: No such file"),
                (["kvern-chat", "--endpoint", "foo"], 2,
                 "--endpoint: 'foo', allowed: tcp://HOST:PORT, ipc://PATH"),
                (["kvern-chat", "--endpoint", "tcp://127.0.0.1:x"], 2,
                 "--endpoint: 'tcp://127.0.0.1:x': its port is not a number from 0 to 65535"),
                (["kvern-sim", "--load", "1", "--workload", "trace:/nope"], 1,
                 "--workload: '/nope' is not a regular file")):
            with self.subTest(arguments):
                done = subprocess.run([BIN / arguments[0], *arguments[1:]], capture_output=True,
                                      text=True, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(f"{arguments[0]}: {text}", done.stderr)

    def test_all_mistakes_are_told_together(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = subprocess.run(
                [BIN / "kvern-router", "--model", "/nope", "--listen", f"tcp://127.0.0.1:{port}",
                 "--status", "127.0.0.1:0"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("cannot open model /nope", done.stderr)
            self.assertIn(f"tcp://127.0.0.1:{port}", done.stderr)
        done = subprocess.run(
            [BIN / "kvern-router", "--model", "tests/golden/tiny/llama_gqa", "--max-seq-len", "9999",
             "--tenants", "/nope", "--ready-file", "/nope/ready"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        for text in ("--max-seq-len: 9999", "--tenants: cannot open /nope", "--ready-file: cannot"):
            self.assertIn(text, done.stderr)

    def test_commands_that_are_shown_have_the_options_they_use(self):
        """Of README.md's blocks and quickstart's hints; what touches a quarter of the memory says so."""
        lines = pathlib.Path("README.md").read_text().splitlines()
        lines += [line.replace("$bin/", "build/release/bin/")
                  for line in pathlib.Path("tools/quickstart").read_text().splitlines()
                  if line.startswith('echo "  ')]
        shown = [(match[1], match[2].split("#")[0]) for line in lines
                 for match in [re.search(r"build/release/bin/(kvern-[a-z]+)([^`\"]*)", line)] if match]
        self.assertGreaterEqual(len(shown), 6, shown)
        for program, arguments in shown:
            with self.subTest(program + arguments):
                for option in re.findall(r"--[a-z-]+", arguments):
                    self.assertIn(f"  {option}", self.help_of(program))
                if program in ("kvern-launch", "kvern-run"):
                    self.assertIn("--kv-memory 256MiB", arguments)

    def test_scripts_refuse_what_they_do_not_know_before_they_do_anything(self):
        for arguments, text in (
                (["quickstart", "--bogus"], "--bogus: unknown option, allowed: --help, or a QUESTION"),
                (["quickstart", "a", "b"], "unexpected argument 'b', allowed: one QUESTION"),
                (["test", "--bogus"], "'--bogus', allowed: fast, all, asan, tsan, fuzz"),
                (["test", "fuzz", "long"], "fuzz 'long', allowed: a whole number of seconds"),
                (["build", "--bogus"], "preset '--bogus', allowed: release, asan, tsan, fuzz"),
                (["build", "release", "--bogus"], "target '--bogus', allowed: names of targets"),
                (["setup", "--bogus"], "unknown option '--bogus', allowed: --fuzz, --cuda"),
                (["fetch_model", "--bogus"], "unexpected argument '--bogus'"),
                (["gpu_check", "build", "--bogus"], "'--bogus', allowed: the name of a folder")):
            with self.subTest(arguments):
                done = subprocess.run(["tools/" + arguments[0], *arguments[1:]], capture_output=True,
                                      text=True, timeout=20)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn(f"{arguments[0]}: {text}", done.stderr)

    def help_of(self, program):
        return subprocess.run([BIN / program, "--help"], capture_output=True, text=True,
                              check=True).stdout

    def test_help_says_each_default_once_and_in_words(self):
        for program in ("kvern-launch", "kvern-router", "kvern-worker", "kvern-run", "kvern-chat",
                        "kvern-sim", "kvern-tokenizer"):
            for line in self.help_of(program).splitlines():
                with self.subTest(program, line=line):
                    self.assertLessEqual(line.count("(default"), 1)
                    self.assertNotRegex(line, r"default:? (-|[0-9]{10})")

    def test_help_of_the_launcher_says_the_defaults_of_its_parts(self):
        def defaults(program):
            found = re.findall(r"^  --(\S+) .*\(default:? ([^():]*)[):]", self.help_of(program), re.M)
            return dict(found)
        launch = defaults("kvern-launch")
        for part, names in (
                ("kvern-router", {"queue-entries", "queue-bytes", "queue-seconds", "stream-window",
                                  "default-max-tokens", "default-ttft-deadline", "client-buffer",
                                  "join-timeout", "slow-reader-timeout", "log-level", "listen", "status"}),
                ("kvern-worker", {"max-batch-tokens", "kv-memory", "device"})):
            its = defaults(part)
            for name in names:
                with self.subTest(name):
                    self.assertEqual(launch.get(name, "not said"), its[name])

    def test_help_fits_a_screen(self):
        done = subprocess.run([LAUNCH, "--help"], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        self.assertLessEqual(len(lines), 40)
        self.assertLessEqual(max(map(len, lines)), 100)

    def test_versions_say_what_has_run_on_hardware(self):
        on_hardware = "Nothing here has run on hardware" not in pathlib.Path("docs/kernels.md").read_text()
        for program in "kvern-launch", "kvern-worker", "kvern-run":
            done = subprocess.run([BIN / program, "--version"], capture_output=True, text=True, check=True)
            lines = done.stdout.splitlines()
            self.assertRegex(lines[0], program + r" [0-9]+\.[0-9]+\.[0-9]+$")
            gpu = [line for line in lines if line.startswith("cuda: ")]
            self.assertEqual(len(gpu), 1)
            self.assertEqual("not yet on hardware" not in gpu[0], on_hardware)
            # Of the source, since nobody knows here what was built of it.
            for line in lines[1:]:
                self.assertIn(": this source has been ", line)


if __name__ == "__main__":
    unittest.main()
