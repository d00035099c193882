"""What ptxas said when the kernels were compiled: ptxas_test.py TABLE DIRECTORY [--write]

Every kernel, for every architecture, spills nothing and uses no more registers and static shared
memory than TABLE says; TABLE has a line for each kernel and no others. --write makes TABLE anew.
docs/kernels.md says the same of each, and how many blocks therefore fit.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
DOCUMENTED = re.compile(r"^\| `([^`]+)` \| (\d+) \| (\d+) / (\d+) \| ([\d,]+) B(?: \+ (\d+) KiB)? "
                        r"\| (\d+) / (\d+) \| (\d+) / (\d+) % \|$", re.MULTILINE)
# Shared memory of a multiprocessor.
SHARED_TOTAL = {"sm_80": 164 << 10, "sm_90": 228 << 10}
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def demangled(names):
    """The plain names of mangled ones: no namespaces, no parameters."""
    text = "\n".join(names)
    out = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout
    result = {}
    for mangled, name in zip(names, out.splitlines()):
        name = re.sub(r"^void ", "", name)
        name = name.replace("(anonymous namespace)::", "")
        depth, end = 0, len(name)
        for i, c in enumerate(name):  # the parameter list starts outside template arguments
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                end = i
                break
        name = re.sub(r"\(kvern::gpu::\w+\)", "", name[:end])
        result[mangled] = name.replace("kvern::gpu::", "").replace(" ", "")
    return result


class Kernel:
    def __init__(self, name, architecture):
        self.name, self.architecture = name, architecture
        self.stack = self.spilled = self.registers = self.shared = 0

    def row(self):
        return f"{self.name} {self.architecture} {self.registers} {self.shared}"


def read_logs(directory):
    """All kernels that the .ptxas logs under `directory` tell of."""
    found = []
    for log in sorted(pathlib.Path(directory).rglob("*.ptxas")):
        for line in log.read_text().splitlines():
            if match := ENTRY.search(line):
                found.append(Kernel(*match.groups()))
            elif not found:
                continue
            elif match := FRAME.search(line):
                # Functions of the kernel that were not inlined follow it, each with such a line.
                found[-1].stack = max(found[-1].stack, int(match[1]))
                found[-1].spilled = max(found[-1].spilled, int(match[2]) + int(match[3]))
            elif match := USED.search(line):
                found[-1].registers = int(match[1])
                shared = SHARED.search(line)
                found[-1].shared = int(shared[1]) if shared else 0
    names = demangled([kernel.name for kernel in found])
    for kernel in found:
        kernel.name = names[kernel.name]
    return sorted(found, key=lambda kernel: (kernel.name, kernel.architecture))


def resident(threads, registers, shared, shared_total):
    """Blocks that a multiprocessor holds."""
    warps = threads // 32
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = 4 * (65536 // 4 // of_warp) // warps
    by_shared = shared_total // (-(-shared // 128) * 128 + 1024)
    return min(by_registers, by_shared, 64 // warps, 32)


def read_table(path):
    table = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, architecture, registers, shared = line.split()
            table[name, architecture] = int(registers), int(shared)
    return table


class LogTest(unittest.TestCase):
    def read(self, kernel, function):
        frame = "ptxas info    : Function properties for {}\n    {}\n".format
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "a.ptxas").write_text(
                "ptxas info    : Compiling entry function '_Z4kernPf' for 'sm_80'\n"
                + frame("_Z4kernPf", kernel)
                + "ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem\n"
                + frame("_Z8functionPf", function))
            return [(k.name, k.stack, k.spilled, k.registers, k.shared) for k in read_logs(directory)]

    def test_a_function_that_is_not_inlined_hides_nothing(self):
        nothing = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
        spills = "16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads"
        self.assertEqual(self.read(spills, nothing), [("kern", 16, 20, 40, 256)])
        self.assertEqual(self.read(nothing, spills), [("kern", 16, 20, 40, 256)])


class PtxasTest(unittest.TestCase):
    table_path = directory = None

    def setUp(self):
        self.kernels = read_logs(self.directory)
        self.table = read_table(self.table_path)

    def test_each_kernel_was_compiled_for_each_architecture(self):
        self.assertEqual(sorted((k.name, k.architecture) for k in self.kernels), sorted(self.table))

    def test_nothing_spills(self):
        for kernel in self.kernels:
            self.assertEqual((kernel.spilled, kernel.stack), (0, 0), kernel.row())

    def test_registers_and_shared_memory_are_within_the_table(self):
        for kernel in self.kernels:
            registers, shared = self.table.get((kernel.name, kernel.architecture), (0, 0))
            self.assertGreater(kernel.registers, 0, kernel.row())
            self.assertLessEqual(kernel.registers, registers, kernel.row())
            self.assertLessEqual(kernel.shared, shared, kernel.row())

    def test_the_documentation_says_the_same(self):
        documented = {}
        for name, threads, *cells in DOCUMENTED.findall(
                pathlib.Path("docs/kernels.md").read_text()):
            registers, static, dynamic = cells[:2], int(cells[2].replace(",", "")), cells[3]
            for i, architecture in enumerate(SHARED_TOTAL):
                documented[name, architecture] = int(registers[i]), static
                shared = static + 1024 * int(dynamic or 0)
                blocks = resident(int(threads), int(registers[i]), shared, SHARED_TOTAL[architecture])
                warps = round(100 * blocks * int(threads) / 32 / 64)
                self.assertEqual((int(cells[4 + i]), int(cells[6 + i])), (blocks, warps),
                                 f"{name} {architecture}")
        self.assertEqual(documented, self.table)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    PtxasTest.table_path, PtxasTest.directory = pathlib.Path(arguments[0]), arguments[1]
    if "--write" in sys.argv:
        rows = [kernel.row() for kernel in read_logs(PtxasTest.directory)]
        head = "# kernel architecture registers static-shared-bytes: at most, see ptxas_test.py\n"
        PtxasTest.table_path.write_text(head + "\n".join(rows) + "\n")
        return
    unittest.main(argv=sys.argv[:1], verbosity=2)


if __name__ == "__main__":
    main()
