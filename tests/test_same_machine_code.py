"""scripts/check machine-code: equal code under other names is the same, any byte or resource that differs is shown."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from checks import machine_code
from tiny import run_check


def cubin(*kernels: tuple[str, bytes, int, int, int], architecture: int = 90) -> bytes:
    """An ELF file of kernels: name, code, registers, stack, shared memory."""
    info = b""
    sections = [("", 0, b"", 0, 0)]  # name, type, contents, size, info
    for index, (name, code, registers, stack, shared) in enumerate(kernels, start=1):
        info += struct.pack("<BBHII", 4, 0x2F, 8, index, registers) + struct.pack("<BBHII", 4, 0x11, 8, index, stack)
        sections.append((f".text.{name}", 1, code, len(code), index))
        sections.append((f".nv.shared.{name}", 8, b"", shared, 0))
    sections.append((".nv.info", 1, info, len(info), 0))
    names = b"".join(name.encode() + b"\0" for name, *_ in [*sections, (".shstrtab",)])
    sections.append((".shstrtab", 3, names, len(names), 0))
    body, headers, name_at = b"", b"", 0
    for name, kind, contents, size, extra in sections:
        headers += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), size, 0, extra, 0, 0)
        body += contents
        name_at += len(name) + 1
    ident = b"\x7fELF" + bytes([2, 1, 1, 51, 8]) + bytes(7)
    table = 64 + len(body)
    counts = (64, 0, 0, 64, len(sections), len(sections) - 1)
    return ident + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, table, architecture << 8, *counts) + body + headers


ADD, MULTIPLY = b"add" * 8, b"mul" * 8
OLD = (("f", ADD, 32, 0, 1024), ("g", MULTIPLY, 64, 16, 0))


def compare(folder: Path, old: bytes, new: bytes) -> int:
    for name, data in (("old", old), ("new", new)):
        (folder / f"{name}.cubin").write_bytes(data)
    code: int = run_check(machine_code, folder / "old.cubin", folder / "new.cubin")
    return code


def test_a_rename_and_another_order_are_the_same(tmp_path, capsys) -> None:
    renamed = cubin(("a_longer_name", MULTIPLY, 64, 16, 0), ("f", ADD, 32, 0, 1024))
    assert compare(tmp_path, cubin(*OLD), renamed) == 0
    assert capsys.readouterr().out == "2 kernels are the same; 0 of the old ones differ\n"


@pytest.mark.parametrize(
    "new",
    [
        cubin(("f", ADD[:-1] + b"D", 32, 0, 1024), OLD[1]),
        cubin(("f", ADD, 33, 0, 1024), OLD[1]),
        cubin(("f", ADD, 32, 8, 1024), OLD[1]),
        cubin(("f", ADD, 32, 0, 1025), OLD[1]),
        cubin(OLD[1]),
        cubin(*OLD, ("h", *OLD[0][1:])),
        cubin(*OLD, architecture=80),
    ],
    ids=["code", "registers", "stack", "shared", "one less", "one twice", "architecture"],
)
def test_every_difference_is_seen(tmp_path, capsys, new: bytes) -> None:
    assert compare(tmp_path, cubin(*OLD), new) == 1
    assert any(line[:2] in ("- ", "+ ") for line in capsys.readouterr().out.splitlines())
