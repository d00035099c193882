"""tools/gpu_check, with scripts in the place of the programs and of all tools: the report is whole,
whatever the parts do, and what is not fit to be carried is not packed."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAMS = ("gpu_wrappers_test", "gpu_kernels_test", "gpu_models_test", "bench_gpu", "bench_step")
GPU = 'echo "NVIDIA \\"Test\\" \\\\ 80GB, 580.1, 81559 MiB, 1980 MHz, 700 W"'
# --json is a bench's first argument.
BENCH = 'echo "copy  GB/s=3000"; echo "{\\"bench\\": \\"copy\\", \\"GB/s\\": 3000}" >"$2"'


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.programs, self.tools = self.root / "programs", self.root / "tools"
        for name in PROGRAMS:
            self.script(self.programs / name, BENCH if name.startswith("bench") else "exit 0")
        self.script(self.tools / "nvidia-smi", GPU)
        self.script(self.tools / "compute-sanitizer", f'echo "$@" >>{self.root}/sanitizer')

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run_check(self, seconds=60, **environment):
        """Its exit code, the report, and the results of its steps by their names."""
        out = self.root / "report"
        environment |= {"PATH": f"{self.tools}:{os.environ['PATH']}",
                        "GPU_CHECK_SECONDS": str(seconds)}
        done = subprocess.run(["tools/gpu_check", "run", self.programs, out],
                              env=os.environ | environment, capture_output=True, text=True)
        report = json.loads((out / "report.json").read_text())
        self.text = (out / "report.txt").read_text()
        return done.returncode, report, {s["step"]: s["result"] for s in report["steps"]}

    def test_all_is_well(self):
        code, report, steps = self.run_check()
        self.assertEqual(code, 0, steps)
        self.assertEqual(list(steps), ["gpus", "wrappers", "kernels", "models", "models_2_gpus",
                                       "models_2_processes", "bench", "step_bench",
                                       "memcheck_wrappers", "memcheck_kernels", "racecheck_kernels"])
        for name in "models_2_gpus", "models_2_processes":
            self.assertEqual(steps.pop(name), "skipped: one GPU")
        self.assertEqual(set(steps.values()), {"ok"})
        self.assertEqual(report["gpus"],
                         ['NVIDIA "Test" \\ 80GB, 580.1, 81559 MiB, 1980 MHz, 700 W'])
        self.assertEqual(report["bench"], [{"bench": "copy", "GB/s": 3000}])
        self.assertEqual(report["step_bench"], report["bench"])
        self.assertIn("copy  GB/s=3000", self.text)
        calls = (self.root / "sanitizer").read_text()
        self.assertRegex(calls, r"--tool racecheck .*/gpu_kernels_test --gtest_filter=\*Cuda\*:")

    def test_two_ranks_where_there_are_two_gpus(self):
        self.script(self.tools / "nvidia-smi", f"{GPU}; {GPU}")
        self.script(self.programs / "gpu_models_test", f'echo "$1" >>{self.root}/models')
        for visible, result in {"0,1": "ok", "1": "skipped: one GPU"}.items():
            steps = self.run_check(CUDA_VISIBLE_DEVICES=visible)[2]
            self.assertEqual([steps["models_2_gpus"], steps["models_2_processes"]], [result] * 2)
        filters = (self.root / "models").read_text().splitlines()
        self.assertEqual(filters, ["--gtest_filter=" + tests for tests in
                                   ("*_tp1", "*_tp2", "TwoProcesses.*", "*_tp1")])

    def test_a_part_that_fails_is_reported_and_the_others_go_on(self):
        self.script(self.tools / "compute-sanitizer", "exit 1")
        for name in PROGRAMS:
            self.script(self.programs / name, f'echo "{name} is broken"; kill -SEGV $$')
        code, report, steps = self.run_check()
        self.assertEqual(code, 1)
        self.assertEqual(steps.pop("gpus"), "ok")
        self.assertEqual(len(steps), 10)
        self.assertEqual(steps["step_bench"], "failed, exit code 139")
        self.assertEqual(report["bench"], [])
        self.assertIn("bench_gpu is broken", self.text)

    def test_no_gpu(self):
        self.script(self.tools / "nvidia-smi", "echo no driver; exit 9")
        self.script(self.programs / "gpu_wrappers_test", "echo no device; exit 1")
        code, report, steps = self.run_check()
        self.assertEqual((code, report["gpus"]), (1, []))
        self.assertEqual(steps, {"gpus": "failed, exit code 9", "wrappers": "failed, exit code 1"})
        self.assertIn("no driver", self.text)
        self.assertIn("no GPU that can be used", self.text)

    def test_a_gpu_without_nvidia_smi_is_used(self):
        self.script(self.tools / "nvidia-smi", "exit 127")
        code, _, steps = self.run_check()
        self.assertEqual((code, steps["gpus"], steps["racecheck_kernels"]),
                         (1, "failed, exit code 127", "ok"))
        self.assertEqual(steps["models_2_processes"], "skipped: no count of GPUs")

    def test_what_takes_too_long_is_ended_and_what_it_found_is_kept(self):
        self.script(self.programs / "bench_gpu",
                    f'{BENCH}; printf "{{\\"bench\\": \\"ha" >>"$2"; exec sleep 1000')
        code, report, steps = self.run_check(seconds=8)
        self.assertEqual(code, 1)
        self.assertRegex(steps["bench"], r"^not finished in [1-8] s$")
        self.assertEqual(report["bench"], [{"bench": "copy", "GB/s": 3000}])
        for step in ("step_bench", "memcheck_wrappers", "memcheck_kernels", "racecheck_kernels"):
            self.assertEqual(steps[step], "not started: 8 s are over")

    def build(self, needs="libspdlog.so.1.10", size=1000):
        """Packs programs that need this library and are that large; its exit code and all it says."""
        self.script(self.tools / "cmake", "exit 0")
        self.script(self.tools / "ldd", "exit 0")
        self.script(self.tools / "strip", f'head -c {size} /dev/zero >"$2"')  # -o COPY PROGRAM
        self.script(self.tools / "readelf",
                    f'echo " 0x0000000000000001 (NEEDED)  Shared library: [{needs}]"')
        done = subprocess.run(["tools/gpu_check", "build", self.root / "packed"],
                              env=os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}"},
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_programs_that_are_whole_are_packed(self):
        code, said = self.build()
        self.assertEqual(code, 0, said)
        for name in PROGRAMS:
            self.assertRegex(said, rf"(?m)^1000\s.*/packed/{name}$")

    def test_a_program_that_needs_abseil_or_googletest_is_not_packed(self):
        for library in "libabsl_strings.so.20220623", "libgtest.so.1.12", "libgmock.so.1.12":
            code, said = self.build(needs=library)
            self.assertEqual(code, 1)
            self.assertIn(f"gpu_wrappers_test needs {library}; abseil and GoogleTest must be within", said)

    def test_what_is_too_large_is_not_packed(self):
        code, said = self.build(size=13 << 20)
        self.assertEqual(code, 1)
        self.assertIn("allowed: 62914560", said)


if __name__ == "__main__":
    unittest.main()
