"""Exercise of chapter 14: how many stages hide the copies? Fill in `stages_needed`, then run this file."""

import sys


def schedule(tiles, stages, latency, copy, product):
    """Of each tile: when its copy starts, when it has arrived, when its product starts and ends. One role copies, one
    multiplies.

    A copy waits for its stage to be free and for the copy before it, which takes `copy`; the data arrive `latency`
    after that. A product waits for its tile, and for the product before it.
    """
    times = []
    for k in range(tiles):
        start = times[k - 1][0] + copy if k else 0
        if k >= stages:
            start = max(start, times[k - stages][3])  # the stage is free
        arrived = start + copy + latency
        begin = max(arrived, times[k - 1][3]) if k else arrived
        times.append((start, arrived, begin, begin + product))
    return times


def waits(tiles, stages, latency, copy, product):
    """How long the multiplying role waits after its first product has begun."""
    times = schedule(tiles, stages, latency, copy, product)
    return times[-1][3] - times[0][2] - tiles * product


def stages_needed(latency, copy, product):
    """The fewest stages with which the multiplying role never waits, for copy <= product; whole numbers."""
    return 0  # yours


def judge(formula):
    """The first case in which a function like the one above is wrong, with the right number; None if there is none."""
    for latency in range(20):
        for product in range(1, 8):
            for copy in range(1, product + 1):
                right = next(s for s in range(1, 40) if waits(200, s, latency, copy, product) == 0)
                found = formula(latency, copy, product)
                if found != right:
                    return latency, copy, product, found, right
    return None


if __name__ == "__main__":
    wrong = judge(stages_needed)
    if wrong:
        latency, copy, product, found, right = wrong
        print(f"WRONG: latency {latency}, copy {copy}, product {product}: {found}, expected {right}")
        sys.exit(1)
    print("right")
