"""Holds a wheel to its promises: its size, the glibc it needs, its architectures, and every command away from home.

The wheel goes into a new environment with what it requires, except for what only a GPU needs. The commands run there
with no compiler, nvcc or checkout to be found and hardly a variable; the tests' own server has the data. Then g++ alone
is visible, and what needs it runs. With --gpu the
wheel is installed by --no-deps into a folder, for the interpreter that runs this and has the rest (MORE are wheels that
it lacks), and every CUDA engine trains in every precision. Needs what the tests need, but for pytest, and MNIST in
MNIST_CUDA_TEST_DATA or ../shared/mnist. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

from checks.runner import ROOT, Problem, tool

LIMIT_MB = 40
LIMIT_GLIBC = (2, 35)  # Ubuntu 22.04's, which is what the most used notebook services run
TRAINED = 0.97  # share of the test images after one epoch, at least
GPU_ONLY = re.compile(r"(nvidia|cuda)-")  # requirements that nothing but a GPU engine wants
PEERS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "mnist_cuda" / "peers").glob("*.py"))]
COMPILER = ("g++", "as", "ld", "addr2line", "nm", "readelf")
MORE = ("pillow>=10.1", "ipython")  # for `predict`, and for a notebook's cells
EXERCISE = "coalesce"  # what `exercise start` writes is not right yet
HIDDEN = ("g++", "gcc", "c++", "cc", "clang", "nvcc", "cmake", "ninja")


class BrokenPromiseError(Exception):
    """What is not as promised, in one line or with the output of the command that failed."""


# ---- the file --------------------------------------------------------------------------------------------------------


def required_glibc(wheel: Path) -> tuple[int, int]:
    """The oldest glibc that the wheel's name allows."""
    found = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)]
    if not found:
        raise BrokenPromiseError(f"{wheel.name} has no manylinux tag, which `auditwheel repair` gives it")
    if min(found) > LIMIT_GLIBC:
        raise BrokenPromiseError(
            f"{wheel.name} needs a newer glibc than {'.'.join(map(str, LIMIT_GLIBC))}: build it on an older system"
        )
    return min(found)


def megabytes(wheel: Path) -> float:
    """The wheel's size in millions of bytes."""
    size = wheel.stat().st_size / 1e6
    if size > LIMIT_MB:
        raise BrokenPromiseError(f"{wheel.name} has {size:.1f} MB, expected at most {LIMIT_MB}")
    return size


def check_contents(wheel: Path) -> None:
    """Only the package is in it, with its peers; no library was put beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    allowed = re.compile(r"mnist_cuda(-[^/]*\.dist-info)?/")
    if foreign := [name for name in names if not allowed.match(name)]:
        raise BrokenPromiseError(f"{wheel.name} also holds {foreign[0]}")
    if len([name for name in names if ".so" in name]) != 1:
        raise BrokenPromiseError(f"{wheel.name} does not hold one shared object, our own")
    if lacking := [name for name in PEERS if name not in names]:
        raise BrokenPromiseError(f"{wheel.name} lacks {lacking[0]}")


def architectures(module: Path, cuobjdump: str) -> set[str]:
    """What cuobjdump finds, as CMake writes it: 80-real is machine code, 80-virtual PTX, 80 both."""

    def listed(what: str) -> set[str]:
        out = subprocess.run(
            [cuobjdump, f"--list-{what}", str(module)], capture_output=True, text=True, check=False
        ).stdout
        return set(re.findall(r"\.sm_(\w+)\.", out))

    real, virtual = listed("elf"), listed("ptx")
    both = real & virtual
    return both | {f"{name}-real" for name in real - both} | {f"{name}-virtual" for name in virtual - both}


def requirements(wheel: Path) -> tuple[list[str], list[str]]:
    """What the wheel requires without extras: for every machine, and for one with a GPU."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    lines = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in lines if not GPU_ONLY.match(line)], [line for line in lines if GPU_ONLY.match(line)]


# ---- where it is installed -------------------------------------------------------------------------------------------


class Place:
    """Where the wheel lies and how its commands run there; every command prints a line with its time."""

    def __init__(self, folder: Path, python: Path, scripts: Path, **variables: str) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        (folder / "home").mkdir()
        self.python, self.program = python, scripts / "mnist-cuda"
        kept = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")  # a container's driver may need them
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"PATH": str(scripts), "HOME": str(folder / "home"), **variables}
        for name in HIDDEN:
            if found := shutil.which(name, path=str(scripts)):
                raise BrokenPromiseError(f"{found} is there; a clean environment has no {name}")

    def _run(self, command: Sequence[str], shown: str, expected: int) -> str:
        start = time.monotonic()
        result = subprocess.run(
            command, env=self.environment, cwd=self.work, capture_output=True, text=True, check=False, timeout=600
        )
        if result.returncode != expected:
            output = f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
            raise BrokenPromiseError(f"exit code {result.returncode}, expected {expected}: {shown}\n{output}")
        print(f"{time.monotonic() - start:6.1f} s  {shown}", flush=True)
        return result.stderr if expected else result.stdout

    def mnist_cuda(self, *arguments: object, expected: int = 0) -> str:
        """Run `mnist-cuda` and return what it prints, or its complaint where an exit code is expected."""
        words = [str(argument) for argument in arguments]
        return self._run(
            [str(self.program), *words], " ".join(["mnist-cuda", *words]).replace(f"{ROOT}/", ""), expected
        )

    def evaluate(self, expression: str, shown: str = "") -> str:
        """A Python expression after `import mnist_cuda`; shown: what the line says of it."""
        code = f"import mnist_cuda, mnist_cuda._native; print({expression})"
        return self._run([str(self.python), "-c", code], shown or expression, 0).strip()


def visible_compiler(folder: Path) -> Path | None:
    """A folder with g++ and what it calls, to go on a PATH; None where this machine has none."""
    tools = folder / "tools"
    tools.mkdir()
    for name in COMPILER:
        if not (found := shutil.which(name)):
            return None
        (tools / name).symlink_to(found)
    return tools


def pip(*arguments: object) -> None:
    """Run pip, and show its output if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BrokenPromiseError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")


def clean_environment(folder: Path, wheels: list[Path], python: str) -> Place:
    """A virtual environment of `python` with the wheels and what the first one requires on a machine without a GPU."""
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", str(environment)], check=True)
    interpreter = environment / "bin" / "python"
    needed, left_out = requirements(wheels[0])
    print(f"not installed, only GPU engines use it: {', '.join(left_out) or 'nothing, the wheel requires none of it'}")
    pip("--python", interpreter, "install", "--no-deps", *wheels)
    pip("--python", interpreter, "install", *needed)
    return Place(folder, interpreter, environment / "bin")


def folder_beside(folder: Path, wheels: list[Path]) -> Place:
    """The wheels without their requirements, in a folder that the interpreter that runs this sees first."""
    site = folder / "site"
    pip("install", "--no-deps", "--target", site, *wheels)
    return Place(folder, Path(sys.executable), site / "bin", PYTHONPATH=str(site))


# ---- what it does there ----------------------------------------------------------------------------------------------


def check_module(place: Place) -> None:
    """It is the wheel's own module, and holds the architectures that it says it does."""
    path = Path(place.evaluate("mnist_cuda._native.__file__"))
    if path.is_relative_to(ROOT):
        raise BrokenPromiseError(f"{path} was imported, expected the wheel's module: this Python has the package")
    claimed = set(place.evaluate("mnist_cuda._native.cuda_status()['architectures']").split(";")) - {""}
    try:
        found = architectures(path, tool("cuobjdump"))
    except Problem as problem:
        print(f"not checked: architectures, because {problem}")
        return
    if found != claimed:
        raise BrokenPromiseError(f"cuobjdump finds {sorted(found)}, the module says {sorted(claimed)}")
    by_number = sorted(found, key=lambda name: int(re.sub(r"\D", "", name)))
    print(f"architectures by cuobjdump: {', '.join(by_number) or 'none'}")


def check_download(place: Place) -> None:
    """`data fetch` from the tests' server, which is handed the real files."""
    data = Path(os.environ.get("MNIST_CUDA_TEST_DATA") or ROOT.parent / "shared" / "mnist")
    sys.path.append(str(ROOT / "tests"))
    import data_server  # it needs the package, which a machine without a checkout's build has in --gpu's folder

    for name in data_server.GZIP:
        if not (data / name).is_file():
            raise BrokenPromiseError(f"{data / name} is not there; name MNIST's folder by MNIST_CUDA_TEST_DATA")
        data_server.GZIP[name] = (data / name).read_bytes()
    with data_server.serve() as server:
        place.mnist_cuda("data", "fetch", "mnist", "--mirror", server.url("good"))
        if len(server.requests) != len(data_server.GZIP):
            raise BrokenPromiseError(f"data fetch asked the server {len(server.requests)} times")


def check_engine(place: Place, engine: str, precision: str) -> None:
    """Train, evaluate, profile and compare with float64."""
    named = ["--engine", engine, "--precision", precision]
    run = f"run-{engine}-{precision}"
    offline = ["--dataset", "mnist", "--offline"]
    place.mnist_cuda("train", *named, *offline, "--epochs", 1, "--out", run)
    lines = (place.work / run / "metrics.jsonl").read_text().splitlines()
    trained = json.loads(lines[-1])["test_accuracy"]
    if not TRAINED <= trained < 1:
        raise BrokenPromiseError(f"{engine} {precision} has {trained} right after an epoch, expected {TRAINED}")
    report = json.loads(place.mnist_cuda("evaluate", run, *named, "--offline", "--json"))
    if not abs(report["accuracy"] - trained) < 1.5e-4:  # the file's float32 may turn one image of 10,000
        raise BrokenPromiseError(f"evaluate says {report['accuracy']}, training said {trained}")
    place.mnist_cuda("profile", *named, *offline, "--steps", 5, "--json", f"profile-{engine}-{precision}.json")
    place.mnist_cuda("bench", "check", "--engines", engine, "--precision", precision, *offline)


def check_bench(place: Place, engines: list[str], peer_python: str | None) -> None:
    """Every engine has a time, and PyTorch where it is there."""
    peers = ["--peers", "torch:eager", "--peer-python", peer_python] if peer_python else ["--peers"]
    sizes = ["--batch-size", 64, "--blocks", 5, "--seconds", 0.3]
    output = ["--json", "bench.json", "--busy"]
    place.mnist_cuda("bench", "--engines", *engines, *peers, "--dataset", "mnist", "--offline", *sizes, *output)
    report = json.loads((place.work / "bench.json").read_text())
    if report["commit"] != os.environ.get("MNIST_CUDA_COMMIT"):
        raise BrokenPromiseError(f"bench says that it runs from commit {report['commit']}")
    wanted = {*engines, "torch eager NCHW"} if peer_python else {*engines}
    if missing := wanted - {row["competitor"] for row in report["rows"] if row["us"]}:
        raise BrokenPromiseError(f"bench has no time of {', '.join(sorted(missing))}")


def check_remedy(place: Place) -> None:
    """Without a checkout there is no scripts/peers: what is said to install is something else."""
    said = place.mnist_cuda("bench", "check", "--engines", "cpu", "--peers", "torch", "--offline", expected=4)
    if "`pip install torch numpy`" not in said or said.count("\n") != 1:
        raise BrokenPromiseError(f"of a peer that is missing it says: {said}")


def check_commands(place: Place, gpu: bool, peer_python: str | None) -> None:
    """All that a user does, without a GPU by the engine `cpu`, with one by every CUDA engine."""
    rows = json.loads(place.mnist_cuda("engines", "--json"))["engines"]
    chosen = [row for row in rows if (row["device"] == "cuda" if gpu else row["name"] == "cpu")]
    if absent := [f"{row['name']}: {row['unavailable']}" for row in chosen if row["unavailable"]]:
        raise BrokenPromiseError(f"an engine cannot run here: {absent[0]}")
    check_download(place)
    for row in chosen:
        for precision in row["precisions"]:
            check_engine(place, row["name"], precision)
    check_bench(place, [row["name"] for row in chosen], peer_python)
    if gpu:
        place.mnist_cuda("bench", "ops", "--op", "relu")
    else:
        check_remedy(place)


def emulated(place: Place, relu: Path) -> dict[str, tuple[str, ...]]:
    """By name, the arguments of what compiles: with a right kernel, and with a few images."""
    return {
        "judge": ("judge", "--emulate", str(relu)),
        "bench": ("bench", "ops", "--emulate", "--op", "relu", "--peers"),
        "train": (
            "train",
            "--emulate",
            "--dataset",
            "mnist",
            "--offline",
            "-b",
            "2",
            "--steps",
            "1",
            "--out",
            "emulated",
        ),
    }


def judge_cell(text: str) -> str:
    """A Python expression: what a notebook's cell of `%%judge` prints."""
    run = "__import__('IPython').core.interactiveshell.InteractiveShell.instance().run_cell"
    return f"{run}('%load_ext mnist_cuda'), {run}({'%%judge' + chr(10) + text!r})"


def check_no_compiler(place: Place) -> None:
    """Whatever needs g++ says so in one line."""
    relu = right_kernel(place)
    said = {name: place.mnist_cuda(*words, expected=4) for name, words in emulated(place, relu).items()}
    said["cell"] = place.evaluate(judge_cell(relu.read_text()), "%%judge").splitlines()[0]
    for name, line in said.items():
        if "apt install g++" not in line or len(line.splitlines()) != 1:
            raise BrokenPromiseError(f"without g++ {name} says: {line}")


def right_kernel(place: Place) -> Path:
    """A file of relu, which is one of ours."""
    file = place.work / "relu.cu"
    file.write_text((ROOT / "native" / "gpu" / "kernels" / "relu" / "naive.cu").read_text())
    return file


def check_compiler(place: Place, tools: Path) -> None:
    """With g++ alone: kernels of one's own, ours in the emulator, and a step of training there."""
    place.environment["PATH"] += f":{tools}"
    if kept := os.environ.get("MNIST_CUDA_TEST_EMULATOR"):  # what the tests have compiled of the same sources
        cache = Path(place.environment["HOME"]) / ".cache" / "mnist-cuda"
        (cache / "emulator").symlink_to(Path(kept, "mnist-cuda", "emulator").resolve())
    relu = right_kernel(place)
    for words in emulated(place, relu).values():
        place.mnist_cuda(*words)
    text = relu.read_text()
    if "RIGHT " not in place.evaluate(judge_cell(text), "%%judge"):
        raise BrokenPromiseError("%%judge does not call a right kernel right")
    place.mnist_cuda("exercise", "start", EXERCISE)
    wrong = place.work / "wrong.cu"
    wrong.write_text(text.replace("if (k >= count) return;", "if (k >= count - 1) return;"))
    for file in (wrong, place.work / f"{EXERCISE}.cu"):
        place.mnist_cuda("judge", "--emulate", file, expected=1)


def check_picture(place: Place) -> None:
    """`predict` reads the digit of the picture that its help names, and no help names what is not there."""
    shown = place.mnist_cuda("predict", "--help")
    (picture,) = re.findall(r"mnist-cuda predict (\S+digit\.png)", shown)
    said = place.mnist_cuda("predict", picture, "--model", "run-cpu-fp32")
    if not said.startswith(f"{picture}: 5"):
        raise BrokenPromiseError(f"of the picture of a 5 predict says: {said}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="the wheel, and others to go with it")
    parser.add_argument(
        "--gpu", action="store_true", help="install with --no-deps for this Python and run every GPU engine"
    )
    parser.add_argument(
        "--python", default=sys.executable, metavar="FILE", help="of the environment (default: this one)"
    )
    parser.add_argument("--peer-python", metavar="FILE", help="has PyTorch (default: .venv-peers, with --gpu this one)")


def run(args: argparse.Namespace) -> int:
    """Check what the command line names; the exit code."""
    wheels = [wheel.resolve() for wheel in args.wheels]
    peers = ROOT / ".venv-peers" / "bin" / "python"
    peer_python = args.peer_python or (sys.executable if args.gpu else str(peers) if peers.exists() else None)
    wheel = wheels[0]
    try:
        glibc = ".".join(map(str, required_glibc(wheel)))
        print(f"{wheel.name}: {megabytes(wheel):.1f} MB, glibc {glibc}")
        check_contents(wheel)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if args.gpu:
                place = folder_beside(folder, wheels)
                sys.path.insert(0, str(folder / "site"))
            else:
                place = clean_environment(folder, wheels, args.python)
            check_module(place)
            if peer_python is None:
                print("not run: PyTorch beside it, because there is no .venv-peers")
            check_commands(place, args.gpu, peer_python)
            if not args.gpu:
                pip("--python", place.python, "install", *MORE)
                check_picture(place)
                check_no_compiler(place)
                if tools := visible_compiler(folder):
                    check_compiler(place, tools)
                else:
                    print(f"not run: the emulator, because this machine lacks one of {', '.join(COMPILER)}")
    except BrokenPromiseError as error:
        print(f"{wheel.name}: broken: {error}", file=sys.stderr)
        return 1
    print(f"{wheel.name}: all as promised")
    return 0
