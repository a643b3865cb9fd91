"""Judged .py files: functions with an op's name, run by PyTorch on the CPU, a simulator, an interpreter or NumPy."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda.bench.competitors import PEER_PYTHON
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.build import NotCompiledError, Program
from mnist_cuda.judge.signatures import Launcher, op_of

# What a file imports, first match first: what runs it then, and its most products or elements of a case.
RUNNERS = {
    "triton": ("Triton's interpreter", 2_000_000),
    "numba": ("Numba's simulator", 3_000),
    "torch": ("PyTorch on the CPU", 10**9),
    "numpy": ("NumPy", 10**9),
}


def parse(text: str) -> ast.Module:
    """Raises NotCompiledError."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise NotCompiledError(f"line {error.lineno}: {error.msg}") from error


def find(tree: ast.Module) -> tuple[list[Launcher], list[str]]:
    """As signatures.find: functions that take the op's arrays, outputs first, and no sizes, scratch or stream."""
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


def imported(tree: ast.Module) -> set[str]:
    """The packages that the file imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


class PythonProgram(Program):
    """A .py file. Raises UnavailableError where nothing here can run it."""

    def __init__(self, file: Path, packages: Iterable[str]) -> None:
        if "cupy" in packages:
            raise UnavailableError(f"{file}: CuPy runs on a GPU only, and this judge does not use one yet")
        self._package = next((name for name in RUNNERS if name in packages), "numpy")
        python = _python(self._package, file)
        self.by, self._most = RUNNERS[self._package]
        super().__init__(file)
        arrays = "torch" if self._package in ("torch", "triton") else "numpy"
        self.words = (python, Path(__file__).with_name("child.py"), file.resolve(), arrays)

    def environment(self) -> dict[str, str]:
        """Without a GPU."""
        return {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

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
        return json.dumps({"function": launcher.name, "calls": case.calls, "arguments": arguments})

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
