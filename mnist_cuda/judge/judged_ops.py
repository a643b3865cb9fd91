"""The ops that the judge knows, as data: parameters of their launchers, answers in float64, and the cases.

An answer comes with a bound for each element, for the rounding errors of a sum grow with the magnitudes of its terms.
Where nothing is summed, the same value is expected, NaN and infinity included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Sizes = Mapping[str, int]

ROUNDING = 2.0**-24  # of float32
TF32 = 2.0**-10  # of a product of two factors in tf32
EPSILON = 1e-5  # of batch norm
BINS = 256  # of a histogram of pixels
DEAD = 4  # the route of a window that relu stopped
UPSTREAM = 0.75
BATCH = 256  # images of the network's own sizes
TIMED_SETS = 3  # of inputs, one call after the other
TIMED_CALLS = 10  # the last one is many back to back


@dataclass(frozen=True)
class Parameter:
    """Of a launcher. `role`: out, in, scratch, size or real; `shape` is of sizes, such as `planes 2*side 2*side`.

    Scratch has the size that the C++ function of that name gives. Our own launchers lack those that are `optional`.
    """

    name: str
    role: str
    type: str
    shape: str = ""
    optional: bool = False

    @property
    def kind(self) -> np.dtype[Any]:
        """Of an array's elements."""
        return np.dtype(np.uint8 if "uint8" in self.type else np.int32 if "int*" in self.type else np.float32)


def out(name: str, shape: str, type: str = "float*") -> Parameter:
    """An array that the op sets."""
    return Parameter(name, "out", type, shape)


def given(name: str, shape: str, type: str = "const float*", optional: bool = False) -> Parameter:
    """An array that the op reads."""
    return Parameter(name, "in", type, shape, optional)


def scratch(name: str, size: str) -> Parameter:
    """Memory for what lies between launches."""
    return Parameter(name, "scratch", "float*", size, size != "statistics")


def sizes(*names: str) -> tuple[Parameter, ...]:
    """The first one has 64 bits."""
    return tuple(Parameter(name, "size", "int" if k else "std::int64_t") for k, name in enumerate(names))


@dataclass(frozen=True)
class Answer:
    """Of one output, in float64. `scale`: the sum of the magnitudes of each element's `terms`; None: it is exact."""

    value: NDArray[Any]
    scale: NDArray[np.float64] | None = None
    terms: int = 1

    def bound(self, tf32: bool) -> NDArray[np.float64] | float:
        """How far an element may be from it. Roundings are random, so they grow with the root of their number."""
        if self.scale is None:
            return 0.0
        relative = ROUNDING * (2 * float(np.sqrt(self.terms)) + 4) + (TF32 if tf32 else 0)
        return np.asarray(relative * self.scale + 1e-37, np.float64)


@dataclass(frozen=True)
class Case:
    """Sizes, what the inputs are filled with, and arrays that begin one element behind an aligned address.

    timed: whether the calls are timed, the last one as many back to back.
    """

    sizes: tuple[int, ...]
    fill: str = "normal"
    shifted: tuple[str, ...] = ()
    calls: int = 3
    timed: bool = False

    @property
    def sets(self) -> list[int]:
        """Which set of inputs each call gets: the first two the same, unless they are timed; then a new one."""
        return [n % TIMED_SETS if self.timed else max(0, n - 1) for n in range(self.calls)]


@dataclass(frozen=True)
class Op:
    """`cost`: the case whose accesses are counted; `products(sizes)`: its multiply-adds, 0 where bytes decide."""

    name: str
    launcher: str
    parameters: tuple[Parameter, ...]
    answer: Callable[[Arrays, Sizes], dict[str, Answer]]
    cases: tuple[Case, ...]
    cost: Case
    products: Callable[[Sizes], int] = field(default=lambda _: 0)

    @property
    def size_names(self) -> list[str]:
        """In the launcher's order."""
        return [p.name for p in self.parameters if p.role == "size"]

    def sizes(self, case: Case) -> dict[str, int]:
        """The case's, by name."""
        return dict(zip(self.size_names, case.sizes, strict=True))

    @property
    def network(self) -> Case:
        """The case that is timed: the sizes at which `bench ops` times the op's rows."""
        sizes = {
            ("batch", "in", "out"): (BATCH, 3136, 128),
            ("batch", "in", "out", "side"): (BATCH, 32, 64, 14),
            ("count",): (BATCH * 64 * 196,),
            ("planes", "side"): (BATCH * 32, 14),
            ("batch", "channels", "area"): (BATCH, 32, 784),
            ("batch", "classes"): (BATCH, 10),
            ("batch", "out", "side"): (BATCH, 32, 28),
            ("rows", "columns"): (BATCH * 64, 196) if self.name == "row_sums" else (BATCH, 3136),
            ("pixel_count",): (BATCH * 784,),
        }
        return Case(sizes[tuple(self.size_names)], calls=TIMED_CALLS, timed=True)

    def arrays(self, role: str) -> list[Parameter]:
        return [p for p in self.parameters if p.role == role]

    def signatures(self) -> Iterable[tuple[Parameter, ...]]:
        """The launchers' parameters that are taken: the ladder's, and those of launchers that lack optional ones."""
        optional = [p for p in self.parameters if p.optional]
        for bits in range(2 ** len(optional)):
            left_out = {p.name for k, p in enumerate(optional) if bits >> k & 1}
            yield tuple(p for p in self.parameters if p.name not in left_out)


def shape_of(parameter: Parameter, of: Sizes) -> tuple[int, ...]:
    """Such as `planes 2*side` or `side/2` with the sizes put in."""

    def value(word: str) -> int:
        product, (factors, _, divisor) = 1, word.partition("/")
        for factor in factors.split("*"):
            product *= int(factor) if factor.isdigit() else of[factor]
        return product // int(divisor or 1)

    return tuple(value(word) for word in parameter.shape.split())


# ---- answers ---------------------------------------------------------------------------------------------------------


def _linear(a: Arrays, of: Sizes) -> dict[str, Answer]:
    x, w, bias = a["x"], a["w"], a["bias"]
    return {"y": Answer(x @ w.T + bias, abs(x) @ abs(w).T + abs(bias), of["in"])}


def _linear_relu(a: Arrays, of: Sizes) -> dict[str, Answer]:
    y = _linear(a, of)["y"]
    return {"y": Answer(np.maximum(y.value, 0), y.scale, y.terms)}


def _linear_backward(a: Arrays, of: Sizes) -> dict[str, Answer]:
    dy, x, w = a["dy"], a["x"], a["w"]
    return {
        "dx": Answer(dy @ w, abs(dy) @ abs(w), of["out"]),
        "dw": Answer(dy.T @ x, abs(dy).T @ abs(x), of["batch"]),
        "dbias": Answer(dy.sum(0), abs(dy).sum(0), of["batch"]),
    }


def _windows(x: NDArray[Any]) -> NDArray[Any]:
    """(B,I,S,S) to (B,I,S,S,3,3): what each 3x3 filter sees, zeros around the image."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows: NDArray[Any] = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows


def _convolved(x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.einsum("bipquv,oiuv->bopq", _windows(x), w, optimize=True))


def _conv2d(a: Arrays, of: Sizes) -> dict[str, Answer]:
    x, w, bias = a["x"], a["w"], a["bias"][:, None, None]
    return {"y": Answer(_convolved(x, w) + bias, _convolved(abs(x), abs(w)) + abs(bias), 9 * of["in"])}


def _conv2d_backward_data(a: Arrays, of: Sizes) -> dict[str, Answer]:
    dy, turned = a["dy"], a["w"][:, :, ::-1, ::-1].swapaxes(0, 1)
    return {"dx": Answer(_convolved(dy, turned), _convolved(abs(dy), abs(turned)), 9 * of["out"])}


def _conv2d_backward_weight(a: Arrays, of: Sizes) -> dict[str, Answer]:
    def product(dy: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.einsum("bopq,bipquv->oiuv", dy, _windows(x), optimize=True))

    terms = of["batch"] * of["side"] ** 2
    return {"dw": Answer(product(a["dy"], a["x"]), product(abs(a["dy"]), abs(a["x"])), terms)}


def _relu(a: Arrays, of: Sizes) -> dict[str, Answer]:
    passes = ~(a["x"] <= 0)
    return {"y": Answer(np.where(passes, a["x"], 0)), "pass": Answer(passes.astype(np.uint8))}


def _relu_max_pool2d(a: Arrays, of: Sizes) -> dict[str, Answer]:
    planes, side = of["planes"], of["side"]
    x = a["x"].reshape(planes, side, 2, side, 2).transpose(0, 1, 3, 2, 4).reshape(planes, side, side, 4)
    # The first NaN wins, or else the first maximum.
    route = np.where(np.isnan(x).any(-1), np.isnan(x).argmax(-1), np.nan_to_num(x, nan=-np.inf).argmax(-1))
    best = np.take_along_axis(x, route[..., None], -1)[..., 0]
    dead = best <= 0
    return {"y": Answer(np.where(dead, 0, best)), "route": Answer(np.where(dead, DEAD, route).astype(np.uint8))}


def _relu_max_pool2d_backward(a: Arrays, of: Sizes) -> dict[str, Answer]:
    planes, side = of["planes"], of["side"]
    chosen = a["route"][..., None] == np.arange(4)
    dx = np.where(chosen, a["dy"][..., None], 0).reshape(planes, side, side, 2, 2)
    return {"dx": Answer(dx.transpose(0, 1, 3, 2, 4).reshape(planes, 2 * side, 2 * side))}


def _statistics(x: NDArray[Any]) -> tuple[Answer, Answer]:
    """Mean and variance by channel. A difference from the mean is as exact as numbers of the mean's size are."""
    terms = x.size // x.shape[1]
    mean, var = x.mean((0, 2)), x.var((0, 2))
    level = abs(x).mean((0, 2))
    return Answer(mean, level, terms), Answer(var, var + level * np.sqrt(var) + 1e-6 * level**2, terms)


def _batch_norm_forward(a: Arrays, of: Sizes) -> dict[str, Answer]:
    x, gamma, beta = a["x"], a["gamma"][:, None], a["beta"][:, None]
    mean, var = (each.value[:, None] for each in _statistics(x))
    level = abs(x).mean((0, 2))[:, None]
    sigma = np.sqrt(var + EPSILON)
    xhat = (x - mean) / sigma
    scale = abs(gamma) * ((abs(x) + level) / sigma + abs(xhat) * (1 + level / sigma)) + abs(beta)
    return {"y": Answer(gamma * xhat + beta, scale, of["batch"] * of["area"])}


def _batch_norm_backward(a: Arrays, of: Sizes) -> dict[str, Answer]:
    dy, x = a["dy"], a["x"]
    gamma, mean, sigma = a["gamma"][:, None], a["mean"][:, None], np.sqrt(a["var"][:, None] + EPSILON)
    terms = of["batch"] * of["area"]
    xhat, level = (x - mean) / sigma, (abs(x) + abs(mean)) / sigma
    dbeta, dgamma = (each.sum((0, 2), keepdims=True)[0] for each in (dy, dy * xhat))
    of_dbeta, of_dgamma = (each.sum((0, 2), keepdims=True)[0] for each in (abs(dy), abs(dy) * level))
    dx = gamma / sigma * (dy - dbeta / terms - xhat * dgamma / terms)
    of_dx = abs(gamma) / sigma * (abs(dy) + of_dbeta / terms + level * (of_dgamma + abs(dgamma)) / terms)
    return {
        "dx": Answer(dx, of_dx, terms),
        "dgamma": Answer(dgamma[:, 0], of_dgamma[:, 0], terms),
        "dbeta": Answer(dbeta[:, 0], of_dbeta[:, 0], terms),
    }


def _log_softmax(a: Arrays, of: Sizes) -> dict[str, Answer]:
    x = a["x"]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top = x.max(-1, keepdims=True)
        log_sum = np.log(np.exp(x - top).sum(-1, keepdims=True))
        log_p = x - top - log_sum
        scale = abs(x) + abs(top) + abs(log_sum) + 1
    return {"log_p": Answer(log_p, np.where(np.isfinite(scale), scale, 0), of["classes"])}


def _log_softmax_nll_backward(a: Arrays, of: Sizes) -> dict[str, Answer]:
    p, each = np.exp(a["log_p"]), UPSTREAM / of["batch"]
    is_label = a["labels"][:, None] == np.arange(of["classes"])
    return {"dx": Answer(each * (p - is_label), each * (p + is_label), 4)}


def _row_sums(a: Arrays, of: Sizes) -> dict[str, Answer]:
    kept = np.where(np.arange(of["columns"]) < a["length"][:, None], a["x"], 0)
    return {"y": Answer(kept.sum(1), abs(kept).sum(1), of["columns"])}


def _layer_of_one_channel(a: Arrays, of: Sizes) -> dict[str, Answer]:
    """The maximum of each window after batch norm: its first place, or DEAD where relu stops it."""
    half = of["side"] // 2
    per_channel = {name: a[name][:, None, None] for name in ("bias", "gamma", "beta", "mean", "var")}
    factor = per_channel["gamma"] / np.sqrt(per_channel["var"] + EPSILON)
    x, w = a["x"][:, None], a["w"][:, None]
    y = factor * (_convolved(x, w) + per_channel["bias"] - per_channel["mean"]) + per_channel["beta"]
    scale = abs(factor) * (_convolved(abs(x), abs(w)) + abs(per_channel["bias"]) + abs(per_channel["mean"]))
    scale += abs(per_channel["beta"])

    def windows(values: NDArray[Any]) -> NDArray[Any]:
        shape = (of["batch"], of["out"], half, 2, half, 2)
        of_windows: NDArray[Any] = values.reshape(shape).swapaxes(3, 4).reshape(*shape[:3], half, 4)
        return of_windows

    best, dead = windows(y).max(-1), windows(y).max(-1) <= 0
    route = np.where(dead, DEAD, windows(y).argmax(-1)).astype(np.uint8)
    return {"a": Answer(np.where(dead, 0, best), windows(scale).max(-1), 16), "route": Answer(route)}


# ---- inputs ----------------------------------------------------------------------------------------------------------

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1.5, -1.5, 3.4e38, -3.4e38, 1e-45], dtype=np.float32
)


def inputs(op: Op, case: Case, seed: int) -> Arrays:
    """The arrays that the op reads, in float32 or bytes; another seed gives others."""
    rng = np.random.default_rng([seed, *case.sizes])
    of = op.sizes(case)
    made: Arrays = {}
    for parameter in op.arrays("in"):
        shape = shape_of(parameter, of)
        name = parameter.name
        if parameter.kind != np.float32:
            made[name] = _integers(name, of, rng, shape, made).astype(parameter.kind)
            continue
        values: NDArray[Any] = rng.standard_normal(shape).astype(np.float32)
        if name == "var":
            values = values**2 + np.float32(0.1)
        if case.fill == "special" and name in ("x", "dy"):
            values = rng.choice(SPECIAL, shape)
            if op.name == "log_softmax":  # -3e38 in every row would leave little to see
                values = np.where(abs(values) > 1e38, np.float32(-200), values)
                values[len(values) // 2 :] = np.where(np.isfinite(values), values, np.float32(0))[len(values) // 2 :]
        elif case.fill == "ties" and name == "x":
            values = np.round(values)
        elif case.fill == "level" and name in ("x", "mean"):  # numbers that share their leading digits
            values += np.float32(4096)
        elif case.fill == "large" and name == "x":
            values = values * np.float32(1000)
        elif case.fill == "cancel" and name in ("x", "dy"):  # neighbours that nearly cancel, whichever way one sums
            signs = np.indices(shape).sum(0) % 2 * 2 - 1
            values = (values + np.float32(100)) * signs.astype(np.float32)
        elif case.fill == "cancel" and name == "w":
            values = values / 100 + 1
        made[name] = values.astype(np.float32)
    if op.name == "row_sums":  # a sum that goes too far shows
        made["x"][np.arange(of["columns"]) >= made["length"][:, None]] = np.nan
    if op.name == "log_softmax_nll_backward":
        made["log_p"] = _log_softmax({"x": made["log_p"].astype(np.float64)}, of)["log_p"].value.astype(np.float32)
    if "inverse" in made:
        made["inverse"] = (1 / np.sqrt(made["var"].astype(np.float64) + EPSILON)).astype(np.float32)
    return made


def _integers(name: str, of: Sizes, rng: np.random.Generator, shape: tuple[int, ...], made: Arrays) -> NDArray[Any]:
    if name == "order":  # from the longest row to the shortest
        return np.argsort(-made["length"], kind="stable")
    if name == "pixels":  # four of five are background
        return np.where(rng.random(shape) < 0.8, 0, rng.integers(0, BINS, shape))
    below = {"route": DEAD + 1, "labels": of.get("classes", 0), "length": of.get("columns", 0) + 1}
    return rng.integers(0, below[name], shape)


def answer(op: Op, case: Case, of_inputs: Arrays) -> dict[str, Answer]:
    """In float64, of the inputs as they are."""
    wide = {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in of_inputs.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        return op.answer(wide, op.sizes(case))


# ---- the table -------------------------------------------------------------------------------------------------------


def _cases(*shapes: tuple[int, ...], **fills: tuple[int, ...]) -> tuple[Case, ...]:
    return (*(Case(shape) for shape in shapes), *(Case(shape, fill) for fill, shape in fills.items()))


def _shifted(shape: tuple[int, ...], *names: str) -> tuple[Case, ...]:
    return tuple(Case(shape, shifted=(name,)) for name in names)


_LINEAR_CASES = (
    Case((1, 1, 1), calls=13),
    *_cases(
        (1, 5, 3),
        (2, 31, 33),
        (3, 4, 4),
        (33, 33, 20),
        (32, 64, 32),
        (17, 130, 129),
        (64, 64, 64),
        (65, 100, 70),
        (129, 20, 66),
        (200, 33, 7),
        cancel=(5, 256, 9),
    ),
    *_shifted((8, 36, 12), "y", "x", "w", "bias"),
    # Sums so long that slices of our rows have several tiles: their loop runs more than once.
    Case((1, 3136, 10), calls=1),
    Case((16, 2100, 3), calls=1),
)
_CONV_CASES = (
    Case((1, 1, 1, 1), calls=13),
    *_cases(
        (1, 1, 1, 2),
        (2, 1, 1, 3),
        (1, 3, 2, 5),
        (2, 5, 9, 4),
        (1, 2, 3, 14),
        (3, 4, 4, 7),
        (1, 1, 17, 8),
        (1, 9, 8, 14),
        (1, 2, 2, 28),
        (1, 1, 1, 17),
        (1, 1, 2, 33),
        (9, 2, 2, 6),
        (1, 33, 3, 4),
        (1, 2, 65, 5),
        (1, 32, 8, 14),
        cancel=(1, 4, 3, 6),
    ),
)
_PLANES = _cases((1, 1), (1, 2), (3, 3), (2, 7), (5, 4), (1, 14), (33, 1), (2, 17))
_NORM_CASES = (
    Case((2, 1, 2), calls=13),
    *_cases(
        (1, 1, 2),
        (1, 3, 4),
        (3, 2, 5),
        (2, 33, 3),
        (1, 2, 255),
        (1, 1, 256),
        (2, 1, 257),
        (9, 3, 16),
        (17, 2, 7),
        (2, 4, 49),
        (4, 2, 196),
        (70, 1, 4),
        (530, 1, 3),
        (2, 3, 784),
        level=(3, 2, 36),
        cancel=(3, 2, 16),
    ),
)
_ROWS = _cases((1, 1), (1, 2), (3, 10), (2, 31), (2, 32), (2, 33), (5, 3), (129, 10), (7, 100))

_PASS = "std::uint8_t*"
_GIVEN_BYTES = "const std::uint8_t*"
_STREAM = Parameter("stream", "stream", "cudaStream_t")
_LINEAR = (given("x", "batch in"), given("w", "out in"), given("bias", "out"), *sizes("batch", "in", "out"), _STREAM)
_CONV = (*sizes("batch", "in", "out", "side"), _STREAM)
_NORM = (*sizes("batch", "channels", "area"), _STREAM)
_PARTIAL = scratch("partial", "batch_norm_partial_size")


def _linear_products(of: Sizes) -> int:
    return of["batch"] * of["in"] * of["out"]


def _conv_products(of: Sizes) -> int:
    return 9 * of["batch"] * of["in"] * of["out"] * of["side"] ** 2


_LINEAR_COST, _CONV_COST = Case((64, 256, 64)), Case((2, 8, 16, 14))

OPS = {
    op.launcher: op
    for op in (
        Op(
            "linear",
            "linear_forward",
            (out("y", "batch out"), scratch("partial", "linear_partial_size"), *_LINEAR),
            _linear,
            _LINEAR_CASES,
            _LINEAR_COST,
            _linear_products,
        ),
        Op(
            "linear_relu",
            "linear_relu_forward",
            (out("y", "batch out"), scratch("partial", "linear_partial_size"), *_LINEAR),
            _linear_relu,
            _LINEAR_CASES,
            _LINEAR_COST,
            _linear_products,
        ),
        Op(
            "linear_backward",
            "linear_backward",
            (
                out("dx", "batch in"),
                out("dw", "out in"),
                out("dbias", "out"),
                scratch("partial", "linear_backward_partial_size"),
                given("dy", "batch out"),
                given("x", "batch in"),
                given("w", "out in"),
                *sizes("batch", "in", "out"),
                _STREAM,
            ),
            _linear_backward,
            (
                Case((1, 1, 1), calls=13),
                *_cases(
                    (1, 5, 3),
                    (2, 31, 33),
                    (33, 33, 20),
                    (17, 66, 129),
                    (65, 100, 70),
                    (200, 33, 7),
                    (2, 784, 12),
                    cancel=(6, 40, 9),
                ),
                *_shifted((8, 36, 12), "dx", "dw", "dy", "x", "w"),
            ),
            Case((64, 64, 64)),
            lambda of: 2 * _linear_products(of),
        ),
        Op(
            "conv2d",
            "conv2d_forward",
            (
                out("y", "batch out side side"),
                given("x", "batch in side side"),
                given("w", "out in 3 3"),
                given("bias", "out"),
                *_CONV,
            ),
            _conv2d,
            (*_CONV_CASES, *_shifted((1, 4, 8, 8), "y", "x", "w")),
            _CONV_COST,
            _conv_products,
        ),
        Op(
            "conv2d_backward_data",
            "conv2d_backward_data",
            (out("dx", "batch in side side"), given("dy", "batch out side side"), given("w", "out in 3 3"), *_CONV),
            _conv2d_backward_data,
            (*_CONV_CASES, *_shifted((1, 4, 8, 8), "dx", "dy", "w")),
            _CONV_COST,
            _conv_products,
        ),
        Op(
            "conv2d_backward_weight",
            "conv2d_backward_weight",
            (
                out("dw", "out in 3 3"),
                scratch("partial", "conv2d_backward_weight_partial_size"),
                given("dy", "batch out side side"),
                given("x", "batch in side side"),
                *_CONV,
            ),
            _conv2d_backward_weight,
            (*_CONV_CASES, *_shifted((1, 4, 8, 8), "dw", "dy", "x")),
            _CONV_COST,
            _conv_products,
        ),
        Op(
            "relu",
            "relu_forward",
            (out("y", "count"), out("pass", "count", _PASS), given("x", "count"), *sizes("count"), _STREAM),
            _relu,
            (
                Case((1,), calls=13),
                *_cases((2,), (3,), (4,), (5,), (31,), (33,), (255,), (256,), (257,), (1023,), (1024,), (1025,)),
                *_cases((4099,), special=(515,)),
                *_shifted((521,), "y", "pass", "x"),
            ),
            Case((4096,)),
        ),
        Op(
            "relu_max_pool2d",
            "relu_max_pool2d_forward",
            (
                out("y", "planes side side"),
                out("route", "planes side side", _PASS),
                given("x", "planes 2*side 2*side"),
                *sizes("planes", "side"),
                _STREAM,
            ),
            _relu_max_pool2d,
            (*_PLANES, *_cases(ties=(4, 7), special=(3, 5)), *_shifted((3, 4), "y", "route", "x")),
            Case((8, 14)),
        ),
        Op(
            "relu_max_pool2d_backward",
            "relu_max_pool2d_backward",
            (
                out("dx", "planes 2*side 2*side"),
                given("dy", "planes side side"),
                given("route", "planes side side", _GIVEN_BYTES),
                *sizes("planes", "side"),
                _STREAM,
            ),
            _relu_max_pool2d_backward,
            (*_PLANES, *_cases(special=(3, 5)), *_shifted((3, 4), "dx", "dy", "route")),
            Case((8, 14)),
        ),
        Op(
            "batch_norm_statistics",
            "batch_norm_statistics",
            (out("mean", "channels"), out("var", "channels"), _PARTIAL, given("x", "batch channels area"), *_NORM),
            lambda a, of: dict(zip(("mean", "var"), _statistics(a["x"]), strict=True)),
            (*_NORM_CASES, *_shifted((2, 2, 16), "x")),
            Case((16, 4, 196)),
        ),
        Op(
            "batch_norm_forward",
            "batch_norm_forward",
            (
                out("y", "batch channels area"),
                Parameter("statistics", "scratch", "float*", "statistics"),
                _PARTIAL,
                given("x", "batch channels area"),
                given("gamma", "channels"),
                given("beta", "channels"),
                *_NORM,
            ),
            _batch_norm_forward,
            (*_NORM_CASES, *_shifted((2, 2, 16), "y", "x")),
            Case((16, 4, 196)),
        ),
        Op(
            "batch_norm_backward",
            "batch_norm_backward",
            (
                out("dx", "batch channels area"),
                out("dgamma", "channels"),
                out("dbeta", "channels"),
                _PARTIAL,
                given("dy", "batch channels area"),
                given("x", "batch channels area"),
                given("gamma", "channels"),
                given("mean", "channels"),
                given("var", "channels"),
                given("inverse", "channels", optional=True),
                *_NORM,
            ),
            _batch_norm_backward,
            (*_NORM_CASES, *_shifted((2, 2, 16), "dx", "dy", "x")),
            Case((16, 4, 196)),
        ),
        Op(
            "log_softmax",
            "log_softmax_forward",
            (out("log_p", "batch classes"), given("x", "batch classes"), *sizes("batch", "classes"), _STREAM),
            _log_softmax,
            (Case((2, 3), calls=13), *_ROWS, *_cases(large=(6, 10), level=(6, 10), special=(40, 5), ties=(9, 10))),
            Case((128, 10)),
        ),
        Op(
            "log_softmax_nll_backward",
            "log_softmax_nll_backward",
            (
                out("dx", "batch classes"),
                given("log_p", "batch classes"),
                given("labels", "batch", _GIVEN_BYTES),
                Parameter("upstream", "real", "double"),
                *sizes("batch", "classes"),
                _STREAM,
            ),
            _log_softmax_nll_backward,
            (Case((2, 3), calls=13), *_ROWS, *_shifted((5, 8), "dx", "log_p", "labels")),
            Case((128, 10)),
        ),
        Op(
            "conv_bn_relu_pool_layer1",
            "layer_of_one_channel",
            (
                out("a", "batch out side/2 side/2"),
                out("route", "batch out side/2 side/2", _PASS),
                given("x", "batch side side"),
                given("w", "out 3 3"),
                *(given(name, "out") for name in ("bias", "gamma", "beta", "mean", "var")),
                *sizes("batch", "out", "side"),
                _STREAM,
            ),
            _layer_of_one_channel,
            (
                Case((1, 1, 2), calls=13),
                *_cases((2, 3, 4), (1, 17, 6), (3, 16, 14), (1, 5, 28), (2, 33, 8), (1, 2, 40)),
                *_shifted((1, 4, 8), "a", "route", "x", "w"),
            ),
            Case((2, 16, 28)),
            lambda of: 9 * of["batch"] * of["out"] * of["side"] ** 2,
        ),
        Op(
            "transpose",
            "transpose",
            (out("y", "columns rows"), given("x", "rows columns"), *sizes("rows", "columns"), _STREAM),
            lambda a, of: {"y": Answer(a["x"].T)},
            (
                Case((1, 1), calls=13),
                *_cases((1, 5), (31, 33), (32, 32), (33, 31), (64, 32), (2, 100), (100, 3), (65, 70), special=(9, 40)),
                *_shifted((12, 20), "y", "x"),
            ),
            Case((128, 128)),
        ),
        Op(
            "row_sums",
            "row_sums",
            (
                out("y", "rows"),
                given("x", "rows columns"),
                given("length", "rows", "const int*"),
                given("order", "rows", "const int*"),
                *sizes("rows", "columns"),
                _STREAM,
            ),
            _row_sums,
            (
                Case((1, 1), calls=13),
                *_cases((3, 5), (31, 33), (33, 7), (64, 64), (100, 1), (257, 40), (9, 300), cancel=(40, 64)),
                *_shifted((12, 20), "y", "x"),
            ),
            Case((64, 400)),
        ),
        Op(
            "histogram",
            "histogram",
            (
                out("count", "256", "int*"),
                given("pixels", "pixel_count", _GIVEN_BYTES),
                *sizes("pixel_count"),
                _STREAM,
            ),
            lambda a, of: {"count": Answer(np.bincount(a["pixels"], minlength=BINS))},
            (
                Case((1,), calls=13),
                *_cases((31,), (255,), (257,), (4095,), (4096,), (4097,), (9000,)),
                *_shifted((1000,), "pixels"),
            ),
            Case((16384,)),
        ),
    )
}
