"""A competitor on several GPUs, driven as if it were one: `python -m mnist_cuda.bench.fan_out COUNT COMMAND...`.

Starts the command so many times, ours connected, each with the variables that torchrun sets for PyTorch, and gives
every line to all of them. The answer is rank 0's, but for `seconds`, which is what the slowest took, and for an error,
which any of them may have.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from mnist_cuda.bench.worker import end_with_parent
from mnist_cuda.ranks.processes import connected, start
from mnist_cuda.ranks.world import World


def serve(count: int, command: Sequence[str]) -> None:
    """Answer until `quit` or the end of stdin."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port)}
    answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    processes = [
        start(
            command,
            World("fan_out", rank, count, rank, count),
            sockets,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, sockets in enumerate(connected(count))
    ]

    def listen(rank: int) -> None:
        for line in processes[rank].stdout or ():
            answers.put((rank, json.loads(line)))
        answers.put((rank, {"error": f"rank {rank} ended with {processes[rank].wait()}"}))

    for rank in range(count):
        threading.Thread(target=listen, args=(rank,), daemon=True).start()
    try:
        for line in sys.stdin:
            for process in processes:
                assert process.stdin
                process.stdin.write(line)
                process.stdin.flush()
            if json.loads(line)["cmd"] == "quit":
                return
            print(json.dumps(_answer(count, answers)), flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answer(count: int, answers: queue.SimpleQueue[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """What they say together; the first error at once, as others may wait for who has it."""
    by_rank: dict[int, dict[str, Any]] = {}
    while len(by_rank) < count:
        rank, answer = answers.get()
        if "error" in answer:
            return answer
        by_rank[rank] = answer
    seconds = [answer["seconds"] for answer in by_rank.values() if "seconds" in answer]
    return by_rank[0] | ({"seconds": max(seconds)} if seconds else {})


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark's process ends this one
    serve(int(sys.argv[1]), sys.argv[2:])
