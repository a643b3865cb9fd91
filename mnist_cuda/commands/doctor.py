"""List GPU, driver, toolkits, libraries and caches, and say what is wrong and how to fix it.

Exit code 4 if there is a GPU and no engine can use it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mnist_cuda.commands.flags import add_json_flag

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = ("mnist-cuda doctor", "mnist-cuda doctor --json doctor.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the facts as a table, then a line for each problem."""
    from mnist_cuda import doctor
    from mnist_cuda.errors import UnavailableError
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    facts = doctor.examine()
    output.write(facts)
    if not output.on_stdout:
        out = console.make_console()
        lines = list(_lines(facts))
        room = max(len(name) for name, _ in lines) + 2
        last = ""
        for name, text in lines:
            console.print_fact(out, "" if name == last else name, text, column=room)
            last = name
        out.print()
        for problem in facts["problems"]:
            out.print(f"PROBLEM  {problem}")
        if not facts["problems"]:
            out.print("no problem found")
    return UnavailableError.exit_code if facts["gpu_there"] and not facts["gpu_usable"] else 0


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is printed: a name and a text each."""
    machine, versions = facts["machine"], facts["versions"]
    cuda = machine["cuda"]
    commit = f", commit {facts['commit'][:12]}" if facts["commit"] else ""
    yield "mnist-cuda", f"{versions['mnist-cuda']}{commit}, in {facts['package']}"
    yield "build", versions["build"]
    yield "python", f"{versions['python']}, numpy {versions['numpy']}, {facts['python']}"
    yield "system", versions["platform"]
    yield "processor", f"{machine['cpu']}, {machine['cores']} of its cores for this process"
    available, total = facts["memory"]["available"], facts["memory"]["total"]
    yield "memory", f"{'-' if available is None else _size(available)} free of {_size(total)}"

    smi = machine["nvidia_smi"]
    for number, gpu in enumerate(machine["gpus"]):
        yield (
            "GPU",
            f"{number}: {gpu['name']}, compute capability {gpu['compute_capability']}, {_size(gpu['memory_bytes'])}",
        )
    if not machine["gpus"]:
        for row in smi:
            yield "GPU", f"{row['name']}, compute capability {row['compute_cap']}, {row['memory.total']} MiB"
        for address in machine["pci_gpus"] if not smi else ():
            yield "GPU", f"from NVIDIA, at PCI {address}"
        if not facts["gpu_there"]:
            yield "GPU", "none"
    driver = machine["driver"] or (smi[0]["driver_version"] if smi else None)
    supports = f", for CUDA {_cuda(cuda['driver_version'])}" if cuda["driver_version"] else ""
    yield "driver", f"{driver or 'of unknown version' if driver or supports else 'none'}{supports}"
    if cuda["compiled"]:
        yield "CUDA code", f"for {cuda['architectures']}, by CUDA {_cuda(cuda['runtime_version'])}"
    else:
        yield "CUDA code", cuda["reason"]
    for toolkit in facts["toolkits"]:
        yield "toolkit", f"nvcc {toolkit['version']}, {toolkit['path']}"
    for library in facts["libraries"]:
        found = f"{library['version'] or 'of unknown version'}, {library['path']}" if library["path"] else "not found"
        use = "; only `bench ops` uses it" if library["name"] == "cufft" else ""
        yield "library", f"{library['name']} {found}{use}"
    for cache in facts["caches"]:
        held = _size(cache["bytes"]) if cache["bytes"] else "nothing yet"
        yield "cache", f"{cache['folder'] or 'no folder'}: {held}"
    for folder, free in facts["disk"].items():
        yield "disk", f"{_size(free)} free in {folder}"


def _size(size: float) -> str:
    """Bytes in the unit that fits."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _cuda(version: int) -> str:
    """1000 * major + 10 * minor as CUDA writes it."""
    return f"{version // 1000}.{version % 1000 // 10}"
