"""Which launchers of the ladder's ops a .cu file defines, by its text; the compiler compares their types."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mnist_cuda.judge.judged_ops import OPS, Op, Parameter

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
_VOID = re.compile(r"\bvoid\s+(\w+)\s*\(")


@dataclass(frozen=True)
class Launcher:
    """A function that launches an op's kernels; `parameters` are those of the ladder that it takes."""

    name: str
    qualified: str
    op: Op
    parameters: tuple[Parameter, ...]


def without_comments(text: str) -> str:
    """Lines keep their numbers."""
    return _COMMENT_OR_STRING.sub(lambda m: m[0] if m[0][0] == '"' else "\n" * m[0].count("\n") or " ", text)


def closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` is closed, or the end of the text."""
    pair = {"{": "}", "(": ")"}[text[opening]]
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == text[opening]) - (text[at] == pair)
        if depth == 0:
            return at
    return len(text)


def op_of(function: str) -> Op | None:
    """The op whose launcher has this name, alone or with `_WORDS` behind it."""
    fitting = [name for name in OPS if function == name or function.startswith(f"{name}_")]
    return OPS[max(fitting, key=len)] if fitting else None


def find(text: str) -> tuple[list[Launcher], list[str]]:
    """The launchers, and a sentence for each function that has the name of one, but another signature."""
    text = without_comments(text)
    found: list[Launcher] = []
    others: list[str] = []
    names: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "}" and names:
            names.pop()
        if text[at] != "{":
            at += 1
            continue
        before = text[:at].rstrip()
        if space := _NAMESPACE.search(before):
            names.append(space[1])
            at += 1
        elif re.search(r'extern\s*"C"\s*$', before):
            names.append("")
            at += 1
        else:
            _definition(text, at, [name for name in names if name], found, others)
            at = closing(text, at) + 1
    return found, others


def _definition(text: str, body: int, names: list[str], found: list[Launcher], others: list[str]) -> None:
    """If a launcher's body begins there, append it to what it is."""
    head = text[max(text.rfind(end, 0, body) for end in ";}{") + 1 : body].strip()
    declared = _VOID.search(head)
    if not declared or "__global__" in head or "__device__" in head or not (op := op_of(declared[1])):
        return
    opening = declared.end() - 1
    if closing(head, opening) != len(head) - 1:
        return
    given = [] if head[opening + 1 : -1].strip() in ("", "void") else head[opening + 1 : -1].split(",")
    fitting = [parameters for parameters in op.signatures() if len(parameters) == len(given)]
    if not fitting:
        others.append(other_types(op, declared[1]))
        return
    qualified = "::".join([*names, declared[1]])
    if all(one.qualified != qualified for one in found):  # of overloads the compiler takes the one that fits
        best = max(fitting, key=lambda parameters: sum(map(_alike, given, (p.type for p in parameters))))
        found.append(Launcher(declared[1], qualified, op, best))


def _alike(given: str, wanted: str) -> bool:
    """Whether two types may be the same, as far as an optional parameter shows; the compiler compares them."""
    return all((word in given) == (word in wanted) for word in ("*", "const"))


def signature(op: Op, name: str) -> str:
    """A launcher's declaration."""
    return f"void {name}({', '.join(f'{p.type} {p.name}' for p in op.parameters)})"


def other_types(op: Op, name: str) -> str:
    """A sentence on a function that has the name of a launcher, but another signature."""
    return f"{name} has other parameters than {op.name}'s launchers: {signature(op, name)}"
