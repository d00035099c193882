"""kvern-run's --device on a machine without a GPU: with no driver, and with one that has no GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from processes import BIN  # noqa: E402

MODEL = ROOT / "tests" / "golden" / "tiny" / "llama_gqa"
# What a toolkit has in place of the driver, for linking: it says that it is none.
STUB = os.environ.get("KVERN_CUDA_STUB")


def run(device, **environment):
    request = {"id": "0", "prompt_token_ids": [5, 6], "max_tokens": 4, "temperature": 0}
    return subprocess.run([BIN / "kvern-run", "--model", MODEL, "--device", device, "--kv-blocks",
                           "20"], env={**os.environ, **environment}, input=json.dumps(request),
                          capture_output=True, text=True)


class DeviceTest(unittest.TestCase):
    def assert_refused(self, done, pattern):
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, "^kvern-run: --device: 'cuda': " + pattern)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a GPU")
    def test_cuda_without_a_gpu_is_refused(self):
        has_backend = (BIN.parent / "lib" / "libkvern_cuda.so").exists()
        self.assert_refused(run("cuda"), (
            r"no (NVIDIA driver, or too old a one,|usable GPU) on this machine \(CUDA: .+\)\n$"
            if has_backend else "no CUDA backend: there is neither "))

    @unittest.skipUnless(STUB, "built without a toolkit that has the stub")
    def test_a_driver_without_a_gpu_is_told_and_the_cpu_answers(self):
        why = r"no usable GPU on this machine \(CUDA: CUDA driver is a stub library\)"
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "libcuda.so.1").symlink_to(STUB)
            done = run("auto", LD_LIBRARY_PATH=folder)
            self.assert_refused(run("cuda", LD_LIBRARY_PATH=folder), why)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, f'^kvern-run: warning gpu_not_used reason="{why}"\n')
        self.assertEqual(json.loads(done.stdout)["choices"],
                         json.loads(run("cpu").stdout)["choices"])


if __name__ == "__main__":
    unittest.main()
