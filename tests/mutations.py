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
            "order-of-the-weights'-stream",
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
            "divergence-seen-at-a-chunk's-start",
            "late",
            "if not np.isfinite(steps.losses).all():",
            "if not np.isfinite(steps.losses[0]):",
        ),
        (
            "divergence-seen-at-the-epoch's-end",
            "late",
            "if not np.isfinite(steps.losses).all():",
            "if done == self.steps_per_epoch and not np.isfinite(losses).all():",
        ),
        (
            "infinity-is-no-divergence",
            "late",
            "if not np.isfinite(steps.losses).all():",
            "if np.isnan(steps.losses).any():",
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
            "self._save(parameters, self.engine.statistics)",
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
            "        self._report(signum)\n        return exit_code(signum)",
            "        self._report(signum)\n        return 0",
        ),
        ("time-of-training-as-the-whole", "reported value", '"seconds": total,', '"seconds": self.clock.seconds,'),
        ("images-on-the-device-always", "option", "self.data.train_labels, self.args.data)", "self.data.train_labels)"),
        (
            "threads-not-passed-on",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)\n    folder",
            "engine = Engine(args.engine, args.precision, device=args.device)\n    folder",
        ),
        (
            "device-not-passed-on",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)\n    folder",
            "engine = Engine(args.engine, args.precision, threads=args.threads)\n    folder",
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
            "self.engine.set_parameters(init_parameters(self.args.seed))",
            "self.engine.set_parameters(init_parameters(0))",
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
        ("test_engines.py -k 'wrong_calls and reference'", REPORTED, "test_pytorch_parity.py", "test_train.py"),
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
        "mnist_cuda/checkpoint.py",
        ("test_checkpoint.py", REPORTED),
        ("unsynced-file", "file", "            file.flush()\n            os.fsync(file.fileno())\n", ""),
        ("written-in-place", "file", 'part = path.with_name(path.name + ".part")', "part = path"),
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
            "last-epoch's-metrics-only",
            "file",
            "self._metrics.append(json.dumps(record))",
            "self._metrics = [json.dumps(record)]",
        ),
    ),
    *of(
        "mnist_cuda/signals.py",
        ("test_signals.py -k 'not 500'", REPORTED),
        ("code-127", "exit code", "return 128 + signum", "return 127 + signum"),
        (
            "second-signal-waits",
            "exit code",
            "            if self.signal is not None:\n                _exit(signum)\n",
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
            "for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):\n            digest",
            "for array in (self.train_images, self.test_images, self.train_labels, self.test_labels)[:2]:\n            digest",
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
        ("another's-part-removed", "file", "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", ""),
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
        ("test_bench.py",),
        (
            "batches-from-the-start-again",
            "order",
            "self._position = (self._position + count) % len(self._order)",
            "self._position = 0",
        ),
        (
            "worker's-images-always-on-the-device",
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
    f"{REPORTED} -k 'long_call or told or outlive or rate_0 or more_images'",
    "test_engines.py -k 'wrong_calls and cpu'",
)
CPU = (
    f"{REPORTED} -k 'long_call or told or more_images'",
    "test_engines.py -k 'cpu-fp32 and (frozen_step or ragged or statistics or update) and not digits'",
)
REFERENCE = (
    "ctest test_reference_engine",
    f"{REPORTED} -k 'long_call or told or more_images'",
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
        ("statistics-outlive-a-step", "state", "  has_statistics_ = false;\n  do_train(", "  do_train("),
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
            "std::isfinite(learning_rate) && learning_rate >= 0,",
            "std::isfinite(learning_rate),",
        ),
        (
            "a-negative-variance",
            "refusal",
            'MNIST_REQUIRE(value >= 0, "set_statistics: "',
            'MNIST_REQUIRE(value >= -1, "set_statistics: "',
        ),
        (
            "scores-without-statistics",
            "refusal",
            "mode == BatchNormMode::kBatch || has_statistics_,",
            "mode == BatchNormMode::kPopulation || has_statistics_ || true,",
        ),
    ),
    *of(
        "native/include/mnist/engine.h",
        SEAM,
        (
            "no-result-of-the-rest",
            "off by one",
            "return samples / batch + (samples % batch > 0);",
            "return samples / batch;",
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
            "      result = network_.forward(batch);\n",
            "      if (StepResult now_result = network_.forward(batch); &result != &results.back()) result = now_result;\n",
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
            "bias-in-the-population's-mean",
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
            "fc1-in-torch's-order-inside",
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

MUTATIONS = [*TRAINING, *DATA, *BENCH, *HOST]
