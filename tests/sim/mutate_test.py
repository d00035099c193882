"""mutate.py says what it lacks."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).with_name("mutate.py")


class MutateTest(unittest.TestCase):
    def run_it(self, *arguments, **environment):
        return subprocess.run([sys.executable, "-B", PROGRAM, *arguments], capture_output=True,
                              text=True, env={**os.environ, **environment})

    def test_a_build_without_the_simulator(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_it("1", KVERN_BIN_DIR=f"{folder}/bin")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^mutate.py: there is no .*/bin/sim_swarm; build sim_swarm, or ")

    def test_a_number_that_is_not_in_the_list(self):
        done = self.run_it("--check", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("mutate.py: error: number 0: the list has 1 to ", done.stderr)


if __name__ == "__main__":
    unittest.main()
