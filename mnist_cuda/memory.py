"""How much memory there is, asked before it is taken: the kernel kills who takes too much, without a word."""

from __future__ import annotations

from pathlib import Path

from mnist_cuda.errors import OutOfMemoryError

# Of control groups, versions 2 and 1: the folder, its files of the limit and of what is used, and the field `cache`.
_GROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def require(size: int, what: str) -> None:
    """Raise OutOfMemoryError if `what` needs more bytes than this process can get."""
    there = available()
    if there is not None and size > there:
        raise OutOfMemoryError(f"{what} needs about {size / 1e9:.1f} GB, and {there / 1e9:.1f} GB are free")


def available(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken without swapping, on this machine and in this container; None if nobody says.

    root: where `proc` and `sys` are.
    """
    kibibytes = _field(root / "proc/meminfo", "MemAvailable:")
    amounts = [None if kibibytes is None else 1024 * kibibytes]
    amounts += [_left(root / "sys/fs/cgroup" / group, *names) for group, *names in _GROUPS]
    known = [amount for amount in amounts if amount is not None]
    return max(0, min(known)) if known else None


def _left(group: Path, limit: str, used: str, cache: str) -> int | None:
    """The limit less what is used; `cache`, pages of files that nobody needs, is given back when memory is short."""
    most, taken = _number(group / limit), _number(group / used)
    if most is None or taken is None:
        return None
    return most - taken + (_field(group / "memory.stat", cache) or 0)


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
