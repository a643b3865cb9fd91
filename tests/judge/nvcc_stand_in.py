"""An nvcc for tests without a GPU: it compiles for the emulator, and notes its command lines in $NVCC_STAND_IN_LOG.

It links the emulator and our kernels in the place of what it was given of them, and makes no shared objects.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KNOWN = ("75", "80", "86", "89", "90")


def compile_own(source: Path, made: str, flags: list[str]) -> int:
    """A user's file, by way of the source that includes it."""
    from mnist_cuda.bench import emulate

    native = emulate.sources()
    text = source.read_text()
    included = Path(re.search(r'#include "(/.*)"', text)[1])
    with tempfile.TemporaryDirectory() as folder:
        rewritten = Path(folder, "rewritten")
        emulate.rewrite(native, native / "gpu", rewritten, emulate.kernel_headers(native))
        emulate.rewrite(native, included.parent, rewritten / "own", [included])
        own = Path(folder, "own.cpp")
        own.write_text(text.replace(str(included), f"{rewritten}/own/{included.name}.cpp"))
        words = ["-std=c++20", *emulate.kernel_flags(native), *emulate.include_flags(native, rewritten), *flags]
        return subprocess.run(["g++", *words, "-c", own, "-o", made]).returncode


def compile_cpp(source: Path, made: str) -> int:
    """A file of the judge's program; what asks the driver becomes gpu_stand_in.cpp, or nothing."""
    from mnist_cuda.bench import emulate

    if source.name == "kernels.cpp":
        source = HERE / "gpu_stand_in.cpp"
    elif source.name not in ("run.cpp", "machine.cpp"):
        source = Path(os.devnull)
    flags = [*emulate.include_flags(emulate.sources(), Path("none")), "-include", HERE / "gpu_stand_in.h"]
    return subprocess.run(["g++", "-std=c++20", "-O1", *flags, "-x", "c++", "-c", source, "-o", made]).returncode


def main(words: list[str]) -> int:
    """As nvcc."""
    if words == ["--list-gpu-arch"]:
        print(*(f"compute_{number}" for number in KNOWN), sep="\n")
        return 0
    if words == ["--version"]:
        print("a stand-in")
        return 0
    with open(os.environ["NVCC_STAND_IN_LOG"], "a") as log:
        print(json.dumps(words), file=log)
    made = words[words.index("-o") + 1]
    if "-c" in words:
        source = Path(words[words.index("-c") + 1])
        if source.name == "own.cu":
            return compile_own(source, made, [word for word in words if word.startswith("-D")])
        if source.suffix == ".cu":  # a kernel of ours
            return subprocess.run(["g++", "-x", "c++", "-c", os.devnull, "-o", made]).returncode
        return compile_cpp(source, made)
    if "-shared" in words:
        Path(made).touch()
        return 0
    from mnist_cuda.bench import emulate

    objects = [word for word in words if word.endswith(".o")]
    parts = emulate.objects("machine", "checks", "kernels", "tables")
    linking = ["-Wl,--allow-multiple-definition", *objects, *parts, "-o", made]
    return subprocess.run(["g++", *map(str, linking)]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
