"""How much memory there is, asked before it is taken: the kernel kills who takes too much, without a word."""

from __future__ import annotations

from pathlib import Path

from mnist_cuda.errors import OutOfMemoryError


def require(size: int, what: str) -> None:
    """Raise OutOfMemoryError if `what` needs more bytes than this process can get."""
    there = available()
    if there is not None and size > there:
        raise OutOfMemoryError(f"{what} needs about {size / 1e9:.1f} GB, and {there / 1e9:.1f} GB are free")


def available(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken without swapping, on this machine and in this container; None if nobody says.

    root: where `proc` and `sys` are.
    """
    amounts = [
        amount
        for amount in (_of_machine(root), _of_group(root / "sys/fs/cgroup"), _of_old_group(root / "sys/fs/cgroup"))
        if amount is not None
    ]
    return max(0, min(amounts)) if amounts else None


def _of_machine(root: Path) -> int | None:
    kibibytes = _field(root / "proc/meminfo", "MemAvailable:")
    return None if kibibytes is None else 1024 * kibibytes


def _of_group(group: Path) -> int | None:
    """By control groups, version 2."""
    return _left(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file")


def _of_old_group(group: Path) -> int | None:
    """By control groups, version 1."""
    group = group / "memory"
    limit, used = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes"
    return _left(limit, used, group / "memory.stat", "total_inactive_file")


def _left(limit: Path, used: Path, statistics: Path, cache: str) -> int | None:
    """The limit less what is used; `cache`, pages of files that nobody needs, is given back when memory is short."""
    most, taken = _number(limit), _number(used)
    if most is None or taken is None:
        return None
    return most - taken + (_field(statistics, cache) or 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or `max`
        return None


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)
    except (OSError, ValueError, IndexError):
        return None
