"""The process that runs a judged .py file. It knows inputs and no answers. Needs numpy and what the file imports.

Usage: child.py FILE ARRAYS TASKS INPUTS OUTPUTS RESULTS, with ARRAYS numpy or torch; python_files.py writes TASKS, a
line each in JSON, and native/gpu/judge/run.cpp says what the other files are.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

GUARD = 256  # bytes around an array
SEEN = 0xA5  # in all of them


class Array:
    """An argument: its bytes between guards."""

    def __init__(self, name: str, role: str, kind: str, shape: list[int], shifted: bool) -> None:
        self.name, self.role = name, role
        each = np.dtype(kind).itemsize
        self.bytes = int(np.prod(shape)) * each
        self.first = GUARD + (each if shifted else 0)
        self.all = np.full(self.first + self.bytes + GUARD, SEEN, np.uint8)
        self.own = self.all[self.first : self.first + self.bytes]
        self.values = self.own.view(kind).reshape(shape)
        self.given = b""

    def outside(self) -> bool:
        """Whether a guard was written."""
        return bool((self.all[: self.first] != SEEN).any() or (self.all[self.first + self.bytes :] != SEEN).any())


def main(file: str, kind: str, tasks: str, inputs: str, outputs: str, results: str) -> None:
    """Run all tasks."""
    spec = importlib.util.spec_from_file_location("judged", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).parent))
    with open(inputs, "rb") as given, open(outputs, "wb") as left, open(results, "w") as lines:
        failed = ""
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            failed = words(error, file)
        for number, line in enumerate(Path(tasks).read_text().splitlines()):
            task = json.loads(line)
            arguments: list[Any] = [Array(**one) if "name" in one else one["value"] for one in task["arguments"]]
            arrays = [one for one in arguments if isinstance(one, Array)]
            first = b""
            for call in range(task["calls"]):
                for array in arrays:
                    if array.role == "out":
                        array.own[:] = 0xFF  # NaN
                    elif call != 1:
                        array.given = given.read(array.bytes)
                        array.own[:] = np.frombuffer(array.given, np.uint8)
                why = failed
                if not why:
                    try:
                        getattr(module, task["function"])(*(wrapped(one, kind) for one in arguments))
                    except Exception as error:
                        why = words(error, file)
                outside = [array.name for array in arrays if array.outside()]
                if outside and not why:
                    why = f"writes outside of {', '.join(outside)}"
                found = b"".join(array.own.tobytes() for array in arrays if array.role == "out")
                left.write(found)
                left.flush()
                changed = [k for k, a in enumerate(arrays) if a.role == "in" and a.own.tobytes() != a.given]
                differs, first = call == 1 and found != first, first or found
                report: dict[str, Any] = {"faults": [], "lines": [], "kernels": [{}]}
                answer = {"task": number, "call": call, "failed": why, "refused": False, "changed": changed}
                print(json.dumps({**answer, "differs": differs, "report": report}), file=lines, flush=True)


def wrapped(argument: Any, kind: str) -> Any:
    """As the file takes it."""
    if not isinstance(argument, Array):
        return argument
    if kind == "torch":
        import torch

        return torch.from_numpy(argument.values)
    return argument.values


def words(error: Exception, file: str) -> str:
    """What was raised, and by which line of the file."""
    place, traceback = "", error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == file:
            place = f"line {traceback.tb_lineno}: "
        traceback = traceback.tb_next
    return f"{place}{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
