"""What code is, whatever it is called, wherever it stands and whatever is written about it: hashes of functions.

A function of C++ is its instructions: names of ours are numbered as they come, those of libraries stay, and a constant
is its bytes. Messages and line numbers are left out, and so is what runs only when an exception is thrown.
A kernel is its machine code for compute capability 9.0, with the registers and the memory that it takes. A function of
Python is its syntax tree without docstrings, with its names numbered, and beside it those of them that are not local.
"""

from __future__ import annotations

import ast
import hashlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from checks.machine_code import kernels
from checks.runner import tool

Codes = dict[str, set[str]]  # hashes of code by the hash of the function's name
OURS = re.compile("mnist|_cu_")
# nvcc names the unnamed namespace of a file after the file's path and content.
OF_A_FILE = re.compile(r"\d+_GLOBAL__N__\w*?_cu_[0-9a-f]{8}(_\d+)?|__nv_static_\d+__[0-9a-f]{8}")
LOCATED, LINE = re.compile(r"throw_\w*error"), re.compile(r"mov +\$0x[0-9a-f]+,%ecx$")  # what is told __LINE__, and how
PADDING = re.compile(r"(data16 |cs )*nop|xchg +%ax,%ax$|int3")
PLACE = re.compile(r"\b[0-9a-f]+ <([^>+]*)(?:\+0x([0-9a-f]+))?>")  # as objdump writes a jump's target


def digest(what: object) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def of_object(path: Path) -> Codes:
    """The functions and the kernels of an object file. Raises subprocess.CalledProcessError if objdump cannot read it.

    Raises Problem where cuobjdump is missing.
    """
    found: Codes = {}
    for name, code in (*_functions(path), *_kernels(path)):
        found.setdefault(digest(OF_A_FILE.sub("", name)), set()).add(digest(code))
    return found


def _functions(path: Path) -> Iterator[tuple[str, object]]:
    """Each function that the processor runs, with its instructions."""
    command = ["objdump", "-dr", "--no-show-raw-insn", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    constants = _constants(path.read_bytes())
    for part in re.split(r"\n\n(?=[0-9a-f]{16} <)", listing)[1:]:
        first, *lines = part.partition("\n\n")[0].splitlines()
        start, name = int(first[:16], 16), first[18:-2]
        if not name.endswith(".cold"):
            yield name, _instructions(lines, name, start, constants)


def _instructions(lines: list[str], name: str, start: int, constants: dict[str, str]) -> list[str]:
    code: list[str] = []
    index: dict[int, int] = {}  # of an instruction, by its distance from the function's start
    numbers: dict[str, int] = {}

    def to(other: str) -> str:
        return f"name {numbers.setdefault(other, len(numbers))}" if OURS.search(other) else other

    for line in lines:
        if match := re.match(r"\t+[0-9a-f]+: (R_\w+)\t(.*?)([-+]0x[0-9a-f]+)?$", line):  # what the linker fills in
            kind, target, _ = match.groups()
            what = constants.get(target) or ("data" if target.startswith(".") else to(target))
            code[-1] = f"{PLACE.sub('', code[-1])} {kind} {what}"
            if LOCATED.search(target):
                code[-8:] = [LINE.sub("mov line", before) for before in code[-8:]]
        elif match := re.match(r" *([0-9a-f]+):\t(.*?)\s*(# [0-9a-f]+ <.*)?$", line):
            index[int(match[1], 16) - start] = len(code)
            if not PADDING.match(match[2]):
                code.append(match[2])

    def jump(match: re.Match[str]) -> str:
        return f"to {index[int(match[2] or '0', 16)]}" if match[1] == name else to(match[1])

    return [PLACE.sub(jump, line) for line in code]


def _constants(data: bytes) -> dict[str, str]:
    """The bytes of an object's numbers that are no part of an instruction, by their symbols, such as .LC3."""
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + k * entry) for k in range(count)]

    def text(section: int, at: int) -> str:
        start = sections[section][4] + at
        return data[start : data.index(b"\0", start)].decode()

    found = {}
    for symbols in [section for section in sections if section[1] == 2]:
        for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
            name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if 0 < section < count and text(names, sections[section][0]).startswith(".rodata.cst"):
                start = sections[section][4] + value
                found[text(symbols[6], name)] = data[start : start + sections[section][9]].hex()
    return found


def _kernels(path: Path) -> Iterator[tuple[str, object]]:
    if not path.name.endswith(".cu.o"):
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [tool("cuobjdump"), "-xelf", "sm_90a", str(path.resolve())]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)  # fails where there is none
        for cubin in Path(folder).glob("*.cubin"):
            for kernel in kernels(cubin):
                yield kernel.name, (kernel.code, kernel.registers, kernel.shared, kernel.stack)


# ---- Python ----------------------------------------------------------------------------------------------------------

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# Where names are, and not other text.
NAMES = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name"}
NAMES |= dict.fromkeys((*FUNCTION, ast.ClassDef), "name")


def of_python(text: str) -> list[tuple[range, str]]:
    """Of each function, class line and statement outside functions: its lines; its hash and the names that it uses."""
    found: list[tuple[range, str]] = []

    def add(node: ast.AST, local: frozenset[str] | None) -> None:
        inside = local
        if isinstance(node, FUNCTION):
            inside = (local or frozenset()) | frozenset(_bound(node, top=node))
        for inner in ast.iter_child_nodes(node):
            add(inner, inside)
        if isinstance(node, FUNCTION) or (isinstance(node, ast.stmt) and local is None):
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            assert node.end_lineno
            shape, names = _shape(node, inside or frozenset())
            found.append((range(first, node.end_lineno + 1), " ".join([digest(shape), *names])))

    add(ast.parse(text), None)
    return found


def names(text: str) -> tuple[set[str], set[str]]:
    """The names that a file of Python uses, and of these the ones that it defines."""
    tree = ast.parse(text)
    used = {getattr(node, NAMES[type(node)]) for node in ast.walk(tree) if type(node) in NAMES}
    return used, _bound(tree)


def _bound(tree: ast.AST, top: ast.AST | None = None) -> set[str]:
    """The names that are given something in a syntax tree; below a function without attributes, which are no locals."""
    found = set()
    for node in ast.walk(tree):
        given = isinstance(getattr(node, "ctx", None), ast.Store) and not (top and isinstance(node, ast.Attribute))
        given = given or isinstance(node, (ast.arg, *FUNCTION, ast.ClassDef))
        if given and type(node) in NAMES and node is not top:
            found.add(getattr(node, NAMES[type(node)]))
    return found


def _shape(top: ast.AST, local: frozenset[str]) -> tuple[object, list[str]]:
    """A syntax tree as tuples in which names are numbers; and those of them that are not local."""
    numbers: dict[str, int] = {}

    def shape(value: object) -> object:
        if isinstance(value, list):
            return tuple(map(shape, value))
        if not isinstance(value, ast.AST):
            return repr(value)
        fields = dict(ast.iter_fields(value))
        if isinstance(value, (*FUNCTION, ast.ClassDef)) and ast.get_docstring(value, clean=False) is not None:
            fields["body"] = value.body[1:]
        if value is top:
            fields.pop("name", None)
            if isinstance(value, ast.ClassDef):  # what it holds is for itself
                del fields["body"]
        if isinstance(value, ast.ImportFrom):
            del fields["module"], fields["level"]
        name = NAMES.get(type(value))
        if name in fields and fields[name] is not None:
            fields[name] = numbers.setdefault(fields[name], len(numbers))
        return type(value).__name__, *((key, shape(part)) for key, part in fields.items() if part not in (None, []))

    return shape(top), [name for name in numbers if name not in local]
