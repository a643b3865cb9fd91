"""The programs of examples/one_step: builds each that can run here, holds it against float64, and prints its time.

A program is right if its losses, and the twelve gradients of its first step, are within the bounds of 9_engine.py.
With a GPU all of them run, else those for a CPU. Exits with 1 if a bound is broken or a program fails.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from checks.runner import ROOT, Problem, python, tool

FOLDER = ROOT / "examples" / "one_step"
NVIDIA = Path(sysconfig.get_path("purelib"), "nvidia")  # wheels' headers and libraries


@dataclass(frozen=True)
class Program:
    """file: its name in FOLDER. compiler: nothing for Python. lines: the most that it may have."""

    file: str
    lines: int
    compiler: str = ""
    on_gpu: bool = True
    precision: str = "fp32"

    @property
    def name(self) -> str:
        """Its name without the ending."""
        return self.file.partition(".")[0]


PROGRAMS = (
    Program("1_autograd.py", 150, on_gpu=False),
    Program("2_numpy.py", 130, on_gpu=False),
    Program("3_plain.c", 320, "gcc -O3 -march=native {source} -o {target} -lm", on_gpu=False),
    Program("4_naive.cu", 380, "{nvcc} -O3 {source} -o {target}"),
    Program("5_tiled.cu", 460, "{nvcc} -O3 {source} -o {target}"),
    Program("6_libraries.cu", 400, "{nvcc} -O3 {flags} {source} -o {target} {libraries}"),
    Program("7_triton.py", 260),
    Program("8_tensor_cores.cu", 500, "{nvcc} -O3 -arch=sm_80 {source} -o {target}", precision="bf16"),
    Program("9_engine.py", 80),
)


def libraries(nvidia: Path) -> tuple[list[str], list[str]]:
    """How nvcc finds cuDNN and cuBLAS in a folder of wheels: flags before and after the source."""
    flags, after = ["-w"], []  # cuDNN calls its older functions, which are the simpler ones, deprecated
    for name in ("cudnn", "cublas"):
        for file in sorted(nvidia.glob(f"*/lib/lib{name}.so.*")):
            flags.append(f"-I{file.parents[1]}/include")
            after += ["-Xlinker", str(file), "-Xlinker", f"-rpath={file.parent}"]
            break
        else:
            after.append(f"-l{name}")
    return flags, after


def build(
    program: Program, folder: Path, *, source: Path | None = None, nvidia: Path = NVIDIA, nvcc: str = ""
) -> list[str]:
    """Compile a program into a folder; the command that runs it. Raises Problem with what the compiler says."""
    source, target = source or FOLDER / program.file, folder / program.name
    if not program.compiler:
        return [python(), str(source)]
    flags, after = libraries(nvidia)
    parts = {"source": [str(source)], "target": [str(target)], "flags": flags, "libraries": after}
    words: list[str] = []
    for word in program.compiler.split():
        key = word[1:-1]
        words += parts[key] if key in parts else [nvcc or tool("nvcc")] if key == "nvcc" else [word]
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode:
        raise Problem(f"{program.file} does not compile: {shlex.join(words)}\n{result.stderr.strip()}", 1)
    return [str(target)]


def write_start(file: Path, data_dir: Path | None, *words: str) -> None:
    """The file that all programs start from; words: options of 9_engine.py."""
    where = ["--data-dir", str(data_dir)] if data_dir else []
    subprocess.run([python(), str(FOLDER / "9_engine.py"), "--write", str(file), *where, *words], check=True)


def compared(program: Program, command: list[str], start: Path, folder: Path) -> tuple[bool, str]:
    """Whether a program is within its bounds, and what it and the comparison print."""
    run = shlex.join([*command, str(start), str(folder / f"{program.name}.bin")])
    words = [python(), str(FOLDER / "9_engine.py"), str(start), "--compare", run, "--precision", program.precision]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode == 0, result.stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--data-dir", type=Path, help="where MNIST is, if not in the cache")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these programs, such as 4_naive")
    parser.add_argument("--nvidia", type=Path, default=NVIDIA, help="the folder with the wheels of cuDNN and cuBLAS")
    parser.add_argument("--batch", default="64", help="images of a step")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write a record; and the table beside it, .txt")
    parser.add_argument("--busy", action="store_true", help="write it on a busy machine, too")


def run(args: argparse.Namespace) -> int:
    """Build, compare and time; the exit code."""
    from mnist_cuda.bench.record import Record
    from mnist_cuda.engine import find_engine

    record = Record(args.json, busy=args.busy)
    gpu = not find_engine("naive").unavailable
    names = args.only or [program.name for program in PROGRAMS if gpu or not program.on_gpu] + ["9_engine"] * (not gpu)
    rows, texts = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder, start = Path(temporary), Path(temporary, "start.bin")
        write_start(start, args.data_dir, "--batch", args.batch)
        for program in PROGRAMS:
            if program.name not in names:
                continue
            if program.name == "9_engine":
                words = [python(), str(FOLDER / program.file), str(start), "--engine", "fused" if gpu else "cpu"]
                result = subprocess.run(words, stdout=subprocess.PIPE, text=True)
                right, output = result.returncode == 0, result.stdout
            else:
                right, output = compared(program, build(program, folder, nvidia=args.nvidia), start, folder)
            time, accuracy = (re.search(rf"([\d.]+) {unit}", output) for unit in ("us per step", "% of the test"))
            lines = len((FOLDER / program.file).read_text().splitlines())
            row = {"program": program.file, "lines": lines, "right": right, "output": output}
            row["us"] = float(time[1]) if time else None
            rows.append(row)
            us = f"{row['us']:>12,.0f}" if time else f"{'-':>12}"
            percent = f"{accuracy[1]} %" if accuracy else "-"
            texts.append(f"{program.file:18} {lines:5}  {us}  {percent:>8}  {'right' if right else 'WRONG'}")
            print(texts[-1], flush=True)
            if not right:
                print(output, file=sys.stderr)
    if record:
        record.write({"batch_size": int(args.batch), "rows": rows})
        head = f"{'program':18} {'lines':>5}  {'us per step':>12}  {'accuracy':>8}\n"
        args.json.with_suffix(".txt").write_text(head + "\n".join(texts) + "\n")
    return 0 if all(row["right"] for row in rows) else 1
