"""scripts/check trace: its account of the trace points that blocks pass."""

from __future__ import annotations

from checks import trace

# step, phase, point, block, ns, cycles, multiprocessor: two blocks in two steps
PASSAGES = """20 0 1 0 1000 0 0
20 0 1 1 1500 0 1
20 4 0 0 4000 0 0
20 4 16 0 0 100 0
20 4 17 0 0 350 0
20 4 16 1 0 900 1
20 4 18 0 0 370 0
20 4 20 0 0 400 0
20 4 32 0 0 420 0
21 0 1 0 9000 0 0
21 4 0 0 15000 0 0
21 4 0 1 17000 0 1
21 4 18 0 0 990 0"""


def test_points_are_timed_from_the_start_of_their_step_and_items_by_the_clock_of_their_block() -> None:
    passages = trace.parse(PASSAGES.splitlines())
    assert [line.split() for line in trace.times(passages)] == [
        ["conv_forward", "1", "0.00", "0.12", "0.25", "2", "blocks"],
        ["conv2_backward", "0", "4.50", "5.00", "5.50", "2", "blocks"],
    ]
    assert [line.split() for line in trace.cycles(passages)] == [
        ["conv2_backward", "16", "to", "17", "250", "250", "to", "250"],
        ["conv2_backward", "17", "to", "18", "20", "20", "to", "20"],
        ["conv2_backward", "18", "to", "20", "30", "30", "to", "30"],
    ]
