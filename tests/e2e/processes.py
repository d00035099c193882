"""Processes under test: started with a mark in their environment, found again by it in /proc,
waited for by conditions, and never left behind."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import uuid

# Where the programs are: ctest says it.
BIN = pathlib.Path(os.environ.get("KVERN_BIN_DIR") or
                   pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin")
MARK = "KVERN_TEST_MARK"
# Generous: it is only reached when something is broken.
DEADLINE_S = 60


def wait_for(condition, what, deadline_s=DEADLINE_S):
    """Returns the condition's first true value; fails naming `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.005)


def alive(pid):
    """False for a process that is gone or a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Family:
    """All processes that inherit one mark, however they are related."""

    def __init__(self):
        self.mark = uuid.uuid4().hex
        self.environment = dict(os.environ, **{MARK: self.mark})

    def pids(self, name=None):
        """Of living members, those of program `name` only if given."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            programs = [os.path.basename(argument) for argument in arguments[:2]]
            if (name is None or name.encode() in programs) and alive(int(entry.name)):
                found.append(int(entry.name))
        return sorted(found)

    def arguments(self, pid):
        """The command line as {"--option": value}; empty when the process is gone."""
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            return {}
        return {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}

    def kill_all(self):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Program:
    """A started program; its stdout and stderr go to files, so that nothing it says blocks it."""

    def __init__(self, family, arguments, stdin=subprocess.DEVNULL, environment=None, **options):
        self._folder = tempfile.TemporaryDirectory(prefix="kvern-test-")
        folder = pathlib.Path(self._folder.name)
        self._out, self._err = folder / "stdout", folder / "stderr"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [str(argument) for argument in arguments], stdin=stdin, stdout=out, stderr=err,
                env=dict(family.environment, **(environment or {})), **options)
        self.pid = self.process.pid

    @property
    def stdout(self):
        return self._out.read_text(errors="replace")

    @property
    def stderr(self):
        return self._err.read_text(errors="replace")

    def last_error_line(self):
        lines = [line for line in self.stderr.splitlines() if line]
        return lines[-1] if lines else ""

    def signal(self, number):
        self.process.send_signal(number)

    def insist(self, number):
        """Sends the signal until the program has ended; returns the exit code. One that comes too soon
        after the last counts as the same."""
        def ended():
            self.process.send_signal(number)
            return not self.running()

        wait_for(ended, f"{self.process.args[0]} gives in to signal {number}")
        return self.process.returncode

    def wait(self, deadline_s=DEADLINE_S):
        """The exit code; on a timeout the program's words are in the failure."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.process.args[0]} did not end; it said:\n{self.stderr}") \
                from None

    def running(self):
        return self.process.poll() is None

    def close(self):
        if self.running():
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._folder.cleanup()
