"""How the processes of a training meet: rank 0 listens, the others come, and who does not fit is refused.

Each rank tells rank 0 what it would train, and on what; then rank 0 tells all to begin, or why nobody can.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mnist_cuda.errors import DataError, MnistCudaError, RankLostError, UnavailableError, UsageError
from mnist_cuda.ranks.world import World, is_loopback

PROTOCOL = "mnist-cuda ranks 1"
MESSAGE_AFTER = 3.0  # seconds that rank 0 waits in silence
_HELLO_SECONDS = 2.0  # for what a connection says first
_WELCOME_SECONDS = 15.0  # for the answer to that: rank 0 hears one after the other
_LONGEST = 1 << 16  # bytes of a message


@dataclass(frozen=True)
class Facts:
    """What all ranks of a training must have in common, each by its name."""

    options: Mapping[str, Any]
    data: Mapping[str, str]
    build: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For rank 0."""
        return {"options": dict(self.options), "data": dict(self.data), "build": dict(self.build)}

    def fault(self, rank: int, found: Any) -> MnistCudaError | None:
        """What rank 0 says of another's, if they are not the same."""
        kinds: dict[str, type[MnistCudaError]] = {"options": UsageError, "data": DataError, "build": UnavailableError}
        for part, mine in self.as_json().items():
            theirs = found.get(part) if isinstance(found, dict) else None
            for name, value in mine.items():
                other = theirs.get(name) if isinstance(theirs, dict) else None
                if other != json.loads(json.dumps(value)):
                    text = f"rank {rank} has {name.replace('_', ' ')} {other}, expected rank 0's, {value}"
                    return kinds[part](text)
        return None


def listen(world: World) -> socket.socket:
    """Rank 0's end, where the others come. Raises UnavailableError where all its ports are taken."""
    host = world.address if is_loopback(world.address) else ""
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    for port in world.ports:
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=family, backlog=world.size, dualstack_ipv6=both)
    ports = " to ".join(str(port) for port in sorted({world.ports[0], world.ports[-1]}))
    raise UnavailableError(f"rank 0 cannot listen at port {ports}: taken; MASTER_PORT names another")


def gather(
    listener: socket.socket, world: World, facts: Facts, seconds: float, watch: Callable[[], None] = lambda: None
) -> list[socket.socket]:
    """Wait for all other ranks; their connections, by rank. watch: asked some times a second, may raise.

    Raises RankLostError for ranks that are late, and of Facts.fault what it finds; those that are here get to know it.
    """
    came: dict[int, socket.socket] = {}
    start, said = time.monotonic(), False
    listener.settimeout(0.1)
    try:
        while len(came) < world.size - 1:
            watch()
            waited = time.monotonic() - start
            missing = _names([rank for rank in range(1, world.size) if rank not in came])
            if waited > seconds:
                raise RankLostError(f"{missing} of {world.size} did not come within {seconds:g} s; see --wait")
            if waited > MESSAGE_AFTER and not said:
                print(f"mnist-cuda: waiting for {missing} of {world.size}, {seconds:g} s at most", file=sys.stderr)
                said = True
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                _hear(connection, world, facts, came)
    except BaseException as error:
        code = error.exit_code if isinstance(error, MnistCudaError) else 1
        for connection in came.values():
            with contextlib.suppress(OSError):
                _write(connection, {"code": code})
            connection.close()
        raise
    for connection in came.values():
        _write(connection, {"code": 0})
    return [_tuned(came[rank]) for rank in sorted(came)]


def _hear(connection: socket.socket, world: World, facts: Facts, came: dict[int, socket.socket]) -> None:
    """Take a rank in; whoever is none of this training is sent away."""
    connection.settimeout(_HELLO_SECONDS)
    try:
        hello = _read(connection)
        if hello.get("protocol") != PROTOCOL or hello.get("job") != world.job:
            raise ValueError
        rank, size = int(hello["rank"]), int(hello["size"])
        _write(connection, {"protocol": PROTOCOL, "job": world.job})
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()
        return
    fault: MnistCudaError | None
    if size != world.size or rank in came or not 0 < rank < world.size:
        what = "a second rank" if rank in {0, *came} and size == world.size else "a rank"
        fault = UsageError(f"{what} {rank} of {size} came to rank 0 of {world.size}")
        rank = -1  # it is told beside the one that came first
    else:
        fault = facts.fault(rank, hello.get("facts"))
    came[rank] = connection
    if fault:
        raise fault


def reach(world: World, facts: Facts, seconds: float, watch: Callable[[], None] = lambda: None) -> socket.socket:
    """The connection of another rank to rank 0, once that says that all are there.

    Raises RankLostError where there is no rank 0 in time, or it ends meanwhile.
    """
    hello = {"protocol": PROTOCOL, "job": world.job, "rank": world.rank, "size": world.size, "facts": facts.as_json()}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        watch()
        for port in world.ports:
            connection = _knock(world.address, port, hello)
            if connection:
                return _begin(connection, watch)
        time.sleep(0.05)
    ports = " to ".join(str(port) for port in sorted({world.ports[0], world.ports[-1]}))
    raise RankLostError(
        f"rank {world.rank}: rank 0 was not at {world.address}, port {ports}, within {seconds:g} s; see --wait"
    )


def _knock(address: str, port: int, hello: dict[str, Any]) -> socket.socket | None:
    """A connection to who answers as rank 0 of our training does."""
    connection = None
    try:
        connection = socket.create_connection((address, port), timeout=_HELLO_SECONDS)
        _write(connection, hello)
        connection.settimeout(_WELCOME_SECONDS)
        answer = _read(connection)
        if answer.get("protocol") == PROTOCOL and answer.get("job") == hello["job"]:
            return connection
    except (OSError, ValueError):
        pass
    if connection:
        connection.close()
    return None


def _begin(connection: socket.socket, watch: Callable[[], None]) -> socket.socket:
    """Wait until rank 0 has heard all ranks, which takes as long as it says itself."""
    connection.settimeout(None)
    try:
        while not select.select([connection], [], [], 0.2)[0]:
            watch()
        code = int(_read(connection)["code"])
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()
        raise RankLostError("rank 0 is gone") from None
    if code:
        connection.close()
        raise RankLostError("", code)  # rank 0 says why
    return _tuned(connection)


def _tuned(connection: socket.socket) -> socket.socket:
    """For small messages at once, large ones whole, and a machine that is gone noticed within 10 s."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 8000)  # milliseconds, of what was sent
    return connection


def _names(ranks: list[int]) -> str:
    names = list(map(str, ranks[:8])) + (["more"] if len(ranks) > 8 else [])
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _write(connection: socket.socket, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    connection.sendall(len(content).to_bytes(4, "little") + content)


def _read(connection: socket.socket) -> dict[str, Any]:
    """A message. Raises OSError where none comes, ValueError for anything else."""
    length = int.from_bytes(_exactly(connection, 4), "little")
    if length > _LONGEST:
        raise ValueError
    message = json.loads(_exactly(connection, length))
    if not isinstance(message, dict):
        raise ValueError
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise ConnectionError
        content += part
    return content
