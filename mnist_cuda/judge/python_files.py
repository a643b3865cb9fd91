"""Judged .py files: functions with an op's name, run on the GPU if there is one, else by a simulator or interpreter."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda import _native
from mnist_cuda.bench.competitors import PEER_PYTHON
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.build import NotCompiledError
from mnist_cuda.judge.program import Program
from mnist_cuda.judge.signatures import Launcher, op_of

# What a file imports, first match first: what runs it on a GPU and without one, and there its most products or
# elements of a case.
RUNNERS = {
    "triton": ("Triton on the GPU", "Triton's interpreter", 2_000_000),
    "numba": ("Numba on the GPU", "Numba's simulator", 3_000),
    "cupy": ("CuPy on the GPU", "", 0),
    "torch": ("PyTorch on the GPU", "PyTorch on the CPU", 10**9),
    "numpy": ("", "NumPy", 10**9),
}


def find(text: str) -> tuple[list[Launcher], list[str]]:
    """As signatures.find: functions that take the op's arrays, outputs first, and no sizes, scratch or stream.

    Raises NotCompiledError.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotCompiledError(f"line {error.lineno}: {error.msg}" if error.lineno else error.msg) from error
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte; more brackets than Python nests
        raise NotCompiledError(f"Python cannot read it: {error or type(error).__name__}") from error
    found, others = [], []
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or not (op := op_of(function.name)):
            continue
        taken = [p for p in op.parameters if p.role in ("out", "in", "real")]
        fewer = [p for p in taken if not p.optional]
        count = len(function.args.args)
        if count in (len(taken), len(fewer)):
            parameters = tuple(taken if count == len(taken) else fewer)
            found.append(Launcher(function.name, function.name, op, parameters))
        else:
            wanted = ", ".join(p.name for p in taken)
            others.append(f"{function.name} has {count} parameters, expected def {function.name}({wanted})")
    return found, others


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


class PythonProgram(Program):
    """A .py file with this text. Raises UnavailableError where nothing here can run it."""

    def __init__(self, file: Path, text: str, gpu: bool) -> None:
        packages = _imported(ast.parse(text))
        package = next((name for name in RUNNERS if name in packages), "numpy")
        there, here, most = RUNNERS[package]
        self.timed = gpu and bool(there)
        if not self.timed and not here:
            raise UnavailableError(f"{file}: CuPy runs on a GPU only: {_native.cuda_status()['reason']}")
        self.by, self._most = (there, 10**12) if self.timed else (here, most)
        python = _python(package, file)
        super().__init__(file)
        child = Path(__file__).with_name("child.py")
        self.words = (python, child, file.resolve(), package, "gpu" if self.timed else "cpu")

    def environment(self) -> dict[str, str]:
        """Without a GPU, unless it is to be used."""
        no_gpu = {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        return {**os.environ, **({} if self.timed else no_gpu)}

    def last_case(self, op: judged_ops.Op) -> judged_ops.Case:
        """On a GPU the one that is timed."""
        return op.network if self.timed else super().last_case(op)

    def task(self, number: int, launcher: Launcher, case: judged_ops.Case) -> str:
        """JSON, as child.py reads it."""
        of = launcher.op.sizes(case)
        arguments: list[dict[str, Any]] = []
        for p in launcher.parameters:
            if p.role == "real":
                arguments.append({"value": judged_ops.UPSTREAM})
                continue
            shifted = p.name in case.shifted
            shape = judged_ops.shape_of(p, of)
            arguments.append({"name": p.name, "role": p.role, "kind": p.kind.name, "shape": shape, "shifted": shifted})
        task = {"function": launcher.name, "sets": case.sets, "timed": case.timed, "arguments": arguments}
        return json.dumps(task)

    def takes(self, op: judged_ops.Op, case: judged_ops.Case) -> bool:
        """Numba's simulator has a Python thread for each of CUDA's."""
        of = op.sizes(case)
        return max(op.products(of), int(np.prod(case.sizes))) <= self._most


def _python(package: str, file: Path) -> str:
    """An interpreter that has what the file imports: this one, or that of the peers."""
    needed = ["torch", "triton"] if package == "triton" else [package]
    if all(map(importlib.util.find_spec, needed)):
        return sys.executable
    peer, code = str(PEER_PYTHON), f"import {', '.join(needed)}"
    if PEER_PYTHON.exists() and not subprocess.run([peer, "-c", code], capture_output=True).returncode:
        return peer
    raise UnavailableError(f"{file}: nothing here can run it: python -m pip install {' '.join(needed)}")
