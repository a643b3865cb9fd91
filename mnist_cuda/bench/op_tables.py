"""The rows of the ops as the sources name them, for `bench ops --list` and docs/ladder.md: no GPU, nothing compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from mnist_cuda.bench.op_peers import OP_PEERS
from mnist_cuda.bench.record import Record
from mnist_cuda.errors import UsageError
from mnist_cuda.run.options import RecordOptions
from mnist_cuda.terminal import console

CASES, LADDERS = Path("native/gpu/bench/op_cases.cpp"), Path("native/gpu/bench/ladders.cpp")

# By the name of a script without its suffix.
SIMULATORS = {Path(peer.script).stem: peer.simulator.name for peer in OP_PEERS.values() if peer.simulator}
NO_SIMULATOR = {Path(peer.script).stem: "a library" for peer in OP_PEERS.values() if not peer.simulator}


class StaleError(Exception):
    """The code has no longer the form that this module reads."""


@dataclass(frozen=True)
class Technique:
    """A row of an op's ladder. step: why it is faster than the row above it, or not; the comment above it."""

    name: str
    why: str
    file: Path
    step: str = ""


def body(text: str, start: str) -> str:
    """A function from `start` to the brace that ends it."""
    match = re.search(re.escape(start) + r".*?\n}\n", text, re.DOTALL)
    if match is None:
        raise StaleError(f"there is no `{start}`")
    return match[0]


def rows_of(table: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, what runs it, reason, and the comment above it of each row of a C++ table that has the first three."""
    row = r'((?:^ *// .*\n)*) *\{"(\w+)",\s*([^"]+?),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)'
    for comment, name, run, why in re.findall(row, table, re.MULTILINE):
        step = " ".join(re.findall(r"// (.*)", comment))
        yield name, run, "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', why)), step


def file_of(folder: Path, variant: str, run: str) -> Path:
    """The file below a folder that defines the first launcher that `run` names; if none does, the variant's file."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.cu"))}
    for word in re.findall(r"\w+", run):
        for path, text in texts.items():
            if f"\nvoid {word}(" in text:
                return path
    named = [path for path in texts if path.stem == variant]
    if len(named) != 1:
        raise StaleError(f"{folder} has no function of `{run}`, and {len(named)} files {variant}.cu")
    return named[0]


def own_tables(root: Path) -> dict[str, list[Technique]]:
    """The rows of each table of native/gpu/kernels, by the name of the function that returns it."""
    tables = {}
    for path in sorted((root / "native" / "gpu" / "kernels").glob("*/*.cpp")):
        text = path.read_text()
        for name in re.findall(r"std::span<const Variant<\w+>> (\w+)_variants\(\) \{", text):
            table = body(text, f" {name}_variants() {{")
            tables[name] = [
                Technique(row, why, file_of(path.parent, row, run), step) for row, run, why, step in rows_of(table)
            ]
            if len(tables[name]) != len(re.findall(r'^ *\{"', table, re.MULTILINE)):
                raise StaleError(f"{path.relative_to(root)}: cannot read every row of {name}_variants")
    return tables


def ladders(root: Path, peers: Path) -> dict[str, list[Technique]]:
    """The rows of each op that no library has, in the order of the benchmark.

    root: the folder above `native`, a checkout's or the package; peers: the folder of the scripts of other languages.
    """
    cases, ladder_text, tables = (root / CASES).read_text(), (root / LADDERS).read_text(), own_tables(root)
    entries = re.findall(r'\{"(\w+)", (\w+)\},', body(cases, "std::span<const OpEntry> op_entries() {"))
    found: dict[str, list[Technique]] = {}
    for op, function in entries:
        made = re.search(r"(\w+)_(ladder|variants)\(", body(cases, f"OpCase {function}("))
        if made is None:
            raise StaleError(f"{CASES}: {function} takes no ladder")
        inside = body(ladder_text, f" {made[1]}_ladder(") if made[2] == "ladder" else ""
        own = re.search(r"own_rungs\(kernels::(\w+)_variants\(\)\)", inside)
        name = made[1] if made[2] == "variants" else own[1] if own else ""
        found[op] = list(tables.pop(name)) if name else []
        for row, run, why, _ in rows_of(inside):
            if "kernels::" in run:  # our code, or of templates that we compile; the others call a library
                found[op].append(Technique(row, why, file_of(root / "native" / "gpu" / "kernels", row, run)))
    if tables:
        raise StaleError(f"no op of {CASES} has the rows of {next(iter(tables))}_variants")
    for peer in OP_PEERS.values():
        for variant in peer.variants:
            found[variant.op].append(Technique(variant.name, variant.why, peers / peer.script))
    return found


def files() -> dict[tuple[str, str], Path]:
    """Of each row, by op and name."""
    from mnist_cuda.bench import emulate

    found = ladders(emulate.sources().parent, emulate.PACKAGE / "peers")
    return {(op, row.name): row.file for op, techniques in found.items() for row in techniques}


def command(op: str, options: RecordOptions) -> int:
    from mnist_cuda.bench import emulate

    output = Record(options.json, busy=options.busy)
    native = emulate.sources()
    found = ladders(native.parent, emulate.PACKAGE / "peers")
    if op and op not in found:
        raise UsageError(f"op '{op}' is unknown, expected one of {', '.join(found)}")
    left_out = emulate.left_out(native)
    rows = [
        asdict(row)
        | {
            "op": name,
            "file": row.file.name if row.file.suffix == ".py" else row.file.relative_to(native).as_posix(),
            "not_emulated": (left_out | NO_SIMULATOR).get(row.file.stem, ""),
            "by": SIMULATORS.get(row.file.stem, "the emulator"),
        }
        for name, techniques in found.items()
        for row in techniques
        if op in ("", name)
    ]
    if output:
        output.write({"rows": rows})
    if output.on_stdout:
        return 0
    out = console.make_console()
    out.print("Every row that no library has, plainest first; `--emulate` runs most of them without a GPU.")
    for name in dict.fromkeys(row["op"] for row in rows):
        ours = [row for row in rows if row["op"] == name]
        out.print(f"\n{name}")
        cells = [
            (row["name"], row["file"], f"no: {row['not_emulated']}" if row["not_emulated"] else row["by"], row["why"])
            for row in ours
        ]
        console.print_table(out, ("variant", "file", "without a GPU", "why"), cells, optional=("why", "without a GPU"))
    return 0
