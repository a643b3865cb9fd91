"""What an option may be: one rule each, for the flag of the command line and for the parameter in Python.

A rule, called with a parameter's name and value, gives the value as Python's own number or text, or raises UsageError.
Its `fault` says in a few words what is wrong with a value, for flags as well; nothing where it is right.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mnist_cuda import MAX_THREADS
from mnist_cuda.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value in a message: one line, short, and of an array or a table its type alone."""
    plain = value is None or isinstance(value, str | bytes | numbers.Number | tuple | list | dict)
    try:
        text = repr(value) if plain else f"of type {type(value).__name__}"
    except (ValueError, RecursionError):  # an int of too many digits, a list that holds itself
        text = f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


@dataclass(frozen=True)
class Rule:
    """The part that all rules have. expected: what is right, in words."""

    expected: str

    def __call__(self, name: str, value: object) -> Any:
        if self.fault(value):
            raise UsageError(f"{name} is {shown(value)}, expected {self.expected}")
        return self.value(value)

    def fault(self, value: Any) -> str:
        raise NotImplementedError

    def value(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Number(Rule):
    """kind: int or float; numbers of numpy are such, too, True and False are none."""

    kind: type
    least: float = 0
    most: float = math.inf

    def fault(self, value: Any) -> str:
        of_kind = isinstance(value, numbers.Integral if self.kind is int else numbers.Real)
        if isinstance(value, bool) or not of_kind:
            return f"is not {self.name}"
        if self.kind is float and not math.isfinite(self.value(value)):
            return "is not a finite number"
        if value < self.least:
            how = "negative" if self.least == 0 else "too small"
            return f"is {how}, expected at least {self.least}"
        return f"is too large, expected at most {self.most}" if value > self.most else ""

    @property
    def name(self) -> str:
        return "a whole number" if self.kind is int else "a number"

    def value(self, value: Any) -> Any:
        try:
            return self.kind(value)
        except OverflowError:
            return math.inf


def whole(least: int, most: int | None = None) -> Number:
    """The rule of whole numbers from `least` on, up to `most` where there is a bound."""
    expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    return Number(expected, int, least, math.inf if most is None else most)


@dataclass(frozen=True)
class Choice(Rule):
    """One of some words."""

    words: tuple[str, ...]

    def fault(self, value: Any) -> str:
        return "" if isinstance(value, str) and value in self.words else f"is unknown, expected {self.expected}"

    def value(self, value: Any) -> str:
        return str(value)


def choice(*words: str) -> Choice:
    """The rule of these words."""
    return Choice(" or ".join(", ".join(words).rsplit(", ", 1)), words)


RISE = 0.2  # of a triangle without a fraction


def rise_of(shape: str) -> float | None:
    """The part of the steps in which a rate of this shape rises; None for one that is constant. ValueError."""
    name, colon, fraction = shape.partition(":")
    if colon:
        rise = float(fraction) if name == "triangle" else math.nan
        if not 0 <= rise <= 1:
            raise ValueError(shape)
        return rise
    known = {"constant": None, "linear": 0.0, "triangle": RISE}
    if name not in known:
        raise ValueError(shape)
    return known[name]


@dataclass(frozen=True)
class _Shape(Rule):
    """Of a learning rate over a training."""

    def fault(self, value: Any) -> str:
        try:
            rise_of(value if isinstance(value, str) else "")
        except ValueError:
            return f"is unknown, expected {self.expected}"
        return ""

    def value(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True)
class Kind(Rule):
    """Of a type."""

    types: tuple[type, ...]

    def fault(self, value: Any) -> str:
        return "" if isinstance(value, self.types) else f"is not {self.expected}"


class _Path(Kind):
    """Which a file can have: not empty, without a 0."""

    def fault(self, value: Any) -> str:
        bad = not isinstance(value, self.types) or value == "" or "\0" in str(value)
        return f"is not {self.expected}" if bad else ""


class _Switch(Kind):
    """Also one of numpy."""

    def fault(self, value: Any) -> str:
        return "" if type(value).__name__ in ("bool", "bool_") else f"is not {self.expected}"

    def value(self, value: Any) -> bool:
        return bool(value)


class _Several(Kind):
    """Which a text is not, although it has letters, nor an array of one number."""

    def fault(self, value: Any) -> str:
        single = isinstance(value, str | bytes) or getattr(value, "shape", None) == ()
        return f"is not {self.expected}" if single else super().fault(value)


@dataclass(frozen=True)
class Optional(Rule):
    """None, or as `rule` says."""

    rule: Rule

    def fault(self, value: Any) -> str:
        return "" if value is None else self.rule.fault(value)

    def value(self, value: Any) -> Any:
        return None if value is None else self.rule.value(value)


def optional(rule: Rule) -> Optional:
    """The rule of a value that may be left out."""
    return Optional(f"{rule.expected}, or None", rule)


def checked(**of: Rule) -> Callable[[Function], Function]:
    """Has a function's parameters of these names obey rules, before it is called."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            given = signature.bind(*args, **keywords).arguments
            for name, value in given.items():
                if name in of:
                    of[name](name, value)
            return function(*args, **keywords)

        return cast(Function, call)

    return decorate


MOST = 2**31 - 1  # what an engine counts with

COUNT = whole(1, MOST)
NATURAL = whole(0)
INTEGER = Number("a whole number", int, -math.inf)
GPU = whole(0, MOST)
THREADS = whole(0, MAX_THREADS)  # 0 for one per core
PROCESSES = whole(1, MAX_THREADS)
RATE = Number("a finite number of at least 0", float)
PERCENT = Number("a number from 0 to 100 per cent", float, 0, 100)
SCHEDULE = _Shape("constant, linear or triangle[:FRACTION] with a fraction of the steps from 0 to 1")
EVAL_BN = choice("population", "batch")
PLACEMENT = choice("device", "host")
SWITCH = _Switch("True or False", (bool,))
PATH = _Path("a path", (str, os.PathLike))
TEXT = Kind("text", (str,))
SEVERAL = _Several("a list of them", (Iterable,))
FUNCTION = Kind("a function", (Callable,))  # type: ignore[arg-type]
SIZE = Number("a whole number of 32 bits", int, -MOST, MOST)  # whose bounds the engine knows better
BATCH = Number("a whole number of 64 bits", int, -(2**63), 2**63 - 1)  # likewise
