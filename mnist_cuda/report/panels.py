"""The panels of a report: a picture each, and the numbers in it as lines of text."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from mnist_cuda.bench.profile import full_name
from mnist_cuda.data.picture import render, shades
from mnist_cuda.report import curves
from mnist_cuda.report.sources import Record, Sources, Swept, Tested
from mnist_cuda.run import confusion
from mnist_cuda.run.keeping import what_differs
from mnist_cuda.run.listing import Run
from mnist_cuda.sweeps import recipes as ranking
from mnist_cuda.terminal.console import format_count, plural
from mnist_cuda.terminal.streams import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 350  # CSS pixels of a picture: a telephone's page has room for it as it is
MISTAKES = 40
LEGEND_LINE = 17  # CSS pixels
FEWEST_SEEDS = 20  # of a histogram
MOST_BARS = 70  # of one
MOST_RECIPES = 10  # in a picture; the table below it has LISTED
LISTED = 100
MOST_MAPS = 6  # of a sweep
LEGIBLE = (6, 8)  # columns and rows of a map, at most, whose cells have room for their numbers
# Per cent of test images that are wrong: a colour of the map up to each.
ERRORS = (0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)


@dataclass(frozen=True)
class Panel:
    """A picture of WIDTH x `height` CSS pixels that `draw` draws, and what it shows as `text`.

    name: of its files, and of it among the report's panels. note: sentences below picture and text. legend: sentences
    below the picture alone, on its marks. sketch: what the terminal has in place of the picture, given whether to use
    colour and the output's encoding. group: what it belongs to with others, such as a run's name; nothing alone.
    """

    name: str
    title: str
    note: str
    height: int
    draw: Callable[[Figure], None]
    text: list[str]
    sketch: Callable[[bool, str], list[str]] | None = None
    legend: str = ""
    group: str = ""

    @property
    def caption(self) -> str:
        """All sentences below the picture."""
        return f"{self.note} {self.legend}".strip()


def panels(sources: Sources) -> tuple[list[Panel], list[str]]:
    """All panels that there is something for, and a sentence for each that there is nothing for."""
    found: list[Panel] = []
    absent = list(sources.missing)
    trained = [run for run in sources.runs if run.epochs]
    absent += [f"{run.name}: no epoch is recorded, so it has no curves" for run in sources.runs if not run.epochs]
    if any(epoch.get(key) is not None for run in trained for epoch in run.epochs for key in ("loss", "test_loss")):
        found += [_curves(trained, name) for name in curves.CURVES]
    if sources.tested:
        found.append(_classes(sources.tested))
    for number, tested in enumerate(sources.tested, 1):
        of_run = [_confusion(tested, number)]
        if len(tested.answers.mistakes()):
            of_run.append(_mistakes(tested, number))
        else:
            absent.append(f"{tested.run.name}: there is no mistake to show")
        found += [replace(panel, group=tested.run.name) for panel in (*of_run, _filters(tested, number))]
    for number, profile in enumerate(sources.profiles, 1):
        found.append(_phases(profile, number))
        if profile.get("roofs"):
            found.append(_roofline(profile, number))
        else:
            absent.append(
                f"{_profiled(profile)}: no roofline, since what this processor can do at best is not measured"
            )
    for number, bench in enumerate(sources.benches, 1):
        found += _bench(bench, number)
    for number, swept in enumerate(sources.sweeps, 1):
        if all(map(math.isnan, swept.accuracies)):
            why = "every model of it diverged" if swept.accuracies else "no model of it is done"
            absent.append(f"{swept.name}: {why}")
            continue
        maps = list(accuracy_map(swept, number))
        if len(maps) > MOST_MAPS:
            absent.append(f"{swept.name}: {len(maps) - MOST_MAPS} more maps, of options that do no better")
        shown = [*(luck(swept, number) or recipes(swept, number)), *over_option(swept, number), *maps[:MOST_MAPS]]
        named = f", {_short(swept.name)}" if len(sources.sweeps) > 1 else ""
        found += [replace(panel, title=panel.title + named, group=swept.name) for panel in shown]
    return found, absent


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table: the first `left` columns flush left, the others flush right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]

    def cell(text: str, k: int) -> str:
        return text.ljust(widths[k]) if k < left else text.rjust(widths[k])

    return ["  ".join(cell(text, k) for k, text in enumerate(row)).rstrip() for row in rows]


# ---- runs ------------------------------------------------------------------------------------------------------------


def _short(text: str, most: int = 44) -> str:
    """What fits into the width of a picture."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _legend_below(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    short = [_short(name) for name in names]
    figure.legend(handles, short, loc="outside lower left", borderaxespad=0.2, handlelength=2.2)


def _curves(runs: Sequence[Run], name: str) -> Panel:
    """Training and test values by epoch, a colour for each run."""
    title, keys, scale = curves.CURVES[name]
    labels = _labels(runs)

    def draw(figure: Figure) -> None:
        handles = curves.draw(figure.subplots(), [run.epochs for run in runs], keys, scale)
        _legend_below(figure, handles, [*labels, *curves.KINDS])

    rows: list[tuple[str, ...]] = [("run", "epoch", "training", "test")]
    for run, label in zip(runs, labels, strict=True):
        for epoch in run.epochs:
            values = ("-" if epoch.get(key) is None else f"{scale * epoch[key]:.4g}" for key in keys)
            rows.append((label, str(epoch["epoch"]), *values))
    note = (
        "The training value is the mean over the epoch's steps, while the weights change; the test value is from after "
        "the epoch."
    )
    return Panel(name, title, note, 230 + LEGEND_LINE * (len(runs) + 2), draw, aligned(rows))


def _labels(runs: Iterable[Run]) -> list[str]:
    return [f"{run.name}, {run.engine}" for run in runs]


def _classes(runs: Sequence[Tested]) -> Panel:
    """The share of each class's test images that was right."""
    with np.errstate(invalid="ignore", divide="ignore"):
        tables = [100 * (1 - tested.answers.errors / tested.answers.counts) for tested in runs]
    labels = _labels(tested.run for tested in runs)
    widest = max((tested.answers for tested in runs), key=lambda answers: answers.shown)
    tables, classes = [table[: widest.shown] for table in tables], range(widest.shown)

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        if len(runs) == 1:
            axes.vlines(classes, tables[0], 100, color=charts.GRID)
        charts.lines(axes, classes, dict(zip(labels, (t.tolist() for t in tables), strict=True)))
        for line in axes.lines:
            line.set_linestyle("none")
        axes.set_xticks(classes)
        axes.set_xlabel("class")
        axes.margins(0.05, 0.12)
        _legend_below(figure, axes.lines, labels)

    rows = [("class", *(str(k) for k in range(1, len(runs) + 1)))]
    for label in classes:
        rows.append((widest.name(label), *("-" if math.isnan(t[label]) else f"{t[label]:.2f} %" for t in tables)))
    text = [f"{number}: {label}" for number, label in enumerate(labels, 1)] + aligned(rows)
    note, legend = "The share of each class's test images that were right.", "The axis does not begin at 0."
    return Panel("classes", "Accuracy by class, %", note, 220 + LEGEND_LINE * len(runs), draw, text, legend=legend)


def _confusion(tested: Tested, number: int) -> Panel:
    answers = tested.answers

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        charts.matrix(figure.subplots(), answers.matrix[: answers.shown, : answers.shown].tolist())

    wrong = int(answers.errors.sum())
    note = (
        f"{wrong} of {len(answers.labels)} test images of {_what(tested)} are wrong: {100 * answers.accuracy:.2f} % "
        f"right, by {_how(tested)}."
    )
    columns, rows = confusion.table(answers)
    without, rows = columns.index("of"), [columns, *rows]
    text = aligned([(*row[:without], *row[without + 1 :]) for row in rows])
    legend = "The last row and column are totals."
    return Panel(f"confusion-{number}", f"Confusion matrix, {tested.run.name}", note, 350, draw, text, legend=legend)


def _what(tested: Tested) -> str:
    """The data set, and whether it is the run's."""
    same = "test" not in what_differs(tested.run.config, tested.data)
    return tested.data.name if same else f"{tested.data.name}, which are not those of the run,"


def _how(tested: Tested) -> str:
    """What tested the model, and whether that is what trained it."""
    here = f"{tested.engine.info.name} {tested.engine.precision}"
    return here if here == tested.run.engine else f"{here} (trained by {tested.run.engine}, which cannot run here)"


def _mistakes(tested: Tested, number: int) -> Panel:
    answers, data = tested.answers, tested.data
    worst = answers.mistakes()[:MISTAKES]
    images = data.test_images[worst]
    columns = 8

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        charts.pictures(figure.subplots(), list(images), [f"{a} as {b}" for a, b in pairs], columns)

    pairs = [(int(answers.labels[k]), confusion.taken_for(answers, k)) for k in worst]
    rows = [("image", "class", "taken for", "probability", "of its class")]
    for k, (label, taken) in zip(worst, pairs, strict=True):
        own, other = answers.probabilities[k, label], answers.probabilities[k].max()
        rows.append((str(k), str(label), taken, f"{100 * other:.1f} %", f"{100 * own:.2g} %"))

    def sketch(colour: bool, encoding: str) -> list[str]:
        lines = []
        for k, (label, taken) in list(zip(worst, pairs, strict=True))[:3]:
            lines += [
                f"test image {k}: {label} as {taken}",
                *render(data.test_images[k], colour=colour, encoding=encoding).splitlines(),
            ]
        return lines

    note = "The test images whose true class got the least probability, the worst first: true class, predicted class."
    height = 62 * -(-len(worst) // columns)
    title = f"The worst {plural(len(worst), 'mistake')}, {tested.run.name}"
    return Panel(f"mistakes-{number}", title, note, height, draw, aligned(rows, 0), sketch)


def _filters(tested: Tested, number: int) -> Panel:
    weights = np.asarray(tested.model.parameters["conv1.weight"], np.float64)[:, 0]
    limit = float(np.abs(weights).max())

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        charts.pictures(figure.subplots(), list(weights), [str(k) for k in range(len(weights))], 8, limit)

    rows = [("filter", *(f"w{y}{x}" for y in range(3) for x in range(3)))]
    rows += [(str(k), *(f"{w:+.3f}" for w in weight.ravel())) for k, weight in enumerate(weights)]

    def sketch(colour: bool, encoding: str) -> list[str]:
        marks = shades(encoding)
        levels = np.clip((weights + limit) / (2 * limit) * len(marks), 0, len(marks) - 1).astype(int)
        lines = []
        for first in range(0, len(weights), 8):
            for y in range(3):
                lines.append("  ".join("".join(2 * marks[v] for v in levels[k, y]) for k in range(first, first + 8)))
            lines.append("")
        return [*lines, f"A blank is {-limit:.2f}, {marks[-1]} is {limit:+.2f}."]

    note, legend = f"The {len(weights)} filters of 3 x 3 weights.", f"Black is {-limit:.2f}, white {limit:+.2f}."
    title = f"Filters of conv1, {tested.run.name}"
    return Panel(f"filters-{number}", title, note, 260, draw, aligned(rows), sketch, legend)


# ---- profiles --------------------------------------------------------------------------------------------------------


def _profiled(profile: Record) -> str:
    machine = profile.get("machine", {})
    name = (machine.get("gpu") or {}).get("name") or machine.get("cpu") or "this machine"
    return f"{profile['engine']} {profile['precision']}, batch {profile['batch_size']}, {name}"


def _op_names(profile: Record) -> list[str]:
    """The ops of a profile, numbered from 1; with their phases where their names do not have them."""
    return [f"{number}  {full_name(op['phase'], op['op'])}" for number, op in enumerate(profile["ops"], 1)]


def _timed(profile: Record) -> str:
    """What the engine's times are of."""
    return "phase" if len({op["phase"] for op in profile["ops"]}) == len(profile["ops"]) else "op"


def _phases(profile: Record, number: int) -> Panel:
    """A bar for each op, with a mark at the least time that the machine's roofs allow it."""
    ops, names = profile["ops"], _op_names(profile)
    total = sum(op["us"] for op in ops)
    roofs = any(op.get("least_us") for op in ops)

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        for k, op in enumerate(ops):
            axes.barh(k, op["us"], 0.42, color=charts.LINES[0])
            axes.text(0, k - 0.28, _short(names[k]), va="bottom")
            axes.annotate(
                format_count(op["us"]), (op["us"], k), (4, 0), textcoords="offset points", va="center",
                color=charts.MUTED,
            )  # fmt: skip
            if op.get("least_us"):
                axes.plot([op["least_us"]] * 2, [k - 0.3, k + 0.3], color=charts.WRONG)
        axes.set_ylim(len(ops) - 0.5, -0.9)
        axes.set_xlim(0, 1.15 * max(op["us"] for op in ops))
        axes.locator_params(axis="x", nbins=4)  # numbers of six digits have room
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("microseconds")

    rows = [(_timed(profile), "us", "share", *(("least", "bound") if roofs else ()))]
    for name, op in zip(names, ops, strict=True):
        least = (format_count(op["least_us"]), op["bound"]) if op.get("least_us") else ("-", "-")
        rows.append((name, format_count(op["us"]), f"{100 * op['us'] / total:.1f} %", *(least if roofs else ())))

    def sketch(_: bool, encoding: str) -> list[str]:
        most, block = max(op["us"] for op in ops), shades(encoding)[-1]
        bars = (block * max(1, round(24 * op["us"] / most)) for op in ops)
        cells = [(name, bar, format_count(op["us"]), "us") for name, bar, op in zip(names, bars, ops, strict=True)]
        return [clean(line) for line in aligned(cells, 2)]

    note = (
        f"Together {format_count(total)} us; without profiling a step takes "
        f"{format_count(profile['step_us']['median'])} us."
        + (" `least` is the shortest time that this GPU allows." if roofs else "")
    )
    title = f"Time of each {_timed(profile)} in a step: {_profiled(profile)}"
    legend = "The red mark is at `least`." if roofs else ""
    return Panel(f"phases-{number}", title, note, 60 + 38 * len(ops), draw, aligned(rows), sketch, legend)


def _roofline(profile: Record, number: int) -> Panel:
    """Each op's rate over its intensity, below what memory and arithmetic allow."""
    from mnist_cuda.bench.profile import unit_rates

    roofs, names = profile["roofs"], _op_names(profile)
    points = [
        (k, op["flops"] / op["bytes"], op["flops"] / op["us"] / 1e6, op["unit"])
        for k, op in enumerate(profile["ops"])
        if op["flops"] and op["bytes"]
    ]
    bandwidth = roofs["bytes_per_second"] / 1e12
    rates = {unit: rate / 1e12 for unit, rate in unit_rates(roofs).items() if unit in {p[3] for p in points}}

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="flop per byte", ylabel="TFLOP/s")
        first = min(x for _, x, _, _ in points) / 2
        last = 3 * max([x for _, x, _, _ in points] + [rate / bandwidth for rate in rates.values()])
        for unit, rate in rates.items():
            axes.plot([rate / bandwidth, last], [rate, rate], color=charts.MUTED)
            axes.text(last, rate, unit, ha="right", va="bottom", color=charts.MUTED)
        knee = max(rates.values(), default=bandwidth * last) / bandwidth
        axes.plot([first, knee], [bandwidth * first, bandwidth * knee], color=charts.MUTED)
        for k, x, y, _ in points:
            axes.plot(x, y, marker="o", color=charts.LINES[0])
            axes.annotate(str(k + 1), (x, y), xytext=(3, 2), textcoords="offset points")

    rows = [(_timed(profile), "flop per byte", "TFLOP/s", "unit")]
    rows += [(names[k], f"{x:.3g}", f"{y:.3g}", unit) for k, x, y, unit in points]
    limits = [f"{1e3 * bandwidth:.0f} GB/s copied", *(f"{rate:.3g} TFLOP/s in {u}" for u, rate in rates.items())]
    note = f"The best measured on this GPU: {', '.join(limits)}."
    legend = f"The lines are these rates; the numbers are those of the {_timed(profile)}s above."
    title = f"Roofline: {_profiled(profile)}"
    return Panel(f"roofline-{number}", title, note, 300, draw, aligned(rows), legend=legend)


# ---- benchmarks ------------------------------------------------------------------------------------------------------


def _bench(bench: Record, number: int) -> Iterator[Panel]:
    """For each precision and place of the images: microseconds an image over the batch size, a line a competitor."""
    sound = [row for row in bench["rows"] if row["us"] and not row.get("fault")]
    for letter, key in enumerate(dict.fromkeys((row["precision"], row["data"]) for row in sound)):
        series: dict[str, dict[int, float]] = {}
        for row in sound:
            if (row["precision"], row["data"]) == key:
                series.setdefault(row["competitor"], {})[row["batch_size"]] = row["us"]["median"] / row["batch_size"]
        yield _bench_panel(bench, series, key, f"bench-{number}{chr(ord('a') + letter)}")


def _bench_panel(bench: Record, series: Mapping[str, Mapping[int, float]], key: tuple[str, str], name: str) -> Panel:
    batches = sorted({batch for values in series.values() for batch in values})
    machine = bench.get("machine", {})
    where = (machine.get("gpu") or {}).get("name") or machine.get("cpu") or "a machine"

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        from mnist_cuda.report import charts

        axes = figure.subplots()
        filled = {label: [values.get(b, math.nan) for b in batches] for label, values in series.items()}
        charts.lines(axes, batches, filled)
        axes.set(xscale="log", yscale="log", xlabel="batch size")
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        _legend_below(figure, axes.lines, list(series))

    rows = [("us per image", *(f"B={batch}" for batch in batches))]
    for label, values in series.items():
        rows.append((label, *(f"{values[b]:.3g}" if b in values else "-" for b in batches)))
    place = f", images on the {key[1]}" if key[1] != "device" else ""
    note = (
        f"Medians of `{bench.get('command', bench['file'])}` of {str(bench.get('started', '-'))[:10]}. Lower is faster."
    )
    title = f"Microseconds per image, {key[0]}{place}: {where}"
    text = [*aligned(rows), "", str(bench.get("command", ""))]
    return Panel(name, title, note, 240 + LEGEND_LINE * len(series), draw, text)


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def luck(swept: Swept, number: int) -> list[Panel]:
    """How many models have how many test images right, beside the binomial of a network of their mean accuracy.

    The number of test images is the least for which each accuracy is a whole number of them.
    """
    different = [name for name, cells in swept.options.items() if len(set(cells)) > 1]
    accuracies = [value for value in swept.accuracies if not math.isnan(value)]
    if different != ["seed"] or len(accuracies) < FEWEST_SEEDS:
        return []
    images = math.lcm(*(Fraction(value).limit_denominator(10**6).denominator for value in accuracies))
    right = sorted(round(images * value) for value in accuracies)
    mean = sum(right) / len(right)
    spread = ranking.deviation(right)
    chance = math.sqrt(mean * (1 - mean / images))
    beyond = len(right) // 500  # so many on either side may lie far out, and go to the outermost bars
    first = max(0, min(math.floor(mean - 4 * chance), right[beyond]))
    last = min(images, max(math.ceil(mean + 4 * chance), right[-1 - beyond]))
    width = -(-(last + 1 - first) // MOST_BARS)
    starts = range(first, last + 1, width)
    found = Counter(min(max(0, (n - first) // width), len(starts) - 1) for n in right)

    def share(n: int) -> float:
        p = mean / images
        ways = math.lgamma(images + 1) - math.lgamma(n + 1) - math.lgamma(images - n + 1)
        logs = (n * math.log(p) if n else 0.0) + ((images - n) * math.log1p(-p) if n < images else 0.0)
        return math.exp(ways + logs)

    seeds = [100 * found[k] / len(right) for k in range(len(starts))]
    chances = [100 * sum(share(n) for n in range(start, min(images + 1, start + width))) for start in starts]
    middles = [100 * (start + (width - 1) / 2) / images for start in starts]

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        bars = axes.bar(middles, seeds, 0.9 * 100 * width / images, color=charts.LINES[0])
        (line,) = axes.plot(middles, chances, color=charts.LINES[2])
        axes.set(xlabel="test accuracy, %", ylabel="% of them")
        _legend_below(figure, [bars, line], [f"{len(right)} seeds", f"one network on ever other {images} images"])

    rows = [("right", "seeds", "binomial")]
    for start, seen, expected in zip(starts, seeds, chances, strict=True):
        label = str(start) if width == 1 else f"{start} to {start + width - 1}"
        rows.append((label, f"{seen:.2f} %", f"{expected:.2f} %"))
    percent = 100 / images
    note = (
        f"Of {images} test images {percent * mean:.3f} % are right, from {percent * right[0]:.2f} to "
        f"{percent * right[-1]:.2f}. The standard deviation over seeds is {percent * spread:.3f} points; one "
        f"network tested on other images would have {percent * chance:.3f} (binomial)."
    )
    if outside := sum(not first <= n < starts[-1] + width for n in right):
        note += f" {plural(outside, 'seed')} further out {'is' if outside == 1 else 'are'} counted with the outermost."
    title = f"Test accuracy of {len(right)} seeds"
    return [Panel(f"seeds-{number}", title, note, 230 + 2 * LEGEND_LINE, draw, aligned(rows))]


def recipes(swept: Swept, number: int) -> list[Panel]:
    """The test accuracies of the best recipes, a dot for each seed; LISTED of them in the text."""
    found = ranking.recipes(swept.options, swept.accuracies, swept.held)
    best = [one for one in found if one.accuracies][:MOST_RECIPES]

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        for k, one in enumerate(best):
            accuracies = [100 * value for value in one.accuracies]
            axes.plot(accuracies, [k] * len(accuracies), "o", color=charts.LINES[0], alpha=0.6)
            if one.models > 1 and not one.diverged:
                axes.plot([100 * one.mean] * 2, [k - 0.14, k + 0.14], color=charts.LINES[2])
            axes.annotate(
                _short(f"{k + 1}  {one.name}" if one.name else "all models"), (0, k - 0.17),
                xycoords=("axes fraction", "data"), va="bottom",
            )  # fmt: skip
        axes.set_ylim(len(best) - 0.5, -0.9)
        axes.margins(x=0.05)
        axes.locator_params(axis="x", nbins=5)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel("test accuracy, %")

    first, several = found[0], any(one.models > 1 for one in found)
    columns, rows = ranking.table(found[:LISTED])
    mean, by = "mean " if several else "", "test images" if first.held is None else "images held out"
    of = f" of {len(found)}" if len(best) < len(found) else ""
    note = f"The best {len(best)}{of} by their {mean}accuracy on the {by}." if len(found) > 1 else ""
    if diverged := sum(one.diverged for one in found):
        note += f" {plural(diverged, 'model')} diverged and {'counts' if diverged == 1 else 'count'} as 0 % right."
    if first.name:
        note += f" The first has {first.name}: {100 * first.mean:.2f} % of the test images are right"
        note += f" (mean of {plural(first.models, 'seed')})." if several else "."
    legend = f"A dot is a model{', the line their mean' if several else ''}."
    title = (
        f"The recipes of {plural(len(swept.accuracies), 'model')}, best first" if len(found) > 1 else "Test accuracy"
    )
    text = aligned([columns, *rows], 0)
    if len(found) > LISTED:
        text.append(f"and {len(found) - LISTED} more")
    return [Panel(f"recipes-{number}", title, note.strip(), 50 + 40 * len(best), draw, text, legend=legend)]


def over_option(swept: Swept, number: int) -> Iterator[Panel]:
    """The test accuracy over the one option that differs, if it is one: a dot for each model, a line through means."""
    names = ranking.varied(swept.options)
    if len(names) != 1:
        return
    (name,) = names
    values, numeric = sorted_values(swept.options[name]), name not in ("schedule", "eval_bn", "placement")
    found: dict[str, list[float]] = {value: [] for value in values}
    for value, accuracy in zip(swept.options[name], swept.accuracies, strict=True):
        found[value].append(100 * accuracy)
    sound = {value: [a for a in models if not math.isnan(a)] for value, models in found.items()}
    means = [math.fsum(models) / len(models) if models else math.nan for models in sound.values()]

    def draw(figure: Figure) -> None:
        from mnist_cuda.report import charts

        axes = figure.subplots()
        points = [(x, accuracy) for x, models in enumerate(sound.values()) for accuracy in models]
        if numeric:
            axes.plot(range(len(values)), means, color=charts.LINES[2])
        else:
            axes.hlines(means, [x - 0.2 for x in range(len(values))], [x + 0.2 for x in range(len(values))],
                color=charts.LINES[2])  # fmt: skip
        axes.plot(*zip(*points, strict=True), "o", color=charts.LINES[0], alpha=0.6)
        places = range(0, len(values), -(-len(values) // 8))
        axes.set_xticks(list(places), [_short(values[k], 12) for k in places])
        axes.set(xlim=(-0.4, len(values) - 0.6), xlabel=ranking.words(name))
        axes.margins(y=0.08)

    rows = [(ranking.words(name), "models", "mean, %", "least", "most")]
    for value, mean in zip(values, means, strict=True):
        numbers = (mean, min(sound[value]), max(sound[value])) if sound[value] else ()
        cells = (f"{number:.2f}" for number in numbers) if numbers else ("-", "-", "-")
        rows.append((value, str(len(sound[value])), *cells))
    line = "line goes through" if numeric else "lines are"
    legend, note = f"A dot is a model, the {line} the means over the seeds.", ""
    if all(len(models) == 1 for models in found.values()):
        legend = "A dot is a model, of one seed."
    if diverged := [f"{len(found[v]) - len(sound[v])} at {v}" for v in values if len(sound[v]) < len(found[v])]:
        note = f"Left out, as they diverged: {', '.join(diverged)}."
    title = f"Test accuracy (%) over {ranking.words(name)}"
    yield Panel(f"over-{number}", title, note, 230, draw, aligned(rows, 0), legend=legend)


def sorted_values(cells: Sequence[str]) -> list[str]:
    """The different values, by size if they are numbers."""
    values = list(dict.fromkeys(cells))
    with contextlib.suppress(ValueError):
        values.sort(key=float)
    return values


def accuracy_map(swept: Swept, number: int) -> Iterator[Panel]:
    """The share of wrong test images over learning rate and batch size: a map for all values of the other options.

    It averages over seeds alone. The map with the least comes first, and a colour means the same in all of them.
    """
    names = [name for name in ranking.varied(swept.options) if name not in ("lr", "batch_size")]
    groups: dict[tuple[str, ...], list[int]] = {}
    for k in range(len(swept.accuracies)):
        groups.setdefault(tuple(swept.options[name][k] for name in names), []).append(k)
    found = []
    for values, models in groups.items():
        of = {name: [swept.options[name][k] for k in models] for name in ("lr", "batch_size") if name in swept.options}
        if len(of) == 2 and all(len(set(cells)) > 1 for cells in of.values()):
            cells: dict[tuple[str, str], list[float]] = {}
            for k, batch, rate in zip(models, of["batch_size"], of["lr"], strict=True):
                accuracy = swept.accuracies[k]
                wrong = 100.0 if math.isnan(accuracy) else round(100 * (1 - accuracy), 9)
                cells.setdefault((batch, rate), []).append(wrong)
            name = ", ".join(f"{ranking.words(n)} {value}" for n, value in zip(names, values, strict=True))
            found.append((name, cells, any(math.isnan(swept.accuracies[k]) for k in models)))
    leasts = [min(math.fsum(values) / len(values) for values in cells.values()) for _, cells, _ in found]
    for place, k in enumerate(sorted(range(len(found)), key=leasts.__getitem__), 1):
        letter = "" if len(found) == 1 else f"-{place}"
        yield _map(f"map-{number}{letter}", *found[k], min(leasts), "seeds" if "seed" in swept.options else "models")


def _map(
    panel: str, name: str, cells: Mapping[tuple[str, str], Sequence[float]], diverged: bool, least: float,
    over: str,
) -> Panel:  # fmt: skip
    """A map of the per cent of wrong images of the models of each (batch size, learning rate).

    name: of the other options. diverged: whether any model did. least: per cent wrong, where the colours begin.
    over: what several models of a cell are.
    """
    batches, rates = (sorted_values([place[axis] for place in cells]) for axis in (0, 1))
    wrong = {place: math.fsum(values) / len(values) for place, values in cells.items()}
    best = min(wrong, key=lambda place: wrong[place])
    levels = ERRORS[bisect_left(ERRORS, least) :]
    level = {place: bisect_left(levels, value) for place, value in wrong.items()}

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps
        from matplotlib.patches import Patch, PathPatch
        from matplotlib.path import Path

        axes = figure.subplots()
        colours = [colormaps["viridis"](1 - k / max(1, len(levels) - 1)) for k in range(len(levels))]
        rectangles: dict[int, list[Path]] = {}
        for y, rate in enumerate(rates):
            x = 0
            while x < len(batches):  # a rectangle for neighbours of one colour
                end, shown = x + 1, level.get((batches[x], rate))
                while end < len(batches) and level.get((batches[end], rate)) == shown:
                    end += 1
                if shown is not None:
                    corners = [(x, y), (end, y), (end, y + 1), (x, y + 1), (x, y)]
                    rectangles.setdefault(shown, []).append(Path(corners, closed=True))
                x = end
        for k, paths in sorted(rectangles.items()):
            axes.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=colours[k], linewidth=0))
        axes.set(xlim=(0, len(batches)), ylim=(0, len(rates)), xlabel="batch size", ylabel="learning rate")
        axes.grid(False)
        for values, set_ticks, most in ((batches, axes.set_xticks, 5), (rates, axes.set_yticks, 9)):
            places = range(0, len(values), -(-len(values) // most))
            set_ticks([k + 0.5 for k in places], [f"{float(values[k]):.3g}" for k in places])
        x, y = batches.index(best[0]), rates.index(best[1])
        legible = len(batches) <= LEGIBLE[0] and len(rates) <= LEGIBLE[1]
        inks = ["#000000" if np.dot(colour[:3], (0.2126, 0.7152, 0.0722)) > 0.4 else "#fefefe" for colour in colours]
        axes.plot(x + 0.5, y + (0.2 if legible else 0.5), marker="x", color=inks[level[best]])
        for (batch, rate), value in wrong.items() if legible else ():
            at = batches.index(batch) + 0.5, rates.index(rate) + 0.5
            axes.text(
                *at,
                f"{value:.2f}" if value < 1 else f"{value:.3g}",
                ha="center",
                va="center",
                color=inks[level[batch, rate]],
            )
        handles = [Patch(color=colours[k]) for k in range(len(levels)) if k in rectangles]
        names = [f"to {levels[k]:g}" for k in range(len(levels)) if k in rectangles]
        figure.legend(handles, names, loc="outside right upper", title="% wrong", handlelength=1)

    rows = [("wrong, %", *(f"B={batch}" for batch in batches))]
    for rate in reversed(rates):
        rows.append((f"{float(rate):.3g}", *(f"{wrong[b, rate]:.2f}" if (b, rate) in wrong else "-" for b in batches)))
    counts = sorted({len(values) for values in cells.values()})
    note = f"The share of wrong test images after {sum(map(len, cells.values()))} trainings"
    if counts != [1]:
        note += f", the mean over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} {over}"
    note += ". A model that diverged counts as all wrong." if diverged else "."
    note += (
        f" The least is {wrong[best]:.2f} %, at batch size {best[0]} and rate {float(best[1]):.3g}"
        f"{f', with {name}' if name else ''}."
    )
    title = f"Test error over learning rate and batch size, {len(batches)} x {len(rates)}{f', {name}' if name else ''}"
    return Panel(panel, title, note, 330, draw, aligned(rows), legend="The cross marks the least.")
