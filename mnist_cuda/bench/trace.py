"""A profile as a trace that Perfetto (ui.perfetto.dev) and Chrome's chrome://tracing open: the Trace Event Format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from mnist_cuda.engine import OpTime

STEPS, PHASES, OPS = 1, 2, 3  # the rows, from the top


def trace_events(ops: Sequence[OpTime], title: str, steps: int) -> dict[str, Any]:
    """The first `steps` steps on three rows: steps, phases and ops; microseconds since the first began."""
    events = [_name("process_name", 0, title)]
    events += [_name("thread_name", row, name) for row, name in ((STEPS, "steps"), (PHASES, "phases"), (OPS, "ops"))]
    for step in range(min(steps, min(len(op.spans) for op in ops))):
        spans = [op.spans[step] for op in ops]
        events.append(_span(STEPS, f"step {step + 1}", spans, {}))
        for phase, group in groupby(zip(ops, spans, strict=True), lambda pair: pair[0].phase):
            inside = list(group)
            events.append(_span(PHASES, phase, [span for _, span in inside], {}))
            events += [_span(OPS, op.op, [span], _facts(op)) for op, span in inside]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _name(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": row, "name": what, "args": {"name": name}}


def _span(row: int, name: str, spans: Sequence[tuple[float, float]], facts: dict[str, Any]) -> dict[str, Any]:
    start, (last, us) = spans[0][0], spans[-1]
    return {"ph": "X", "pid": 1, "tid": row, "name": name, "ts": start, "dur": last + us - start, "args": facts}


def _facts(op: OpTime) -> dict[str, Any]:
    facts: dict[str, Any] = {"bytes": op.bytes, "operations": op.flops, "unit": op.unit}
    for kernel in op.kernels:
        blocks, threads = math.prod(kernel["grid"]), math.prod(kernel["block"])
        facts[kernel["name"]] = (
            f"{blocks} blocks of {threads} threads, {kernel['registers']} registers, {kernel['shared_bytes']} bytes of "
            f"shared memory, occupancy {100 * kernel['occupancy']:.0f} %"
        )
    return facts
