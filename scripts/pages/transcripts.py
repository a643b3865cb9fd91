"""What the commands print that the documentation shows.

A transcript is a .txt in docs/records/transcripts. Its first line is the command, after a `$ `; the rest is what the
command prints, errors included. All of them run in the order of their names, in one new folder with a new home and the
checkout's docs/, on the CPU. `./scripts/train` is run as what it runs, `mnist-cuda train`.

Every word and every number is compared, but for the names of runs:

- counts and all other plain numbers must be equal;
- times and rates may be up to TIMES times as large or as small, because machines and their loads differ;
- digests, accuracies and losses must be equal where the compiler and the processor's instructions are those of the file
  `made-by`. Elsewhere the bits differ: an accuracy may be POINTS percentage points away and a loss LOSS of itself, and
  digests are not compared.

pages/tables.py puts transcripts where the documentation shows them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pages.records import ROOT

TRANSCRIPTS = ROOT / "docs" / "records" / "transcripts"
DATA = Path(os.environ.get("MNIST_CUDA_TEST_DATA") or ROOT.parent / "shared" / "mnist")
LIMIT = 300  # seconds a command

MADE_BY = "made-by"

TIMES = 20.0
POINTS = 0.5
LOSS = 0.15

_NUMBER = re.compile(  # every number but the plain ones, by kind
    r"(?P<run>\b\d{8}-\d{6}\b)"  # 20261120-221411
    r"|(?P<digest>(?<=weights )[0-9a-f]{12}\b)"
    r"|(?P<loss>(?<=loss )\d+\.\d+)"
    r"|(?P<accuracy>\d+\.\d+(?= %))"
    r"|(?P<time>\d+(?::\d\d){1,2}|[\d.,]+ s\b|[\d.,]+(?= (?:us/it|us/iteration|img/s)\b)|(?<=mean of the last )\d+)"
)


_ESTIMATE = re.compile(r"(takes  |it takes) (about|at most) ")  # console.Estimate


def _value(number: str) -> float:
    """Of a number as it is printed; of 12.3 s and 1:02:03 in seconds."""
    value = 0.0
    for part in number.replace(",", "").removesuffix(" s").split(":"):
        value = 60 * value + float(part)
    return value


def _alike(kind: str, kept: str, found: str, same_bits: bool) -> bool:
    """Whether one number is as good as the other."""
    if kind == "run" or kept == found or (kind == "digest" and not same_bits):
        return True
    if kind == "digest" or (kind != "time" and same_bits):
        return False
    one, other = _value(kept), _value(found)
    if kind == "accuracy":
        return abs(one - other) <= POINTS
    return max(one, other) <= min(one, other) * (TIMES if kind == "time" else 1 + LOSS)


def same_line(kept: str, found: str, *, same_bits: bool) -> bool:
    """Whether a command may print `found` where the transcript has `kept`."""
    words = [re.sub(r"(?<=\S)  +(?=\S)", "  ", _NUMBER.sub("#", line)) for line in (kept, found)]  # columns vary
    pairs = zip(_NUMBER.finditer(kept), _NUMBER.finditer(found), strict=False)
    return words[0] == words[1] and all(
        one.lastgroup == other.lastgroup and _alike(one.lastgroup or "", one[0], other[0], same_bits)
        for one, other in pairs
    )


def accepted(kept: list[str], found: list[str], *, same_bits: bool) -> list[str]:
    """The lines found, each as the transcript has it if it may stand there; a fast machine prints no estimates."""
    plain, now = ([line for line in lines if not _ESTIMATE.match(line)] for lines in (kept, found))
    if len(plain) != len(now):
        return found
    lines = iter(
        one if same_line(one, other, same_bits=same_bits) else other for one, other in zip(plain, now, strict=True)
    )
    return [one if _ESTIMATE.match(one) else next(lines) for one in kept]


def made_by() -> str:
    """What the bits of an engine on the host depend on."""
    from mnist_cuda import machine

    facts = machine.build()
    return f"{facts['build'].partition(',')[0]}, {facts['instructions']}\n"


def emulator() -> Path:
    """The folder of what the judge runs kernels with, compiled unless it was before, so that no command says so."""
    from mnist_cuda.bench import emulate
    from mnist_cuda.judge import emulated, judging

    emulate.build()
    emulate.objects(*emulated.PARTS)
    judging.judge_file(ROOT / "native" / "gpu" / "kernels" / "relu" / "naive.cu", emulated=True)  # and the headers
    return emulate.cache_folder()


def run(command: str, folder: Path, home: Path) -> str:
    """What a command prints, run in `folder` by a user of this home; its end, if it is not a good one, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MNIST_CUDA_", "XDG_"))}
    environment |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "LC_ALL": "C.UTF-8",
    }
    result = subprocess.run(
        ["bash", "-c", command.replace("./scripts/train", "mnist-cuda train")],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=LIMIT,
    )
    text = result.stdout.replace(str(home), "~").replace(str(folder), ".")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*lines, *([f"(exit code {result.returncode})"] if result.returncode else [])]) + "\n"


def files(data: Path, *, exact: bool) -> dict[Path, str]:
    """The text of each transcript: as it is kept where it may stand, or exactly what is printed.

    data: the folder of MNIST's files.
    """
    of_bits = TRANSCRIPTS / MADE_BY
    found = {of_bits: made_by()} if exact else {}
    same_bits = exact or of_bits.read_text() == made_by()
    if not same_bits:
        print(f"here is {made_by().strip()}, and the transcripts are by {of_bits.read_text().strip()}: no digests")
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name).resolve() / "work", Path(name).resolve() / "home"
        folder.mkdir()
        (folder / "docs").symlink_to(ROOT / "docs")
        cache = home / ".cache" / "mnist-cuda" / "mnist"
        cache.mkdir(parents=True)
        for file in data.glob("*.gz"):
            (cache / file.name).symlink_to(file.resolve())
        if any(path.read_text().startswith("$ mnist-cuda exercise") for path in TRANSCRIPTS.glob("*.txt")):
            (cache.parent / "emulator").symlink_to(emulator())
        for path in sorted(TRANSCRIPTS.glob("*.txt")):
            head, *kept = path.read_text().splitlines()
            lines = run(head.removeprefix("$ "), folder, home).splitlines()
            found[path] = "\n".join([head, *(lines if exact else accepted(kept, lines, same_bits=same_bits)), ""])
    return found
