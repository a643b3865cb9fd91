"""docs/api.md: the public names of the package with their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from pages.records import ROOT

import mnist_cuda

PAGE = ROOT / "docs" / "api.md"
WIDTH = 100  # of a signature, before it gets a line for each parameter
START = """# The library

What `import mnist_cuda` offers, made from the docstrings by [scripts/docs](../scripts/docs).
[examples/](../examples) has programs that use it.

`mnist_cuda.sklearn.MnistClassifier` is the network as an estimator of scikit-learn (extra `sklearn`).
`mnist_cuda.torch` has the layers as [operators of PyTorch](operators.md).

Where a model is asked for, RUN of the command line will do: a run's name in `runs/`, its folder or file, or `latest`.
An argument of another type, or beyond its range, is a UsageError; wrong images and labels are a DataError.
Both are also a ValueError, and every error below is a MnistCudaError of one line.
The options of a training obey the rules of the flags of `mnist-cuda train`.

A program may end while its daemon threads use engines.
They have two seconds to come back from the engine, and then end with the program, whose exit code stays.
Threads that are no daemons, those of an executor too, are waited for, as Python always does.
"""


class Plain(str):
    """An annotation as it stands in the code."""

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, of: Any) -> str:
    """A call with types and defaults, in one line or with a line for each parameter."""
    found = inspect.signature(of)
    parameters = [
        p if p.annotation is p.empty else p.replace(annotation=Plain(p.annotation))
        for p in found.parameters.values()
        if p.name != "self"
    ]
    result = "" if found.return_annotation in (found.empty, None, "None") else f" -> {found.return_annotation}"
    text = f"{name}{found.replace(parameters=parameters, return_annotation=found.empty)}{result}"
    if len(text) <= WIDTH:
        return text
    lines = [f"    {p}," for p in parameters]
    first = next((k for k, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if first is not None:
        lines.insert(first, "    *,")
    return "\n".join([f"{name}(", *lines, f"){result}"])


def text_of(value: Any) -> str:
    """A docstring."""
    text = inspect.getdoc(value)
    if not text:
        sys.exit(f"scripts/docs api: {value!r} has no docstring")
    return text


def entry(name: str, value: Any) -> Iterator[str]:
    """The Markdown of one name."""
    yield f"\n### {name}\n"
    if not inspect.isclass(value):
        yield f"```python\n{signature(name, value)}\n```\n\n{text_of(value)}\n"
        return
    made = value.__init__ is not object.__init__ and not issubclass(value, Exception)
    yield f"```python\n{signature(name, value) if made else f'class {name}({value.__base__.__name__})'}\n```\n"
    yield f"\n{text_of(value)}\n"
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    for member, of in vars(value).items():
        if member.startswith("_") or member in fields:
            continue
        if isinstance(of, property):
            yield f"\n#### {name}.{member}\n\n{text_of(of)}\n"
        elif inspect.isfunction(of):
            yield f"\n#### {name}.{member}\n\n```python\n{signature(member, of)}\n```\n\n{text_of(of)}\n"


def page() -> str:
    """The whole page."""
    parts = [START]
    for subject, names in mnist_cuda.PUBLIC.items():
        parts.append(f"\n## {subject}\n")
        for name in names:
            parts += entry(name, getattr(mnist_cuda, name))
    return "".join(parts)
