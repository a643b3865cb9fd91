"""What docs/guide/ takes from code and from records of `mnist-cuda bench ops`.

Markers enclose it in docs/guide/*.md and docs/fused.md, beside those of tables.py:

<!-- code:FILE NAME --> ... <!-- /code -->
    a function, struct or alias of a file, with its comment or decorators, and a link to its lines
<!-- is:OP/VARIANT WHAT [OTHER] --> ... <!-- /is -->
    a number of a row of the record of `bench ops`: VALUES says which
<!-- seen:OP/VARIANT WHAT [ARRAY] --> ... <!-- /seen -->
    a number of docs/records/emulated: SEEN says which; with an array, what a warp's load of it costs, and the least
<!-- ops:OP VARIANT... --> ... <!-- /ops -->
    what `mnist-cuda bench ops` printed of these rows, but for the column `why`
<!-- kernels:OP VARIANT... --> ... <!-- /kernels -->
    what these rows launched, by the record of `bench ops`
<!-- picture:NAME --> ... <!-- /picture -->
    NAME.svg, which guide_pictures.py draws, and the text for those who do not see it
"""

from __future__ import annotations

import ast
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pages import guide_pictures
from pages.ladder import measured_rows
from pages.records import ROOT, read_records
from rich.console import Console

from mnist_cuda.bench import ops
from mnist_cuda.bench.op_tables import StaleError
from mnist_cuda.terminal import console

GUIDE = ROOT / "docs" / "guide"
RECORDS = ROOT / "docs" / "records"
WIDTH = 200  # columns of a table, at most
BLOCK = re.compile(
    r"(<!-- (code|is|seen|ops|kernels|picture):(\S+)((?: (?!-->)\S+)*) -->)(\n?).*?(<!-- /\2 -->)", re.DOTALL
)

Row = dict[str, Any]


def digits(value: float, count: int = 3) -> str:
    """So many significant digits, and all digits before the point."""
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, count - whole)}f}"


def python_lines(text: str, name: str) -> tuple[int, int] | None:
    """Where a function of Python begins, with its decorators, and ends: the first line and the one behind the last."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1, node.end_lineno or 0
    return None


def cpp_lines(lines: list[str], name: str) -> tuple[int, int] | None:
    """As python_lines: from the comment to the brace at the margin, or to the semicolon of `using`."""
    begins = re.compile(rf"(?!//|#)(?:\S.* )?(?:    )?{re.escape(name)}(?:\(.*[,{{}}]| {{)$|using {re.escape(name)} =")
    first = next((k for k, line in enumerate(lines) if begins.match(line)), None)
    if first is None:
        return None
    if lines[first].startswith("using "):
        last = next(k for k in range(first, len(lines)) if lines[k].endswith(";"))
    elif lines[first].endswith("}"):
        last = first
    else:
        last = next(k for k in range(first, len(lines)) if lines[k] in {"}", "};"})
    while first and re.match(r"//|template|__global__", lines[first - 1]):
        first -= 1
    return first, last + 1


LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda"}  # of other files: C++


def function(file: str, name: str) -> str:
    """The function, struct or alias, below a link to its lines."""
    text, suffix = (ROOT / file).read_text(), Path(file).suffix
    lines = text.splitlines()
    found = python_lines(text, name) if suffix == ".py" else cpp_lines(lines, name)
    if found is None:
        raise StaleError(f"{file} has no function {name}")
    first, end = found
    link = f"[{file.removeprefix('native/')}](../../{file}#L{first + 1})"
    return "\n".join([f"{link}:", "", f"```{LANGUAGES.get(suffix, 'cpp')}", *lines[first:end], "```"])


def roof(row: Row, roofs: dict[str, float]) -> float:
    """The least microseconds of the op at the rates that this GPU was measured to reach."""
    return 1e6 * max(row["bytes"] / roofs["bytes_per_second"], row["flops"] / roofs[f"{row['unit']}_flops"])


def blocks(row: Row) -> int:
    """Of the kernel that has the most."""
    return max(int(x * y * z) for x, y, z in (kernel["grid"] for kernel in row["kernels"]))


VALUES: dict[str, Callable[[Row, dict[str, float]], str]] = {
    "us": lambda row, roofs: digits(row["cold_us"]),
    "warm_us": lambda row, roofs: digits(row["warm_us"]),
    "least_us": lambda row, roofs: digits(roof(row, roofs)),
    "share": lambda row, roofs: digits(100 * roof(row, roofs) / row["cold_us"], 2),
    "megabytes": lambda row, roofs: digits(row["bytes"] / 1e6),
    "gigabytes_per_second": lambda row, roofs: digits(row["bytes"] / row["cold_us"] / 1e3),
    "teraflops": lambda row, roofs: digits(row["flops"] / row["cold_us"] / 1e6),
    "blocks": lambda row, roofs: f"{blocks(row):,}",
    "registers": lambda row, roofs: str(row["kernels"][0]["registers"]),
    "occupancy": lambda row, roofs: digits(100 * row["kernels"][0]["occupancy"]),
    "roof_bytes": lambda row, roofs: digits(roofs["bytes_per_second"] / 1e12),
    "error": lambda row, roofs: f"{row['error']:.1e}",
    "roof_tf32": lambda row, roofs: digits(roofs["tf32_flops"] / 1e12),
    "roof_fma": lambda row, roofs: digits(roofs["fma_flops"] / 1e12),
}


def total(row: Row, part: str, key: str) -> int:
    """The sum over the lines or kernels of an emulated row."""
    return sum(one[key] for one in row["report"][part])


def loads_per_product(row: Row) -> float:
    """Loads of a warp over its products, 32 per instruction."""
    loads = sum(line["accesses"] for line in row["report"]["lines"] if not line["write"])
    return float(loads / (row["flops"] / 2 / 32))


SEEN: dict[str, Callable[[Row], str]] = {
    "accesses": lambda row: f"{total(row, 'lines', 'accesses'):,}",
    "asked": lambda row: digits(total(row, "kernels", "bytes") / 1e6),  # megabytes
    "touched": lambda row: digits(total(row, "kernels", "least_bytes") / 1e6),
    "times": lambda row: digits(total(row, "kernels", "bytes") / total(row, "kernels", "least_bytes"), 2),
    "loads": lambda row: digits(loads_per_product(row)),
}


class Documents:
    """What the guide should be: `files` gets the text of each file, pictures included."""

    def __init__(self) -> None:
        records = read_records(RECORDS / "ops")
        self.roofs = records[0]["roofs"]
        self.rows = measured_rows(records)
        emulated = [row for of in read_records(RECORDS / "emulated") for row in of["rows"]]
        self.emulated = {(row["op"], row["variant"]): row for row in emulated if not row["absent"]}
        self.pictures = guide_pictures.draw({name: row["report"] for name, row in self.emulated.items()})
        self.files = {GUIDE / f"{name}.svg": picture.svg for name, picture in self.pictures.items()}
        for document in (*sorted(GUIDE.glob("*.md")), GUIDE.parent / "fused.md"):
            self.folder = document.parent
            self.files[document] = BLOCK.sub(self._block, document.read_text())

    def _block(self, block: re.Match[str]) -> str:
        start, kind, name, words, newline, end = block.groups()
        text = getattr(self, f"_{kind}")(name, *words.split())
        return f"{start}{newline}{text}{newline}{end}"

    def _code(self, file: str, name: str) -> str:
        return function(file, name)

    def _is(self, name: str, what: str, other: str = "") -> str:
        op, _, variant = name.partition("/")
        row = self.rows[op, variant]
        if what == "over":  # how many times as long as another row of the op
            return digits(row["cold_us"] / self.rows[op, other]["cold_us"], 2)
        return VALUES[what](row, self.roofs)

    def _seen(self, name: str, what: str, array: str = "") -> str:
        op, _, variant = name.partition("/")
        row = self.emulated[op, variant]
        if what != "load":
            return SEEN[what](row)
        line = guide_pictures.line_of(row["report"], array)
        cost = line["sectors" if line["memory"] == "global" else "turns"]
        return f"{cost / line['accesses']:.1f} of {line['least'] / line['accesses']:.1f}"

    def _ops(self, op: str, *variants: str) -> str:
        rows = [self.rows[op, variant] for variant in variants]
        cells = [ops.cells(row, rows[0])[:-1] for row in rows]
        return self._table(ops.COLUMNS[:-1], cells, right=ops.COLUMNS[1:-1])

    def _table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str]) -> str:
        output = io.StringIO()
        console.print_table(Console(file=output, width=WIDTH), columns, rows, right=right)
        return f"```\n{output.getvalue()}```"

    def _kernels(self, op: str, *variants: str) -> str:
        cells = []
        for variant in variants:
            for kernel in self.rows[op, variant]["kernels"]:
                name = re.split(r"[<(]", kernel["name"].replace("cutlass::Kernel2<", ""))[0].rstrip(">")
                grid, threads = " x ".join(map(str, kernel["grid"])), math.prod(kernel["block"])
                cells.append((variant, grid, str(threads), str(kernel["registers"]), name))
        return self._table(("row", "grid", "threads", "registers", "kernel"), cells, right=("threads", "registers"))

    def _picture(self, name: str) -> str:
        file = (GUIDE / f"{name}.svg").relative_to(self.folder).as_posix()
        return f"![{self.pictures[name].words}]({file})"
