"""The one reader of JSON that others may have written: bounded, of finite numbers, and of the kinds that we use.

A kind is a type, a list of one kind, an object as a table of kinds by key (one that ends in ? may be missing), or a
tuple of kinds of which one has to fit. A whole number fits `float`; `true` and `false` fit `bool` alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from mnist_cuda.files import read_regular

Kind: TypeAlias = "type | list[Any] | dict[str, Any] | tuple[Any, ...] | None"

LONGEST = 1 << 26  # bytes
DEEPEST = 32  # objects and lists inside each other
_LARGEST = 1e300  # sums of some are still numbers
_NAMES = {
    dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip


def read_json(path: Path, kind: Kind) -> Any:
    """The value in a file. Raises OSError where it cannot be read, ValueError as `parse_json`."""
    return parse_json(read_regular(path, LONGEST), kind)


def read_json_lines(path: Path, kind: Kind) -> list[Any]:
    """The value in each line of a file; otherwise as `read_json`."""
    return [parse_json(line, kind) for line in read_regular(path, LONGEST).splitlines()]


def parse_json(content: bytes | str, kind: Kind) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError, a line, where it is none, or not of this kind."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    try:
        value = json.loads(text, parse_int=_whole, parse_float=_number, parse_constant=_number)
        _require_plain(value, DEEPEST)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if fault := _fault(value, kind, ""):
        raise ValueError(fault)
    return value


def _whole(text: str) -> int:
    _number(text)
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not abs(value) <= _LARGEST:  # nor is NaN
        raise ValueError(f"a number is {text:.20}, expected finite ones of at most {_LARGEST:g}")
    return value


def _require_plain(value: Any, depth: int) -> None:
    """Refuse what is too deep, and text that no file or terminal can hold: half a character."""
    if not depth:
        raise RecursionError
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it has half a character") from None
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else (*value, *value.values()):
            _require_plain(item, depth - 1)


def _fault(value: Any, kind: Kind, place: str) -> str:
    """What is wrong with a value; nothing where it fits."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    found = type(value)
    for one in kinds:
        outer = one if isinstance(one, type) else type(one)
        if not (found is outer or outer is object or (outer is float and found is int)):
            continue
        if isinstance(one, list):
            faults = (_fault(item, one[0], f"{place}[{k}]") for k, item in enumerate(value))
        elif isinstance(one, dict):
            faults = (_fault_of_key(value, key, inner, place) for key, inner in one.items())
        else:
            return ""
        return next(filter(None, faults), "")
    expected = " or ".join(_NAMES[one if isinstance(one, type) else type(one)] for one in kinds)
    return f"{f'`{place}`' if place else 'it'} is {_NAMES[found]}, expected {expected}"


def _fault_of_key(value: dict[str, Any], key: str, kind: Kind, place: str) -> str:
    name = key.removesuffix("?")
    inside = f"{place}.{name}" if place else name
    if name in value:
        return _fault(value[name], kind, inside)
    return "" if name != key else f"`{inside}` is missing"
