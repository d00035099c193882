"""Makes the mistakes of mutations.txt, one at a time, and says whether the simulator finds them.

    mutate.py [NUMBER ...] [--seeds N] [--need PERCENT]    default: all of the list
    mutate.py --check                                      only: is each listed line there once?

The mutated file is compiled by itself and linked in front of the libraries of a finished build, the one
whose bin is KVERN_BIN_DIR or else the release build; the source tree and the build's own files stay as they are. A mistake is found when the swarm (sim_swarm)
ends with a violation, dies on a check, or does not end.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("mutations.txt")
SEEDS = 1000
# A run of the swarm takes tens of milliseconds; one that takes this long for all does not end.
TIMEOUT_S = 300


class Mutation:
    def __init__(self, block):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        self.number, self.rule, self.path = lines[0].split()
        self.breaks = lines[1].removeprefix("breaks ")
        self.old = lines[2].removeprefix("- ")
        self.new = lines[3].removeprefix("+ ") if len(lines) > 3 else ""

    def mutated(self):
        """The file's text with the mistake in it; ValueError unless the line is there once."""
        lines = (ROOT / self.path).read_text().split("\n")
        places = [i for i, line in enumerate(lines) if line == self.old]
        if len(places) != 1:
            raise ValueError(f"{self.number}: {self.path} has {len(places)} lines '{self.old}'")
        lines[places[0]] = self.new
        return "\n".join(lines)


def read_list():
    blocks = LIST.read_text().strip().split("\n\n")
    return [Mutation(block) for block in blocks if not block.startswith("#")]


class Build:
    def __init__(self):
        folder = os.environ.get("KVERN_BIN_DIR") or ROOT / "build" / "release" / "bin"
        self.dir = pathlib.Path(folder).resolve().parent
        swarm = self.dir / "bin" / "sim_swarm"
        if not swarm.exists():
            sys.exit(f"mutate.py: there is no {swarm}; build sim_swarm, or say in KVERN_BIN_DIR "
                     "where the programs of a build are")
        commands = json.loads((self.dir / "compile_commands.json").read_text())
        self.compile = {entry["file"]: entry for entry in commands}
        printed = subprocess.run(["ninja", "-C", self.dir, "-t", "commands", "sim_swarm"],
                                 check=True, capture_output=True, text=True)
        self.link = printed.stdout.strip().split("\n")[-1]

    def make(self, mutation):
        """The simulator with the mistake, as a program; None: it does not compile."""
        out = self.dir / "mutations" / mutation.number
        source = out / mutation.path
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(mutation.mutated())
        entry = self.compile[str(ROOT / mutation.path)]
        words = shlex.split(entry["command"])
        words[words.index("-o") + 1] = str(out / "mutated.o")
        words[words.index(entry["file"])] = str(source)
        # A dropped line may leave a variable unused; and one file need not be fast.
        words += ["-w", "-O0"]
        if subprocess.run(words, cwd=entry["directory"], stderr=subprocess.DEVNULL).returncode:
            return None
        # Before the libraries: what it defines is then not taken from them.
        program = out / "sim_swarm"
        link = self.link.replace(" -o bin/sim_swarm ", f" {out}/mutated.o -o {program} ")
        subprocess.run(link, shell=True, check=True, cwd=self.dir)
        return program


def hunt(program, seeds):
    """What the swarm says of the program: (found, how)."""
    try:
        run = subprocess.run([program, "1", str(seeds)], capture_output=True, text=True,
                             timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True, "a run does not end"
    lines = run.stdout.strip().split("\n")
    seed = [line for line in lines if line.startswith("seed ")][-1]
    if run.returncode == 0:
        return False, f"not found in {seeds} seeds"
    if run.returncode == 1:
        return True, f"{seed}, {lines[lines.index(seed) + 1]}"
    died = run.stderr.strip().split("\n")[0]
    return True, f"{seed}, died: {died or run.returncode}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--need", type=int, default=100)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    mutations = read_list()
    numbers = [int(m.number) for m in mutations]
    assert numbers == sorted(set(numbers))
    for mutation in mutations:
        mutation.mutated()
    for number in arguments.numbers:
        if number not in numbers:
            parser.error(f"number {number}: the list has 1 to {numbers[-1]}")
    if arguments.check:
        return 0
    build = Build()
    alarm, how = hunt(build.dir / "bin" / "sim_swarm", arguments.seeds)
    if alarm:
        print(f"false alarm without any mistake: {how}")
        return 1
    chosen = [m for m in mutations if not arguments.numbers or int(m.number) in arguments.numbers]
    found = 0
    for mutation in chosen:
        program = build.make(mutation)
        seen, how = hunt(program, arguments.seeds) if program else (False, "does not compile")
        found += seen
        print(f"{mutation.number} {'found' if seen else 'NOT FOUND'} ({mutation.breaks}): {how}",
              flush=True)
    print(f"{found} of {len(chosen)} found, {100 * found // len(chosen)} %")
    return 0 if 100 * found >= arguments.need * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
