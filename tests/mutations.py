"""THE table of mutations: one line of the code changed each time, and the tests that are to notice it.

scripts/mutate runs them, docs/trust.md shows them with every verdict. A row is a name, a kind, the text that is
replaced, exactly as it stands in the file and only once there (with a neighbouring line where the line alone occurs
twice), and what takes its place; a fifth text says why no test can notice it, and then it is not run.
"""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A row. `by`: runs of tests in their order, each `ctest NAME` or arguments of pytest, until one fails.

    For a GPU `{spec}` in `by` stands for engine and precision, `precision` says in which one the line matters, and the
    engine's whole GPU suite runs after `by`.
    """

    name: str
    file: str
    kind: str
    before: str
    after: str
    by: tuple[str, ...] = ()
    precision: str = ""
    equivalent: str = ""


def of(file: str, by: Iterable[str], *rows: tuple[str, ...], precision: str = "") -> list[Mutation]:
    """The rows of one file."""
    return [Mutation(*row[:1], file, *row[1:4], tuple(by), precision, *row[4:]) for row in rows]


# ---- Python ----------------------------------------------------------------------------------------------------------

REPORTED = "test_reported_values.py"

TRAINING = [
    *of(
        "mnist_cuda/train.py",
        (REPORTED, "test_train.py"),
        (
            "same-order-from-epoch-3",
            "order",
            "SeedSequence([seed, 1, epoch])))\n",
            "SeedSequence([seed, 1, min(epoch, 3)])))\n",
        ),
        (
            "order-of-the-weights-stream",
            "order",
            "SeedSequence([seed, 1, epoch])))\n",
            "SeedSequence([seed, 0, epoch])))\n",
        ),
        (
            "seed-of-the-first-epoch-only",
            "order",
            "epoch_order(self.args.seed, epoch, len",
            "epoch_order(self.args.seed if epoch == 1 else 0, epoch, len",
        ),
        (
            "chunk-that-begins-late",
            "off by one",
            "order[done * batch : (done + chunk) * batch]",
            "order[done * batch + (done > 0) : (done + chunk) * batch + (done > 0)]",
        ),
        (
            "an-epoch-one-step-short",
            "off by one",
            "self.steps_per_epoch = len(data.train_labels) // args.batch_size",
            "self.steps_per_epoch = max(1, len(data.train_labels) // args.batch_size - 1)",
        ),
        ("warm-up-of-one-step", "clock", "self.clock.add(chunk, steps.seconds)", "self.clock.add(1, steps.seconds)"),
        (
            "seconds-of-the-last-chunk",
            "clock",
            "done, seconds = done + chunk, seconds + steps.seconds",
            "done, seconds = done + chunk, steps.seconds",
        ),
        (
            "divergence-seen-at-a-chunks-start",
            "late",
            "if not sound.all():",
            "if not sound[0]:",
        ),
        (
            "divergence-seen-at-the-epochs-end",
            "late",
            "if not sound.all():",
            "if done == self.steps_per_epoch and not (losses < DIVERGED_LOSS).all():",
        ),
        (
            "infinity-is-no-divergence",
            "late",
            "sound = steps.losses < DIVERGED_LOSS",
            "sound = ~np.isnan(steps.losses)",
        ),
        (
            "loss-of-the-last-step",
            "reported value",
            '"loss": float(losses[:done].mean())',
            '"loss": float(losses[done - 1])',
        ),
        (
            "hits-a-step",
            "unit",
            '"train_accuracy": float(correct[:done].mean()) / batch',
            '"train_accuracy": float(correct[:done].mean()) / 10',
        ),
        (
            "steps-a-second",
            "unit",
            '"images_per_second": batch * done / seconds',
            '"images_per_second": done / seconds',
        ),
        (
            "blocks-of-all-epochs",
            "reported value",
            "timing = self.clock.summary(first_block)",
            "timing = self.clock.summary()",
        ),
        (
            "milliseconds-as-microseconds",
            "unit",
            'us = 1e6 * record["train_seconds"] / record["steps"]',
            'us = 1e3 * record["train_seconds"] / record["steps"]',
        ),
        (
            "microseconds-an-epoch",
            "unit",
            'us = 1e6 * record["train_seconds"] / record["steps"]',
            'us = 1e6 * record["train_seconds"] / record["epoch"]',
        ),
        (
            "test-accuracy-as-a-fraction",
            "unit",
            "test {100 * record['test_accuracy']:.2f} %",
            "test {record['test_accuracy']:.2f} %",
        ),
        ("evaluation-not-timed", "clock", "        self.evaluation_seconds += seconds\n", ""),
        (
            "population-whatever-was-asked",
            "option",
            "data.test_labels, self.args.eval_bn)",
            'data.test_labels, "population")',
        ),
        (
            "statistics-after-every-epoch",
            "option",
            'if self.args.eval_bn == "population" or record["epoch"]',
            'if self.args.eval_bn or record["epoch"]',
        ),
        (
            "file-without-statistics",
            "file",
            "self._save(parameters, statistics)",
            "self._save(parameters, None)",
        ),
        ("epochs-asked-for-not-done", "file", '"epochs": str(self.epochs_done)', '"epochs": str(self.args.epochs)'),
        (
            "chunks-as-steps",
            "file",
            "Checkpoint(parameters, statistics, metadata), steps=self.clock.steps)",
            "Checkpoint(parameters, statistics, metadata), steps=len(self.clock))",
        ),
        (
            "signal-in-the-last-epoch-forgotten",
            "exit code",
            "return 0 if stop.signal is None else exit_code(stop.signal)",
            "return 0",
        ),
        (
            "interrupted-but-not-told",
            "file",
            'self._add_metrics(record | {"interrupted": True})',
            "self._add_metrics(record)",
        ),
        (
            "stopped-with-0",
            "exit code",
            "        self._report(signum, complete)\n        return exit_code(signum)",
            "        self._report(signum, complete)\n        return 0",
        ),
        ("time-of-training-as-the-whole", "reported value", '"seconds": total,', '"seconds": self.clock.seconds,'),
        ("images-on-the-device-always", "option", "self.data.train_labels, self.args.data)", "self.data.train_labels)"),
        (
            "threads-not-passed-on",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)\n",
            "engine = Engine(args.engine, args.precision, device=args.device)\n",
        ),
        (
            "device-not-passed-on",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)\n",
            "engine = Engine(args.engine, args.precision, threads=args.threads)\n",
        ),
        (
            "offline-not-passed-on",
            "option",
            "data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)",
            "data = dataset.load(args.dataset, data_dir=args.data_dir, mirror=args.mirror)",
        ),
        (
            "weights-of-seed-0",
            "option",
            "engine.init_parameters(args.seed)",
            "engine.init_parameters(0)",
        ),
        ("live-images-are-steps", "unit", '{self.args.batch_size * 1e6 / us:.0f} img/s",', '{1e6 / us:.0f} img/s",'),
        (
            "time-left-of-the-epoch",
            "reported value",
            "left = self.args.epochs * self.steps_per_epoch - self.clock.steps",
            "left = self.steps_per_epoch - done",
        ),
    ),
    *of(
        "mnist_cuda/timing.py",
        (REPORTED, "test_timing.py"),
        (
            "recent-in-milliseconds",
            "unit",
            "return (1e6 * seconds / steps, steps) if steps",
            "return (1e3 * seconds / steps, steps) if steps",
        ),
        (
            "recent-with-the-warm-up",
            "clock",
            "in reversed(self._blocks[1:] or self._blocks):",
            "in reversed(self._blocks):",
        ),
        (
            "summary-with-the-warm-up",
            "clock",
            "blocks = self._blocks[max(first_block, 1 if len(self._blocks) > 1 else 0) :]",
            "blocks = self._blocks[first_block:]",
        ),
        (
            "clock-of-the-call-alone",
            "clock",
            "return Steps(losses, correct, time.perf_counter() - start)",
            "return Steps(losses, correct, start - start)",
        ),
        (
            "samples-of-blocks",
            "unit",
            "self.samples.append(1e6 * seconds / self.steps_per_block)",
            "self.samples.append(1e6 * seconds)",
        ),
        ("p5-is-p10", "reported value", "np.percentile(us, (5, 50, 95))", "np.percentile(us, (10, 50, 95))"),
        ("block-of-half-the-length", "clock", "if seconds < BLOCK_SECONDS:", "if seconds < BLOCK_SECONDS / 2:"),
    ),
    *of(
        "mnist_cuda/console.py",
        (REPORTED,),
        (
            "hours-from-the-61st-minute",
            "unit",
            'if minutes < 60 else f"{minutes // 60}',
            'if minutes <= 60 else f"{minutes // 60}',
        ),
        (
            "seconds-of-a-hundred",
            "unit",
            "minutes, rest = divmod(round(seconds), 60)",
            "minutes, rest = divmod(round(seconds), 100)",
        ),
    ),
    *of(
        "mnist_cuda/evaluate.py",
        (REPORTED, "test_evaluate.py"),
        (
            "last-images-not-scored",
            "off by one",
            "for first in range(0, len(labels), BATCH_SIZE):",
            "for first in range(0, len(labels) - BATCH_SIZE + 1, BATCH_SIZE):",
        ),
        (
            "labels-of-the-first-images",
            "off by one",
            "of_batch = labels[first : first + BATCH_SIZE]",
            "of_batch = labels[: min(BATCH_SIZE, len(labels) - first)]",
        ),
        (
            "a-score-of-nan-is-right",
            "reported value",
            "scores.argmax(axis=1) == of_batch) & finite)",
            "scores.argmax(axis=1) == of_batch))",
        ),
        (
            "loss-a-batch",
            "unit",
            "return Evaluation(correct, len(labels), loss / len(labels))",
            "return Evaluation(correct, len(labels), loss / BATCH_SIZE)",
        ),
        (
            "evaluate-without-the-precision",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)",
            "engine = Engine(args.engine, threads=args.threads, device=args.device)",
        ),
    ),
    *of(
        "mnist_cuda/model.py",
        ("test_engines.py -k 'wrong_calls and reference'", REPORTED),
        ("imaginary-parts-lost", "refusal", 'if value.dtype.kind not in "fiu":', 'if value.dtype.kind not in "fiuc":'),
        ("any-shape", "refusal", "if value.shape != t.shape:", "if value.size != t.size:"),
        (
            "biases-as-if-of-one-input",
            "initial values",
            'bound = 1 / math.sqrt(math.prod(shapes[f"{layer}.weight"][1:]))',
            "bound = 1 / math.sqrt(math.prod(shapes[t.name][1:]))",
        ),
    ),
    *of(
        "mnist_cuda/engine.py",
        (
            "test_engines.py -k 'wrong_calls and reference'",
            REPORTED,
            "test_engines.py -k '(round_trip or unknown or registry) and not gpu'",
        ),
        (
            "indices-cut-to-32-bits",
            "refusal",
            "if order.dtype != np.int32 and (changed := indices != order).any():",
            "if order.dtype == np.float32 and (changed := indices != order).any():",
        ),
        (
            "floats-as-indices",
            "refusal",
            'if order.ndim != 1 or order.dtype.kind not in "iu":',
            'if order.ndim != 1 or order.dtype.kind not in "iuf":',
        ),
        ("any-statistics", "refusal", '        _require_one_of("logits: batch_norm", batch_norm, BatchNorm)\n', ""),
        ("any-placement", "refusal", '        _require_one_of("set_dataset: placement", placement, Placement)\n', ""),
        ("population-is-batch", "option", 'batch_norm == "population")', 'batch_norm != "population")'),
        (
            "precision-that-is-not-offered",
            "refusal",
            "if self.precision not in self.info.precisions:",
            "if not self.info.precisions:",
        ),
    ),
    *of(
        "mnist_cuda/files.py",
        ("test_checkpoint.py", REPORTED),
        ("unsynced-file", "file", "            file.flush()\n            os.fsync(file.fileno())\n", ""),
        (
            "written-in-place",
            "file",
            'part = path.with_name(path.name + ".part")\n    try:\n        with open(part, "wb") as file:',
            'part = path\n    try:\n        with open(part, "wb") as file:',
        ),
    ),
    *of(
        "mnist_cuda/checkpoint.py",
        ("test_checkpoint.py", REPORTED),
        (
            "nan-in-a-file",
            "refusal",
            "bad = tensor.size - int(np.isfinite(tensor).sum())",
            "bad = int(np.isinf(tensor).sum())",
        ),
        (
            "negative-variance",
            "refusal",
            'if name.endswith("running_var") and value.min() < 0:',
            'if name.endswith("running_var") and value.max() < 0:',
        ),
        (
            "tensor-of-another-shape",
            "refusal",
            "if tuple(entry.get_shape()) != shape:",
            "if len(entry.get_shape()) != len(shape):",
        ),
        ("counter-of-epochs", "file", '"steps": str(steps),', '"steps": str(steps + 1),'),
    ),
    *of(
        "mnist_cuda/run_folder.py",
        ("test_train.py", REPORTED),
        (
            "last-epochs-metrics-only",
            "file",
            "self._metrics.append(dumps(record))",
            "self._metrics = [dumps(record)]",
        ),
    ),
    *of(
        "mnist_cuda/signals.py",
        ("test_signals.py -k 'not 500'", REPORTED),
        ("code-127", "exit code", "return 128 + signum", "return 127 + signum"),
        (
            "second-signal-waits",
            "exit code",
            '            if self.signal is not None:\n                end_now(signum, "stopped by a second signal, at once")\n',
            "",
        ),
    ),
]

DATA = [
    *of(
        "mnist_cuda/data/idx.py",
        ("test_data_idx.py",),
        (
            "label-10",
            "refusal",
            "wrong = np.flatnonzero(labels >= CLASSES)",
            "wrong = np.flatnonzero(labels > CLASSES)",
        ),
        (
            "one-byte-too-many",
            "refusal",
            "data = _unpack(content, name, size + 1)",
            "data = _unpack(content, name, size)",
        ),
        ("labels-of-other-images", "refusal", "if len(images) != len(labels):", "if len(images) < len(labels):"),
        (
            "bytes-behind-the-gzip",
            "refusal",
            "surplus = len(content) - end + len(stream.unused_data)",
            "surplus = len(stream.unused_data)",
        ),
        (
            "shape-of-little-endians",
            "off by one",
            "for i in range(4, len(header), 4))",
            "for i in range(4, len(header) - 3, 4))",
            "both stop at the last of whole words: the header has 4 + 4 k bytes by the check two lines above",
        ),
    ),
    *of(
        "mnist_cuda/data/dataset.py",
        ("test_data_dataset.py",),
        (
            "hash-not-compared",
            "refusal",
            "    if sha256 != expected:\n        raise _wrong_file",
            "    if not sha256:\n        raise _wrong_file",
        ),
        (
            "digest-of-images-alone",
            "file",
            "            if not known_digest:\n                digest.update",
            "            if not known_digest and array.ndim == 3:\n                digest.update",
        ),
        (
            "silent-fallback",
            "option",
            'return _generate(name, seed, f"MNIST IS NOT HERE, these are synthetic digits instead: {error}")',
            "return _generate(name, seed, None)",
        ),
    ),
    *of(
        "mnist_cuda/data/download.py",
        ("test_data_download.py",),
        (
            "parts-for-ever",
            "file",
            "            part.unlink()\n\n\ndef _open_part",
            "            pass\n\n\ndef _open_part",
        ),
        ("anothers-part-removed", "file", "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", ""),
        ("damaged-file-kept", "refusal", "if sha256.hexdigest() != file.sha256:", "if not sha256.hexdigest():"),
        ("short-file-kept", "refusal", "            if size < file.size:\n", "            if size == 0:\n"),
        (
            "stall-without-a-limit",
            "late",
            'limit, what = timeouts.stall, f"stalled',
            'limit, what = timeouts.total, f"stalled',
        ),
        ("password-in-a-message", "reported value", '.netloc.rpartition("@")[2]', '.netloc.partition("@")[0]'),
    ),
]

BENCH = [
    *of(
        "mnist_cuda/bench/compare.py",
        ("test_bench.py", REPORTED),
        (
            "ratio-to-the-worst-peer",
            "reported value",
            "row.ratio = min(peers) / row.timing.median",
            "row.ratio = max(peers) / row.timing.median",
        ),
        (
            "ratio-upside-down",
            "reported value",
            "row.ratio = min(peers) / row.timing.median",
            "row.ratio = row.timing.median / min(peers)",
        ),
        (
            "void-peers-count",
            "reported value",
            "sound = [row for row in rows if row.timing and not row.fault]",
            "sound = [row for row in rows if row.timing]",
        ),
        (
            "any-loss-is-sound",
            "refusal",
            "if not abs(self._loss - untimed) <= row.competitor.loss_tolerance * abs(untimed):",
            "if abs(self._loss - untimed) > abs(untimed):",
        ),
        (
            "all-blocks-of-one-first",
            "order",
            "            active = [c for c in contestants if c.wants_more(blocks, seconds)]\n",
            "            active = [c for c in contestants if c.wants_more(blocks, seconds)][:1]\n",
        ),
        ("two-blocks-are-enough", "clock", "return count < MINIMUM_BLOCKS or", "return count < 2 or"),
        ("threads-left-to-the-peer", "option", '"threads": threads,\n', '"threads": 0,\n'),
        (
            "failures-with-0",
            "exit code",
            "    if any(row.fault and not row.absent for row in rows):\n        return 1\n",
            "",
        ),
    ),
    *of(
        "mnist_cuda/bench/worker.py",
        (REPORTED, "test_bench.py"),
        (
            "batches-from-the-start-again",
            "order",
            "self._position = (self._position + count) % len(self._order)",
            "self._position = 0",
        ),
        (
            "workers-images-always-on-the-device",
            "option",
            'self._engine.set_dataset(images, labels, command["data"])',
            "self._engine.set_dataset(images, labels)",
        ),
        (
            "restart-without-weights",
            "state",
            "        self._engine.set_parameters(self._weights)\n        self._position = 0\n        return",
            "        self._position = 0\n        return",
        ),
    ),
    *of(
        "mnist_cuda/bench/time_to_accuracy.py",
        ("test_bench_time_to_accuracy.py",),
        (
            "scored-on-the-test-set",
            "order",
            "scored = data.train_images[held_out], data.train_labels[held_out]",
            "scored = data.test_images, data.test_labels",
        ),
        (
            "first-epoch-of-another-run",
            "reported value",
            "return math.inf if self.reached is None else sum(self.train_seconds[: self.reached])",
            "return math.inf if self.reached is None else sum(self.train_seconds)",
        ),
        (
            "decay-one-epoch-late",
            "off by one",
            "return self.lr * (1 - (epoch - 1) / self.decay)",
            "return self.lr * (1 - max(epoch - 2, 0) / self.decay)",
        ),
        (
            "slowest-recipe",
            "reported value",
            "return min(results, key=lambda result: (result.median(),",
            "return max(results, key=lambda result: (result.median(),",
        ),
    ),
    *of(
        "mnist_cuda/bench/accuracy.py",
        ("test_bench_accuracy.py",),
        (
            "bound-of-one-side",
            "refusal",
            'return "ok" if abs(difference) <= BOUND else "BROKEN"',
            'return "ok" if difference <= BOUND else "BROKEN"',
        ),
        (
            "weights-not-compared",
            "refusal",
            "return self.repeat is not None and (first.test_accuracy, first.parameters_sha256) == (\n            self.repeat.test_accuracy,\n            self.repeat.parameters_sha256,\n        )",
            "return self.repeat is not None and (first.test_accuracy) == (\n            self.repeat.test_accuracy\n        )",
        ),
    ),
    *of(
        "mnist_cuda/compare.py",
        ("test_compare.py",),
        (
            "a-nan-holds",
            "refusal",
            "return frozen and self.free <= self.free_bound",
            "return frozen and not self.free > self.free_bound",
        ),
        ("broken-with-0", "exit code", "return 0 if holds else 1", "return 0"),
    ),
    *of(
        "mnist_cuda/profile.py",
        ("test_profile.py -k 'not gpu'",),
        (
            "slower-of-two-roofs",
            "reported value",
            'return (moving, "memory") if moving >= computing else (computing, op.unit)',
            'return (moving, "memory") if moving <= computing else (computing, op.unit)',
        ),
        ("share-of-a-phase", "unit", 'f"{100 * us / total:.1f} %"', 'f"{us / total:.1f} %"'),
    ),
]

# ---- host code -------------------------------------------------------------------------------------------------------

SEAM = (
    f"{REPORTED} -k 'long_call or probe_of or outlive or rate_0 or evaluation_is or overflow'",
    "test_engines.py -k 'wrong_calls and cpu'",
)
CPU = (
    f"{REPORTED} -k '(long_call or probe_of or more_images) and (cpu or reference or statistics)'",
    "test_engines.py -k 'cpu-fp32 and (frozen_step or ragged or routing or statistics or update) and not digits'",
)
REFERENCE = (
    "ctest test_reference_engine",
    f"{REPORTED} -k '(long_call or probe_of or more_images) and (cpu or reference or statistics)'",
    "test_engines.py -k reference-fp64",
)

HOST = [
    *of(
        "native/engines/engine.cpp",
        SEAM,
        (
            "statistics-outlive-the-weights",
            "state",
            "  do_set_parameters(values);\n  has_statistics_ = false;",
            "  do_set_parameters(values);",
        ),
        ("statistics-outlive-a-step", "state", "  has_statistics_ = false;\n  if (!between)", "  if (!between)"),
        (
            "statistics-gone-without-a-step",
            "state",
            "  if (steps == 0) return;\n  has_statistics_ = false;",
            "  has_statistics_ = false;\n  if (steps == 0) return;",
        ),
        ("infinite-weights", "refusal", "MNIST_REQUIRE(std::isfinite(value),", "MNIST_REQUIRE(!std::isnan(value),"),
        ("class-10", "refusal", "MNIST_REQUIRE(labels[i] < kClasses,", "MNIST_REQUIRE(labels[i] <= kClasses,"),
        (
            "index-of-the-image-behind-the-last",
            "refusal",
            "order[i] >= 0 && order[i] < dataset_size_,",
            "order[i] >= 0 && order[i] <= dataset_size_,",
        ),
        (
            "only-the-first-index",
            "refusal",
            "for (std::size_t i = 0; i < order.size(); ++i)\n    MNIST_REQUIRE(order[i] >= 0",
            "for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 1); ++i)\n    MNIST_REQUIRE(order[i] >= 0",
        ),
        ("a-batch-of-any-size", "refusal", "batch > 0 && batch <= kMaxBatch,", "batch > 0,"),
        (
            "a-negative-rate",
            "refusal",
            "std::isfinite(learning_rates[i]) && learning_rates[i] >= 0,",
            "std::isfinite(learning_rates[i]),",
        ),
        (
            "a-negative-variance",
            "refusal",
            'MNIST_REQUIRE(value >= 0, "set_statistics: "',
            'MNIST_REQUIRE(value >= -1, "set_statistics: "',
        ),
        (
            "a-score-of-nan-is-right-natively",
            "reported value",
            "total.correct += finite && best - row.begin() == labels[i];",
            "total.correct += best - row.begin() == labels[i];",
        ),
        (
            "first-500-images-scored-again",
            "off by one",
            "do_logits(std::span(evaluation_images_).subspan(first * kImagePixels, count * kImagePixels),",
            "do_logits(std::span(evaluation_images_).first(count * kImagePixels),",
        ),
        (
            "loss-of-the-best-class",
            "reported value",
            "total.loss += std::log(sum) - (row[labels[i]] - *best);",
            "total.loss += std::log(sum);",
        ),
        (
            "scores-without-statistics",
            "refusal",
            "mode == BatchNormMode::kBatch || has_statistics_,",
            "mode == BatchNormMode::kPopulation || has_statistics_ || true,",
        ),
    ),
    *of(
        "native/engines/cpu.cpp",
        CPU,
        (
            "logits-over-the-first",
            "off by one",
            "scores[(first + b) * kClasses + k] = network_.logit(b, k);",
            "scores[b * kClasses + k] = network_.logit(b, k);",
        ),
        (
            "logits-of-the-first-chunk",
            "off by one",
            "batch_of(images.subspan(first * kImagePixels, count * kImagePixels), {})",
            "batch_of(images.first(count * kImagePixels), {})",
        ),
        (
            "last-chunk-of-logits-forgotten",
            "off by one",
            "for (std::int64_t first = 0; first < total; first += chunk) {",
            "for (std::int64_t first = 0; first + chunk <= total; first += chunk) {",
        ),
        (
            "the-first-batch-again",
            "off by one",
            "      order = order.subspan(now.size());\n",
            "      order = order.subspan(order.size() > 2 * now.size() ? now.size() : 0);\n",
        ),
        (
            "last-result-forgotten",
            "off by one",
            "      results[step] = network_.forward(batch);\n",
            "      if (const auto now_result = network_.forward(batch); step + 1 < results.size()) results[step] = now_result;\n",
        ),
        (
            "rate-of-the-first-step",
            "option",
            "network_.backward_and_update(batch, learning_rates[step]);",
            "network_.backward_and_update(batch, learning_rates[0]);",
        ),
        (
            "labels-in-their-order",
            "order",
            "batch.labels.push_back(labels_[index]);",
            "batch.labels.push_back(labels_[batch.labels.size()]);",
        ),
        (
            "batch-statistics-for-all",
            "option",
            "      if (mode == BatchNormMode::kBatch)\n        network_.forward(batch);",
            "      if (mode == BatchNormMode::kBatch || count < 8)\n        network_.forward(batch);",
        ),
    ),
    *of(
        "native/cpu/network.cpp",
        ("ctest test_cpu_network", *CPU),
        (
            "z2-never-computed-again",
            "boundary",
            "      if (!kept) conv2_forward(worker, worker.z.data(), worker.e.data(), sums);\n",
            "",
        ),
        (
            "last-image-of-a-group",
            "off by one",
            "for (auto image = begin; image < end; ++image) {\n      load_image(worker, batch.images[image]);\n      kernels_.conv1_forward(worker.a1.data(), worker.route.data()",
            "for (auto image = begin; image + (end - begin > 4) < end; ++image) {\n      load_image(worker, batch.images[image]);\n      kernels_.conv1_forward(worker.a1.data(), worker.route.data()",
        ),
        ("sign-of-gamma-lost", "sign", "sign2_[c] = gamma < 0 ? -1.0f : 1.0f;", "sign2_[c] = 1.0f;"),
        ("ties-of-a-scale-0", "tie", "layer2_.live[c] = gamma == 0 ? 0 : -1;", "layer2_.live[c] = -1;"),
        ("mean-loss-is-a-sum", "unit", "  result.loss /= double(batch.size());\n", ""),
        (
            "one-tile-of-rows",
            "boundary",
            "for (std::int64_t begin = 0; begin < batch.size(); begin += kLinearRows) {",
            "for (std::int64_t begin = 0; begin < std::min<std::int64_t>(batch.size(), kLinearRows); begin += kLinearRows) {",
        ),
        (
            "bias-in-the-populations-mean",
            "sign",
            "statistics1_.mean[c] = statistic(kBn1Mean, c) - parameters[kConv1Bias][c];",
            "statistics1_.mean[c] = statistic(kBn1Mean, c);",
        ),
        (
            "moments-of-the-first-group",
            "partial sum",
            "  for (int group = 1; group < groups; ++group)\n    for (int i = 0; i < kPatchMoments; ++i) moments_[i] +=",
            "  for (int group = 1; group < std::min(groups, 16); ++group)\n    for (int i = 0; i < kPatchMoments; ++i) moments_[i] +=",
        ),
        (
            "relu-passes-zero",
            "relu",
            "for (int i = 0; i < rows * kHidden; ++i) h[i] = h[i] <= 0 ? 0 : h[i];",
            "for (int i = 0; i < rows * kHidden; ++i) h[i] = h[i] <= 0 && i % 128 ? 0 : h[i];",
        ),
        (
            "kappa-without-gamma",
            "formula",
            "layer2_.alpha[c] = float(-scale * dbeta / n - kappa * layer2_.mean[c]);",
            "layer2_.alpha[c] = float(-scale * dbeta / n);",
        ),
    ),
    *of(
        "native/cpu/layer1.cpp",
        CPU,
        ("covariance-of-raw-pixels", "formula", "*product++ / n - mean[i] * mean[j];", "*product++ / n;"),
        (
            "gradient-without-the-mean",
            "formula",
            "centred[i] = sums[i * kConv1Channels + c] - d * patches.mean[i];",
            "centred[i] = sums[i * kConv1Channels + c];",
        ),
    ),
    *of(
        "native/cpu/parameters.cpp",
        ("test_engines.py -k 'cpu-fp32 and round_trip'", *CPU),
        (
            "fc1-in-torchs-order-inside",
            "layout",
            "visit((pixel * kConv2Channels + channel) * kHidden + out, i++);",
            "visit(i, i), i++;",
        ),
    ),
    *of(
        "native/cpu/thread_pool.cpp",
        ("ctest test_cpu_thread_pool", *CPU),
        (
            "task-done-twice",
            "race",
            "share.next.fetch_add(1, std::memory_order_relaxed)",
            "share.next.fetch_add(share.next.load() + 1 < share.end, std::memory_order_relaxed)",
        ),
        (
            "last-share-cut-short",
            "off by one",
            "shares_[w].end = int(std::int64_t(loop.tasks) * (w + 1) / size());",
            "shares_[w].end = int(std::int64_t(loop.tasks - 1) * (w + 1) / size());",
        ),
        (
            "nobody-waits-for-the-others",
            "race",
            "  for (int left; (left = busy_.load(std::memory_order_acquire)) != 0;) wait_while(busy_, left);\n",
            "",
        ),
    ),
    *of(
        "native/cpu/simd/conv1.h",
        ("ctest test_cpu_kernels", *CPU),
        (
            "last-of-ties",
            "tie",
            "        for (int k = 1; k < 4; ++k) {\n          const Mask better = y[k] > best;",
            "        for (int k = 1; k < 4; ++k) {\n          const Mask better = y[k] >= best;",
        ),
        (
            "first-row-of-a1-lost",
            "off by one",
            "store(a1 + (p + 1) * kA1Row + (q + 1) * kConv1Channels + c, relu(best));",
            "store(a1 + (p + (p > 0)) * kA1Row + (q + 1) * kConv1Channels + c, relu(best));",
        ),
    ),
    *of(
        "native/cpu/simd/linear.h",
        ("ctest test_cpu_kernels", *CPU),
        ("rate-as-an-ascent", "sign", "w[i] -= learning_rate * dw[i];", "w[i] += learning_rate * dw[i];"),
        (
            "gradient-through-a-dead-relu",
            "relu",
            "store(dh + i, load(h + i) <= Vec{} ? Vec{} : load(dh + i));",
            "store(dh + i, load(dh + i));",
        ),
    ),
    *of(
        "native/engines/reference.cpp",
        REFERENCE,
        (
            "chunks-of-equal-weight",
            "formula",
            "const double w = double(count) / double(before + count);",
            "const double w = before > 0 ? 0.5 : 1.0;",
        ),
        (
            "spread-between-chunks-lost",
            "formula",
            "var[c] = (1 - w) * var[c] + w * new_var[c] + w * (1 - w) * d * d;",
            "var[c] = (1 - w) * var[c] + w * new_var[c];",
        ),
        (
            "hits-of-the-first-class",
            "off by one",
            "std::max_element(row, row + kClasses) - row == labels[b];",
            "std::max_element(row, row + kClasses - 1) - row == labels[b];",
        ),
        (
            "upstream-ignored",
            "option",
            "backward(probe.gradients, act, labels, options.upstream);",
            "backward(probe.gradients, act, labels, 1.0);",
        ),
    ),
    *of(
        "native/cpu/reference_ops.cpp",
        (
            "ctest test_reference_conv2d",
            "ctest test_reference_batch_norm",
            "ctest test_reference_pool",
            "ctest test_reference_loss",
            *REFERENCE,
        ),
        (
            "padding-off-by-one",
            "boundary",
            "const int q0 = std::max(0, 1 - v), q1 = std::min(side, side + 1 - v);",
            "const int q0 = std::max(0, 1 - v), q1 = std::min(side, side - v);",
        ),
        ("variance-of-a-sample", "formula", "    var[c] = squares / n;", "    var[c] = squares / (n - 1);"),
        ("relu-stops-nothing", "relu", "        const bool dead = best <= 0;", "        const bool dead = best < 0;"),
        (
            "last-maximum",
            "tie",
            "if (value > best || (std::isnan(value) && !std::isnan(best)))",
            "if (value >= best || (std::isnan(value) && !std::isnan(best)))",
        ),
        (
            "gradient-not-averaged",
            "unit",
            "dx[b * classes + k] = upstream / double(batch) *",
            "dx[b * classes + k] = upstream *",
        ),
        (
            "softmax-that-overflows",
            "boundary",
            "const double top = *std::max_element(row, row + classes);",
            "const double top = 0;",
        ),
    ),
    *of(
        "native/engines/registry.cpp",
        ("test_engines.py -k 'registry or unknown'", REPORTED),
        (
            "precisions-not-checked",
            "refusal",
            "      offered |= precision == options.precision;",
            "      offered |= true || precision == options.precision;",
        ),
    ),
]

# ---- CUDA ------------------------------------------------------------------------------------------------------------

FUSED = [
    *of(
        "native/kernels/fused/policy.cuh",
        (),
        (
            "last-row-added-twice",
            "off by one",
            "if (first + group + kGroups * k < rows) add(x[k], k);",
            "if (first + group + kGroups * k <= rows) add(x[k], k);",
        ),
        (
            "rows-of-the-first-round-only",
            "boundary",
            "for (int first = 0; first < rows; first += kGroups * kLoads) {",
            "for (int first = 0; first < min(rows, kGroups * kLoads); first += kGroups * kLoads) {",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/policy.cuh",
        (),
        ("small-by-big-forgotten", "rounding", "    mma_tf32(c, a_small, big_part(b0), big_part(b1));\n", ""),
        ("big-by-small-forgotten", "rounding", "    mma_tf32(c, a_big, small_part(b0), small_part(b1));\n", ""),
        (
            "big-part-cut-instead-of-rounded",
            "rounding",
            "return (x + 0x1000u) & 0xffffe000u;",
            "return x & 0xffffe000u;",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/policy.cuh",
        (),
        (
            "tf32-not-rounded-when-stored",
            "rounding",
            "return __uint_as_float(kernels::device::to_tf32(x)); }",
            "return __uint_as_float(__float_as_uint(x) & 0xff800000u); }",
        ),
        precision="tf32",
    ),
    *of(
        "native/kernels/fused/conv1.cuh",
        (),
        (
            "second-of-equals-wins",
            "tie",
            "where = z[0] == best ? 0x80u << 8 * byte : where;",
            "where = z[0] == best && z[1] != best ? 0x80u << 8 * byte : where;",
        ),
        (
            "a-zero-passes-relu",
            "relu",
            "const bool dead = value <= 0.f || padding;",
            "const bool dead = value < 0.f || padding;",
        ),
        (
            "padding-below-is-not-set",
            "boundary",
            "i < count * kImageBytes / 16; i += blockDim.x)",
            "i < (count * kImageBytes - kImagePitch * 2) / 16; i += blockDim.x)",
        ),
        ("one-column-to-the-left", "off by one", "(y + 1) * kImagePitch + x + 1;", "(y + 1) * kImagePitch + x;"),
        ("scale-in-another-unit", "unit", "scale[i] = bn1[channel] * bn1[96 + channel];", "scale[i] = bn1[channel];"),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/conv1_wgmma.cuh",
        (),
        (
            "plane-of-the-second-seven-rows",
            "parity",
            "const int plane = (kRow + n) & 1, cy",
            "const int plane = n & 1, cy",
        ),
        ("routing-of-the-lower-half", "layout", "lane) * 2 + (warp & 1)] =", "lane) * 2] ="),
        ("patches-one-window-on", "off by one", "(slot == 0 ? 1 : 2 * slot - 1)", "(slot == 0 ? 1 : 2 * slot)"),
        (
            "last-patch-row-stored-once",
            "off by one",
            "min(n + (lane >> 3), kRows - 1);",
            "min(n + (lane >> 3), kRows - 2);",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/conv1_wgmma.cuh",
        (),
        ("shift-in-another-unit", "unit", "scale *= inverse_unit, shift *= inverse_unit;", "scale *= inverse_unit;"),
        (
            "filter-without-its-small-part",
            "rounding",
            "for (int term = kTerms - 1; term >= 0; --term)",
            "for (int term = 0; term >= 0; --term)",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/conv2_wgmma.cuh",
        (),
        (
            "first-step-not-added",
            "accumulator",
            "const bool add = product > kFirst || tap + step > 0;",
            "const bool add = product > kFirst || tap > 0;",
        ),
        ("zero-scale-of-the-other-channel", "tie", "top[i] = zero[i] ? firsts", "top[i] = zero[0] ? firsts"),
        (
            "rows-behind-the-image-counted",
            "boundary",
            "if (q + e >= kRows / 2 || first_row + 2 * (q + e) >= kPool1Side) continue;",
            "if (q + e >= kRows / 2) continue;",
        ),
        (
            "padding-columns-counted",
            "boundary",
            "const bool padding = half == 1 && (lane & 3) == 3;",
            "const bool padding = false;",
        ),
        (
            "squares-of-one-column",
            "partial sum",
            "squares[i] = fmaf(x.y, x.y, fmaf(x.x, x.x, squares[i]));",
            "squares[i] = fmaf(x.x, x.x, squares[i]);",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/conv2_wgmma.cuh",
        (),
        ("a1s-small-part-forgotten", "rounding", "((product == 1) * Operands::kA1Part + tap / 3", "(tap / 3"),
        ("unit-of-a1-alone", "unit", "unit = a1_unit(s, lane) * s.conv2_units[0];", "unit = a1_unit(s, lane);"),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/forward1.cuh",
        ("test_engines.py -m gpu -k '{spec} and a100'",),
        (
            "third-image-does-not-wait",
            "race",
            "if (image >= 2 * int(gridDim.x)) barrier_sync<kConvThreads>(kFree + stage);",
            "if (image >= 3 * int(gridDim.x)) barrier_sync<kConvThreads>(kFree + stage);",
        ),
        (
            "image-fetched-twice",
            "pipeline",
            "      fetch(image + gridDim.x);\n",
            "      fetch(image + (image < 2 * int(gridDim.x) ? gridDim.x : 0));\n",
        ),
        ("eighth-window-is-no-padding", "boundary", "  if (g == 7) return;", "  if (g == 8) return;"),
        (
            "routing-of-the-other-plane",
            "layout",
            "* 64 + plane * 32 + lane] = route;\n        });\n      barrier_arrive",
            "* 64 + (plane ^ 1) * 32 + lane] = route;\n        });\n      barrier_arrive",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/forward1.cuh",
        (),
        (
            "last-groups-sums-forgotten",
            "partial sum",
            "for (int k = 0; k < kGroups; ++k) total += warp_sums[4 * k + channel / 16]",
            "for (int k = 0; k < max(kGroups - 1, 1); ++k) total += warp_sums[4 * k + channel / 16]",
        ),
        (
            "zero-scale-of-bn1",
            "tie",
            "kParameters[kBn2Weight].offset + quarter * 16 + 4 * (lane & 3) + i] == 0.f) << i;",
            "kParameters[kBn2Bias].offset + quarter * 16 + 4 * (lane & 3) + i] == 0.f) << i;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/forward1_wgmma.cuh",
        (),
        (
            "last-row-of-a1-left-zero",
            "boundary",
            "const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;",
            "const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side - 1 : half == 0 ? 9 : 7;",
        ),
        (
            "half-an-image-without-its-neighbour",
            "boundary",
            "const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 9 : 7;",
            "const int first_row = 7 * half, rows = kHalves == 2 ? kPool1Side : half == 0 ? 7 : 7;",
        ),
        (
            "third-images-pixels-are-the-seconds",
            "pipeline",
            "store_image(image + 2 * gridDim.x);",
            "store_image(image + gridDim.x);",
        ),
        (
            "patches-always-in-stage-0",
            "parity",
            "gather_patches(patches + (stage ^ 1) * kPatchBytes, pixels, thread);",
            "gather_patches(patches + (stage & 0) * kPatchBytes, pixels, thread);",
        ),
        ("second-role-is-never-told", "barrier", "      barrier_arrive<kTurnThreads>(kFull + stage);\n", ""),
        (
            "fifth-image-overtakes",
            "race",
            "if (image >= 2 * int(gridDim.x)) barrier_sync<kTurnThreads>(kFree + stage);",
            "if (image >= 4 * int(gridDim.x)) barrier_sync<kTurnThreads>(kFree + stage);",
        ),
        (
            "sums-of-the-left-half",
            "partial sum",
            "    right.add_columns(warp_sums[8 * group + 4 + (warp & 3)]);\n",
            "    left.add_columns(warp_sums[8 * group + 4 + (warp & 3)]);\n",
        ),
        (
            "e2-of-the-image-before",
            "layout",
            "store_bulk(part_of(s.e2, kCells2 * Shared::kE2Cell)",
            "store_bulk(part_of(s.e2, kCells2 * Shared::kE2Cell) - (image > 300 ? kCells2 * Shared::kE2Cell : 0)",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/forward1_wgmma.cuh",
        (),
        (
            "right-half-without-a-unit",
            "unit",
            "left.load_unit(s), right.load_unit(s);",
            "left.load_unit(s), right.unit = 1.f;",
        ),
        (
            "one-part-of-a1-stored",
            "layout",
            "for (int plane = 0; plane < kPlanes; ++plane)\n            store_bulk",
            "for (int plane = 0; plane < Operands::kChunks; ++plane)\n            store_bulk",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/forward2.cuh",
        (),
        (
            "half-of-fc1s-inputs-above-4224",
            "boundary",
            "last = both ? 1 : half; half <= last; ++half) {",
            "last = half; half <= last; ++half) {",
        ),
        (
            "labels-of-the-first-rows-again",
            "pipeline",
            "for (; row < end; row += 8, label = label_of(row)) {",
            "for (; row < end; row += 8) {",
        ),
        (
            "last-stage-of-the-ring-not-fetched",
            "pipeline",
            "if (const int next = stage - 1 + kForward2Stages; next < stages) {",
            "if (const int next = stage - 1 + kForward2Stages; next + 1 < stages) {",
        ),
        (
            "rows-behind-the-batch-stored",
            "boundary",
            "        if (row < s.batch)\n          *reinterpret_cast<float2*>(s.h_parts",
            "        if (row < s.batch + 8)\n          *reinterpret_cast<float2*>(s.h_parts",
        ),
        (
            "scale-of-the-first-half-only",
            "state",
            "if (blockIdx.x == 0 && blockIdx.y < 2) {",
            "if (blockIdx.x == 0 && blockIdx.y < 1) {",
        ),
        (
            "next-moments-of-this-batch",
            "state",
            "order[std::size_t(slot + 1) * s.batch + b]) * kMoments + column];",
            "order[std::size_t(slot) * s.batch + b]) * kMoments + column];",
        ),
        (
            "moments-of-every-other-image",
            "partial sum",
            "b < s.batch; b += 4 * gridDim.x)",
            "b < s.batch; b += 8 * gridDim.x)",
        ),
        (
            "loss-of-the-next-class",
            "off by one",
            "loss += log_total - (of_class(score, label) - top);",
            "loss += log_total - (of_class(score, max(label - 1, 0)) - top);",
        ),
        (
            "last-maximum-is-the-answer",
            "tie",
            "if (const float other = of_class(score, k); other > top) top = other, best = k;",
            "if (const float other = of_class(score, k); other > top) top = other, best = k - 1;",
        ),
        ("relu-of-fc1-stops-nothing", "relu", "dh = make_float4(h.x > 0 ? dh.x : 0.f,", "dh = make_float4(dh.x,"),
        (
            "upstream-not-averaged",
            "unit",
            "const float upstream = *s.upstream / float(s.batch);",
            "const float upstream = *s.upstream / 64.f;",
        ),
        (
            "a-row-of-z2-sums-forgotten",
            "partial sum",
            "for_rows<Bn2::kGroups, 9>(s.f1_blocks, group, load, add);",
            "for_rows<Bn2::kGroups, 9>(s.f1_blocks - 1, group, load, add);",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/forward2.cuh",
        (),
        (
            "mean-without-what-rounding-took",
            "rounding",
            "out[256] = float(mean - double(float(mean)));",
            "out[256] = 0.f;",
        ),
        (
            "a-float-variance",
            "rounding",
            "fmax((which == 0 ? other : sum) * s.inv_n2 - mean * mean, 0.0);",
            "fmax(float((which == 0 ? other : sum) * s.inv_n2) - float(mean * mean), 0.f);",
        ),
        (
            "sums-never-drained",
            "accumulator",
            "acc[i / 4 / kN][i / 4 % kN][i % 4] += part[i / 4 / kN][i / 4 % kN][i % 4];",
            "acc[i / 4 / kN][i / 4 % kN][i % 4] = part[i / 4 / kN][i / 4 % kN][i % 4];",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/backward1.cuh",
        (),
        (
            "dgrad-does-not-wait-for-H",
            "race",
            "inv_sigma[tid] = bn2[192 + tid];\n  wait_for_predecessor();  // H: dh\n",
            "inv_sigma[tid] = bn2[192 + tid];\n",
        ),
        (
            "one-row-behind-the-batch",
            "boundary",
            '"r"(row0 + row < count ? 16 : 0)',
            '"r"(row0 + row <= count ? 16 : 0)',
        ),
        (
            "last-step-of-a-ragged-chunk",
            "off by one",
            "min((s.batch - chunk * kRows + kStep<P> - 1) / kStep<P>, kSteps);",
            "min((s.batch - chunk * kRows) / kStep<P>, kSteps);",
        ),
        (
            "chunks-in-two-of-three-stages",
            "pipeline",
            "return kE2 + n % kStages * kCellBytes; }",
            "return kE2 + n % 2 * kCellBytes; }",
        ),
        (
            "bf16-copy-of-fc1-not-updated",
            "stale copy",
            "*reinterpret_cast<__nv_bfloat162*>(stored) = __floats2bfloat162_rn(value.x, value.y);",
            "(void)stored;",
        ),
        (
            "both-halves-update-the-same-units",
            "layout",
            "const int unit = hidden + parity * 16 + g + i * 8, column",
            "const int unit = hidden + g + i * 8, column",
        ),
        (
            "xhat-without-the-mean",
            "formula",
            "sum_xhat[v] = fmaf(x[v], e[v] - mean[v], sum_xhat[v]);",
            "sum_xhat[v] = fmaf(x[v], e[v], sum_xhat[v]);",
        ),
        (
            "sums-of-the-first-tiles",
            "partial sum",
            "for (int k = 0; k < kTiles; ++k) total += warp_sums[k][which][lane];",
            "for (int k = 0; k < kTiles / 2; ++k) total += warp_sums[k][which][lane];",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/backward1.cuh",
        (),
        (
            "last-products-not-drained",
            "accumulator",
            "if (P::kDrainAccumulators && step % 4 == 3)",
            "if (P::kDrainAccumulators && step % 4 == 2)",
        ),
        (
            "largest-of-one-warp",
            "scale from a part",
            "if (lane == 0) s.g2_max[blockIdx.x * kGradientWarps + warp] = largest;",
            "if (lane == 0) s.g2_max[blockIdx.x * kGradientWarps + warp] = warp == 0 ? largest : 0.f;",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/backward1.cuh",
        (),
        (
            "tf32-copy-of-fc1-not-updated",
            "stale copy",
            "*reinterpret_cast<float2*>(stored) = P::unpack(P::pack(value.x, value.y));",
            "(void)stored;",
        ),
        precision="tf32",
    ),
    *of(
        "native/kernels/fused/backward2.cuh",
        (),
        ("gradient-to-every-tie", "tie", "        left &= ~here;\n", ""),
        ("last-cell-counted-again", "boundary", "    if (group + k * kGroups < kCells2) {\n", "    {\n"),
        (
            "beta-not-updated",
            "stale copy",
            "s.parameters[beta_at + tid] = beta - learning_rate * float(dbeta);",
            "s.parameters[beta_at + tid] = beta;",
        ),
        ("gradient-before-B1-is-done", "race", "  wait_for_predecessor();  // B1: g2 and its sums\n", ""),
        (
            "alpha-without-the-mean",
            "formula",
            "float(-scale * dbeta * s.inv_n2 - double(kappa) * mean);",
            "float(-scale * dbeta * s.inv_n2);",
        ),
        (
            "padding-row-of-half-an-image",
            "boundary",
            "const int row = kHalfImage ? (y0 > 0 ? kRows + 1 : 0)",
            "const int row = kHalfImage ? (y0 > 0 ? 0 : 0)",
        ),
        (
            "new-sign-of-gamma-unfolded",
            "sign",
            "s.bn2_sign[tid] = sign;",
            "s.bn2_sign[tid] = gamma - learning_rate * float(sign * dgamma) < 0 ? -1.f : 1.f;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/backward2.cuh",
        (),
        (
            "mean-as-rounded",
            "rounding",
            "mean = double(s.bn2[128 + channel]) + s.bn2[256 + channel],",
            "mean = double(s.bn2[128 + channel]),",
        ),
        (
            "alpha-for-kappa-before-rounding",
            "rounding",
            "- double(kappa) * mean);",
            "+ scale * dgamma * inv_sigma * s.inv_n2 * mean);",
        ),
        (
            "bound-of-half-of-the-cells",
            "scale from a part",
            "i < 2 * kCells2 * kGradientWarps; i += kConvThreads)",
            "i < kCells2 * kGradientWarps; i += kConvThreads)",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/conv2_weight.cuh",
        (),
        (
            "neighbour-row-of-half-an-image",
            "boundary",
            "kLast = kRows == 14 ? 14 : kRows + 1;",
            "kLast = kRows == 14 ? 14 : kRows;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/routed_pixels.cuh",
        (),
        (
            "plain-sum-of-nothing",
            "partial sum",
            "const std::uint32_t ones = g == 1 ? 0x3f803f80u : 0u;",
            "const std::uint32_t ones = 0u;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/backward2_wgmma.cuh",
        (),
        (
            "parity-wrong-from-the-fifth-image",
            "parity",
            "      if (stage == 1) parity ^= 1;\n",
            "      if (stage == 1) parity = 1;\n",
        ),
        (
            "pixels-of-the-second-image-for-ever",
            "pipeline",
            "copy(next, next_sample, stage);",
            "copy(next, second_sample, stage);",
        ),
        (
            "row-above-dz2-not-cleared",
            "boundary",
            "row = i / kSlots % 2 * (kPool1Side + 1), slot",
            "row = (kPool1Side + 1), slot",
        ),
        ("row-below-a1-multiplied", "boundary", "if (in < 1 || in > kPool1Side) continue;", "if (in < 1) continue;"),
        (
            "dgrad-sees-dz2-before-it-is-formed",
            "race",
            "block.form<kGroupThreads>(unit, stage, thread);\n      kernels::device::wgmma_publish();\n      __syncwarp();\n      if (block.lane == 0) mbarrier_arrive(formed + stage);",
            "if (block.lane == 0) mbarrier_arrive(formed + stage);\n      block.form<kGroupThreads>(unit, stage, thread);\n      kernels::device::wgmma_publish();\n      __syncwarp();",
        ),
        ("G-of-one-group", "partial sum", "store_g1_sums<2>(block.s,", "store_g1_sums<1>(block.s,"),
        (
            "routing-of-the-upper-half",
            "layout",
            "first_row = (warp >> 2) * 7;\n    mbarrier_wait",
            "first_row = (warp >> 3) * 7;\n    mbarrier_wait",
        ),
        (
            "second-order-of-the-planes",
            "layout",
            "wgmma_bf16_columns(dw[3 * u + 2], planes_swapped[row & 1], swapped + at + 1, true);",
            "wgmma_bf16_columns(dw[3 * u + 2], in_order[row & 1], swapped + at + 1, true);",
        ),
        (
            "one-gradient-for-all-images",
            "layout",
            "static_cast<const char*>(block.s.g2) + std::size_t(unit) * kGradientBytes, kGradientBytes,",
            "static_cast<const char*>(block.s.g2) + std::size_t(unit % 600) * kGradientBytes, kGradientBytes,",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/backward2_parts.cuh",
        (),
        (
            "parity-wrong-from-the-fifth-unit",
            "parity",
            "static __device__ __forceinline__ int parity_of(int unit) { return unit >> 1 & 1; }",
            "static __device__ __forceinline__ int parity_of(int unit) { return unit > 1; }",
        ),
        ("big-by-small-of-dgrad", "rounding", "        multiply_inner(small, 0, 1, true);\n", ""),
        ("first-four-rows-not-drained", "accumulator", "        if (kParts == 2 && first > 0) add(dw);\n", ""),
        (
            "unit-of-the-weights-forgotten",
            "unit",
            "sums, dz_unit * weight_unit * kDa1Unit);",
            "sums, dz_unit * kDa1Unit);",
        ),
        (
            "unit-of-half-of-the-channels",
            "scale from a part",
            "const float largest = fmaxf(bn.largest[0], bn.largest[1]), dz_unit",
            "const float largest = bn.largest[0], dz_unit",
        ),
        (
            "unit-without-room-to-grow",
            "scale from a part",
            "const float unit = conv2_unit_of(warp_max(largest));\n    if (lane == 0) s.conv2_units[1] = unit;",
            "const float unit = conv2_unit_of(warp_max(largest)) / 1024;\n    if (lane == 0) s.conv2_units[1] = unit;",
        ),
        (
            "second-half-of-an-image-never-done",
            "boundary",
            "return s.batch - 1 - int(blockIdx.x) - unit / 2 * int(gridDim.x);",
            "return unit & 1 ? -1 : s.batch - 1 - int(blockIdx.x) - unit / 2 * int(gridDim.x);",
        ),
        (
            "alpha-in-another-unit",
            "unit",
            "bn.alpha[tid] /= dz_unit, bn.kappa[tid] /= dz_unit;",
            "bn.kappa[tid] /= dz_unit;",
        ),
        (
            "copies-never-awaited",
            "barrier",
            "constexpr int kCopyBytes = (2 * Shared::kChunks2",
            "constexpr int kCopyBytes = 16 + (2 * Shared::kChunks2",
        ),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/parts.cuh",
        (),
        (
            "range-of-the-first-channels",
            "scale from a part",
            "return unit_of<15, -60>(warp_max(s.bn1[64 + lane]));",
            "return unit_of<15, -60>(warp_max(s.bn1[64 + (lane & 15)]));",
        ),
        ("small-part-of-nothing", "rounding", "    x -= big.x, y -= big.y;\n", "    x -= big.x, y = 0;\n"),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/update.cuh",
        (),
        (
            "next-batchs-moments-are-this-ones",
            "state",
            "set_statistics(scratch.next, scratch.next_moments, s.inv_n1, tid - 128);",
            "set_statistics(scratch.next, scratch.moments, s.inv_n1, tid - 128);",
        ),
        (
            "conv1-packed-before-its-update",
            "stale copy",
            "begin_conv1<P>(s, scratch.next, channel, updated, gamma, beta);",
            "begin_conv1<P>(s, scratch.next, channel, weight, gamma, beta);",
        ),
        (
            "last-blocks-sums-of-G",
            "partial sum",
            "s.g1_sums + block * kColumns4 * 4, s.b2_blocks, kConv1Channels",
            "s.g1_sums + block * kColumns4 * 4, s.b2_blocks - 1, kConv1Channels",
        ),
        (
            "moments-kept-from-the-first-step",
            "state",
            "  s.moments[block * kMoments + tid] = total;\n",
            "  if (s.moments[block * kMoments + tid] == 0) s.moments[block * kMoments + tid] = total;\n",
        ),
        ("ties-of-a-scale-0-in-conv1", "tie", "u = row - (gamma == 0 ? 0 : lane >> 4),", "u = row - (lane >> 4),"),
        ("bn1s-scale-not-updated", "stale copy", "    s.parameters[gamma_at + channel] = gamma;\n", ""),
        (
            "loss-is-a-sum",
            "unit",
            "s.results[slot].loss = double(total) / s.batch;",
            "s.results[slot].loss = double(total) / 64;",
        ),
        ("filter-of-dgrad-not-flipped", "layout", "const int flipped = kTaps - 1 - tap;", "const int flipped = tap;"),
        (
            "first-weights-of-dgrad-for-ever",
            "stale copy",
            "if (wgmma) static_cast<T*>(s.conv2_pieces)[at / 2 + out % 8] = stored;",
            "if (wgmma && s.bn2_sign[out] == 0.f) static_cast<T*>(s.conv2_pieces)[at / 2 + out % 8] = stored;",
        ),
        ("an-old-order-of-B2s-sums", "layout", "tap = e / (4 * 512);", "tap = kTaps - 1 - e / (4 * 512);"),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/update.cuh",
        (),
        ("unit-of-the-step-before", "stale copy", "    if (block == 0 && tid == 0) s.conv2_units[0] = unit;\n", ""),
        precision="fp32",
    ),
    *of(
        "native/kernels/fused/moments.cu",
        ("ctest test_fused_moments",),
        (
            "products-without-the-offset",
            "formula",
            "products - c * (double(sum_j) + sum_k) + c * c * n;",
            "products - c * (double(sum_j) + sum_k);",
        ),
        ("first-column-is-inside", "boundary", "return tx == 0 ? kOnes << 8 : kOnes; };", "return kOnes; };"),
        (
            "order-of-sums-shows",
            "rounding",
            "moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = rint(total * 2048) / 2048;",
            "moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = total;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/window.cu",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "one-rate-for-all-steps",
            "option",
            "if (first < steps) to_rates[first] = rates[first];",
            "if (first < steps) to_rates[first] = rates[0];",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/scoring.cu",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        ("a-score-that-is-not-finite-is-right", "reported value", "finite && best == labels[b];", "best == labels[b];"),
        (
            "images-of-the-first-block",
            "boundary",
            "if (b < count) {\n    float row",
            "if (b < min(count, std::int64_t(kScoreBlock))) {\n    float row",
        ),
        (
            "last-row-of-sums",
            "off by one",
            "for (int row = 0; row < count; ++row) total +=",
            "for (int row = 0; row + 1 < count; ++row) total +=",
        ),
        (
            "half-of-the-scores-added",
            "partial sum",
            "for (int half = kScoreBlock / 2; half > 0; half /= 2) {",
            "for (int half = kScoreBlock / 4; half > 0; half /= 2) {",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/slab.cu",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "fc1-as-pytorch-has-it",
            "layout",
            "feature % kConv2Channels * kCells2 + feature / kConv2Channels;",
            "feature;",
        ),
        (
            "initial-values-of-another-draw",
            "initial values",
            "const std::int64_t draw = tensor.draws + i - tensor.offset;",
            "const std::int64_t draw = tensor.draws + i - first;",
        ),
        precision="bf16",
    ),
    *of(
        "native/kernels/fused/launch.cuh",
        (),
        (
            "last-tile-of-F2",
            "off by one",
            "const int tiles = (s.batch + s.f2_rows - 1) / s.f2_rows;",
            "const int tiles = s.batch / s.f2_rows + 1;",
            "it only decides how finely F2 and H are cut up, where a tile too many is as right: the grid of F2 has a line of its own",
        ),
        (
            "rows-of-F2-cut-off",
            "off by one",
            "const dim3 grid((s.batch + s.f2_rows - 1) / s.f2_rows, s.f2_slices);",
            "const dim3 grid(std::max(s.batch / s.f2_rows, 1), s.f2_slices);",
        ),
        (
            "mean-over-another-count",
            "formula",
            "s.inv_n2 = 1.0 / (double(s.batch) * kCells1);",
            "s.inv_n2 = 1.0 / (double(std::max(s.batch, 2)) * kCells1);",
        ),
        precision="bf16",
    ),
]

ENGINES = [
    *of(
        "native/engines/fused/engine.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "order-of-the-first-32-steps-again",
            "pipeline",
            "set_window(window_, order + done * batch, (now + 1) * batch,",
            "set_window(window_, order, (now + 1) * batch,",
        ),
        (
            "rates-of-the-first-32-steps-again",
            "pipeline",
            "window_rates_.data(), rates + done, now, stream());",
            "window_rates_.data(), rates, now, stream());",
        ),
        (
            "rate-of-the-rest-is-the-first",
            "off by one",
            "run_steps(from, places + full * batch, rest, rates + full, 1, results + full);",
            "run_steps(from, places + full * batch, rest, rates, 1, results + full);",
        ),
        (
            "scores-of-the-first-4096-again",
            "off by one",
            "queue_scores(evaluation_logits_.data() + first * kClasses, samples, count);",
            "queue_scores(evaluation_logits_.data(), samples, count);",
        ),
        (
            "results-of-32-steps-overwritten",
            "off by one",
            "cuda::copy(results + done, window_results_.data(), now, stream());",
            "cuda::copy(results, window_results_.data(), now, stream());",
        ),
        (
            "result-of-the-rest-over-the-first",
            "off by one",
            "rates_.data() + full, 1, results_.data() + full);",
            "rates_.data() + full, 1, results_.data());",
        ),
        (
            "graph-of-another-batch-size",
            "state",
            "auto& graph = graphs_[{s.batch, steps, s.samples.images}];",
            "auto& graph = graphs_[{0, steps, s.samples.images}];",
        ),
        (
            "a-larger-batch-in-old-memory",
            "state",
            "    if (batch <= reserved_) return;\n    graphs_.clear();\n",
            "    if (batch <= reserved_) return;\n",
        ),
        (
            "scores-over-the-first-4096",
            "off by one",
            "std::ranges::copy(download_floats(state_.logits, count * kClasses), scores.begin() + first * kClasses);",
            "std::ranges::copy(download_floats(state_.logits, count * kClasses), scores.begin());",
        ),
        ("batch-statistics-whatever-was-asked", "option", "    s.bn2_given = true;\n", ""),
        (
            "statistics-of-the-first-4096-images",
            "boundary",
            "visit(set.samples_from(first, nullptr), first,",
            "visit(set.samples_from(0, nullptr), first,",
        ),
        (
            "upstream-of-every-probe-is-1",
            "state",
            "    set_upstream(options.upstream);\n",
            "    set_upstream(1);\n",
        ),
        (
            "copies-not-packed-after-set-parameters",
            "stale copy",
            "    kernels_.pack(state_, stream());\n    stream_->synchronize();\n    scoring_operands_.reset();\n",
            "    if (!reserved_) kernels_.pack(state_, stream());\n    stream_->synchronize();\n    scoring_operands_.reset();\n",
        ),
        (
            "fed-chunks-look-back",
            "pipeline",
            "if (full > 0) run_steps(from, places, batch, rates, full, results, n > 0);",
            "if (full > 0) run_steps(from, order_.data(), batch, rates, full, results, n > 0);",
        ),
        precision="bf16",
    ),
    *of(
        "native/engines/fused/host_feed.cpp",
        (),
        ("labels-in-the-data-sets-order", "order", "labels[i] = labels_[indices[i]];", "labels[i] = labels_[i];"),
        (
            "last-images-of-a-chunk-not-gathered",
            "off by one",
            "pool_->run(int((count + kSamplesOfTask - 1) / kSamplesOfTask),",
            "pool_->run(int(std::max<std::int64_t>(count / kSamplesOfTask, 1)),",
        ),
        precision="bf16",
    ),
    *of(
        "native/engines/fused/population.cpp",
        (),
        ("products-counted-once", "formula", "second += (i == j ? 1 : 2) * w[i]", "second += w[i]"),
        (
            "sign-of-a-scale-forgotten",
            "sign",
            "statistics[kStatistics[kBn2Mean].offset + c] = sign * mean",
            "statistics[kStatistics[kBn2Mean].offset + c] = mean",
        ),
        precision="bf16",
    ),
    *of(
        "native/engines/fused/layout.cpp",
        (),
        (
            "routing-of-the-slot-beside",
            "layout",
            "x = plane == 0 ? 2 * slot - 1 : 2 * slot;",
            "x = plane == 0 ? 2 * slot : 2 * slot;",
        ),
        precision="bf16",
    ),
    *of(
        "native/engines/cuda_engine.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "scores-over-the-first-1000",
            "off by one",
            "std::ranges::copy(read(logits(), count * kClasses), scores.begin() + first * kClasses);",
            "std::ranges::copy(read(logits(), count * kClasses), scores.begin());",
        ),
        (
            "a-step-of-another-size",
            "state",
            "if (step.slot != slot || step.size != size) continue;",
            "if (step.slot != slot) continue;",
        ),
        ("spread-of-the-chunks-means-lost", "formula", "+ difference * difference * n * count / (n + count);", ";"),
        (
            "the-same-batch-each-step",
            "order",
            "const auto now = order.subspan(step * batch).first(",
            "const auto now = order.subspan(0).first(",
        ),
        (
            "statistics-of-every-chunk-from-the-first",
            "boundary",
            "const auto first = k * kEvaluationChunk;",
            "const auto first = k * 0 * kEvaluationChunk;",
        ),
    ),
    *of(
        "native/engines/batch_feeder.cpp",
        (),
        (
            "label-of-the-place-not-the-image",
            "order",
            "for (const auto index : indices) *to++ = host_labels_[index];",
            "for (const auto index : indices) *to++ = host_labels_[index * 0];",
        ),
        (
            "step-does-not-wait-for-its-copy",
            "race",
            "  MNIST_CHECK(cudaStreamWaitEvent(compute_.get(), slot.copied.get(), 0));\n",
            "",
        ),
    ),
    *of(
        "native/kernels/step.cu",
        ("ctest test_step",),
        (
            "losses-of-the-first-256",
            "boundary",
            "for (std::int64_t b = t; b < batch; b += kRecordBlock) {",
            "for (std::int64_t b = t; b < min(batch, std::int64_t(kRecordBlock)); b += kRecordBlock) {",
        ),
        ("every-step-the-first-batch", "state", "    state->cursor += batch;\n", ""),
        ("pixels-without-the-last-sixteen", "off by one", "  if (t < kPieces)\n", "  if (t < kPieces - 1)\n"),
    ),
    *of(
        "native/kernels/sgd.cu",
        ("ctest test_sgd",),
        (
            "last-parameters-stay",
            "off by one",
            "unsigned((count + kBlock - 1) / kBlock), kBlock, 0, stream>>>",
            "unsigned(std::max<std::int64_t>(count / kBlock, 1)), kBlock, 0, stream>>>",
        ),
    ),
    *of(
        "native/kernels/naive/conv2d.cu",
        ("ctest test_conv2d",),
        (
            "padding-is-the-next-row",
            "boundary",
            "if (r >= 0 && r < side && s >= 0 && s < side) sum += filter[3 * u + v]",
            "if (r >= 0 && r < side && s >= 0) sum += filter[3 * u + v]",
        ),
    ),
    *of(
        "native/kernels/naive/relu_max_pool2d.cu",
        ("ctest test_relu_max_pool2d",),
        (
            "last-of-equals",
            "tie",
            "if (value > best || (isnan(value) && !isnan(best)))",
            "if (value >= best || (isnan(value) && !isnan(best)))",
        ),
        (
            "windows-of-the-first-64",
            "boundary",
            "int window = int(threadIdx.x); window < side * side; window += kBlock) {\n    const int p = window / side, q = window % side, row = 2 * side;\n    const T* corner",
            "int window = int(threadIdx.x); window < min(side * side, kBlock); window += kBlock) {\n    const int p = window / side, q = window % side, row = 2 * side;\n    const T* corner",
        ),
    ),
    *of(
        "native/kernels/naive/chunks.h",
        ("ctest test_batch_norm",),
        ("images-between-chunks-lost", "off by one", "return k * batch / chunks;", "return k * (batch / chunks);"),
    ),
    *of(
        "native/kernels/device/block_sum.cuh",
        ("ctest test_batch_norm",),
        (
            "sum-without-a-barrier",
            "barrier",
            "    __syncthreads();  // the upper half is complete before the lower half reads it\n",
            "",
        ),
    ),
    *of(
        "native/kernels/naive/log_softmax.cu",
        ("ctest test_log_softmax",),
        (
            "exponent-of-a-large-score",
            "boundary",
            "for (int k = 1; k < classes; ++k) top = row[k] > top ? row[k] : top;",
            "for (int k = 1; k < classes; ++k) top = row[0];",
        ),
    ),
    *of(
        "native/engines/cudnn/engine.cpp",
        (),
        (
            "bf16-copies-not-made-after-set-parameters",
            "stale copy",
            "if (policy().bf16()) kernels::convert(weights_bf16_.data(), parameter(kConv1Weight)",
            "if (policy().bf16() && !layers_.size()) kernels::convert(weights_bf16_.data(), parameter(kConv1Weight)",
        ),
        (
            "layer-2-under-the-batchs-statistics",
            "option",
            "forward_block(block1_, layer.block1, x, batch.size, statistics);\n      block = ",
            "forward_block(block1_, layer.block1, x, batch.size, nullptr);\n      block = ",
        ),
        (
            "routing-of-the-last-maximum",
            "tie",
            "if (at(where) > at(best)) best = where;",
            "if (at(where) >= at(best)) best = where;",
        ),
        precision="bf16",
    ),
]

MUTATIONS = [*TRAINING, *DATA, *BENCH, *HOST, *FUSED, *ENGINES]
