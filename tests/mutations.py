"""THE table of mutations: one line of the code changed each time, and the tests that are to notice it.

scripts/check mutations runs them, docs/trust.md shows them with every verdict. A row is a name, a kind, the text that is
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
RESUMED = ("test_resume.py -k 'not random and not power'",)

TRAINING = [
    *of(
        "mnist_cuda/run/training.py",
        (REPORTED, "test_train.py"),
        (
            "same-order-from-epoch-3",
            "order",
            "SeedSequence([seed, 1, epoch])))\n",
            "SeedSequence([seed, 1, min(epoch, 3)])))\n",
        ),
        (
            "chunk-that-begins-late",
            "off by one",
            "self._order[done * batch : (done + most) * batch]",
            "self._order[done * batch + (done > 0) : (done + most) * batch + (done > 0)]",
        ),
        (
            "seconds-of-the-last-chunk",
            "clock",
            "self.step, self._seconds = done + count, self._seconds + steps.seconds",
            "self.step, self._seconds = done + count, steps.seconds",
        ),
        (
            "divergence-seen-at-the-epochs-end",
            "late",
            "sound = steps.losses < DIVERGED_LOSS  # a NaN is not",
            "sound = steps.losses < DIVERGED_LOSS if self.step == self.steps_per_epoch else steps.losses == steps.losses",
        ),
        (
            "blocks-of-all-epochs",
            "reported value",
            "timing = self.clock.summary(self._first_block)",
            "timing = self.clock.summary()",
        ),
        ("epochs-asked-for-not-done", "file", '"epochs": str(self.epochs_done)', '"epochs": str(self.options.epochs)'),
        (
            "live-images-are-steps",
            "unit",
            "images_per_second=options.batch_size * 1e6 / us,",
            "images_per_second=1e6 / us,",
        ),
    ),
    *of(
        "mnist_cuda/run/training.py",
        RESUMED,
        (
            "rates-from-the-epochs-start",
            "resume",
            "self.rates[self.steps : self.steps + most]",
            "self.rates[self.steps - done : self.steps - done + most]",
        ),
        ("trained-on-what-is-held-out", "option", "images, labels = images[kept], labels[kept]", "pass"),
    ),
    *of(
        "mnist_cuda/run/training_run.py",
        (REPORTED, "test_train.py", *RESUMED),
        (
            "signal-in-the-last-epoch-forgotten",
            "exit code",
            "return 0 if stop.signal is None else exit_code(stop.signal)",
            "return 0",
        ),
    ),
    *of(
        "mnist_cuda/run/training_run.py",
        ("test_ranks_processes.py -k patience",),
        ("patience-of-rank-0-alone", "hang", "trainer.train_epoch(stop=lambda: 1)", "pass"),
    ),
    *of(
        "mnist_cuda/run/progress.py",
        (REPORTED, "test_train.py"),
        (
            "microseconds-an-epoch",
            "unit",
            'us = 1e6 * record["train_seconds"] / record["steps"]',
            'us = 1e6 * record["train_seconds"] / record["epoch"]',
        ),
    ),
    *of(
        "mnist_cuda/run/train.py",
        ("test_library.py",),
        ("first-weights-not-kept", "resume", "recorded |= _save_init(folder, engine)", "pass"),
        (
            "first-ctrl-c-is-an-exception",
            "exit code",
            "        if pressed.is_set():\n            raise",
            "        if True:\n            raise",
        ),
        ("changed-options-go-on", "refusal", "if name in was and was[name] != value:", "if name in was and False:"),
    ),
    *of(
        "mnist_cuda/run/callbacks.py",
        ("test_library.py -k early",),
        (
            "patience-from-the-last-of-equals",
            "off by one",
            "values.index(max(values))",
            "values[::-1].index(max(values))",
        ),
    ),
    *of(
        "mnist_cuda/sklearn.py",
        ("test_sklearn.py -k anything",),
        ("shares-of-ten-classes", "shape", "found.logits[:, : len(self.classes_)]", "found.logits"),
    ),
    *of(
        "mnist_cuda/run/keeping.py",
        (REPORTED, "test_train.py", *RESUMED),
        (
            "file-without-statistics",
            "file",
            "        save_model(self.folder.model, model)\n",
            "        save_model(self.folder.model, Model(model.parameters, None, model.metadata))\n",
        ),
        (
            "stopped-without-a-checkpoint",
            "resume",
            "        self.save_state(state)\n        if not evaluated",
            "        if not evaluated",
        ),
        (
            "best-by-the-test-set",
            "option",
            'key=lambda row: (row["validation_accuracy"], -row["validation_loss"])',
            'key=lambda row: (row["test_accuracy"], -row["test_loss"])',
        ),
    ),
    *of(
        "mnist_cuda/run/resume.py",
        RESUMED,
        (
            "checkpoint-of-any-content",
            "refusal",
            'metadata.get("sha256") != digest_of(tensors, metadata)',
            'not metadata.get("sha256")',
        ),
        ("later-checkpoints-stay", "resume", "if than is None or _place(path) > _place(than):", "if than is None:"),
    ),
    *of(
        "mnist_cuda/run/training.py",
        ("test_ranks_processes.py -k 'stop or shares or weights'",),
        (
            "each-rank-saves-by-itself",
            "ranks",
            "most, self.stopped = self.ranks.agree(",
            "_, self.stopped = self.ranks.agree(",
        ),
    ),
    *of(
        "mnist_cuda/ranks/group.py",
        ("test_ranks_processes.py -k 'stop'",),
        (
            "only-rank-0-may-stop",
            "ranks",
            "next((signum for _, signum in all_of_them if signum), 0)",
            "all_of_them[0][1]",
        ),
    ),
    *of(
        "mnist_cuda/ranks/group.py",
        ("test_ranks_world.py",),
        ("any-data-will-do", "refusal", "for kind, f in facts.items() for", "for kind, f in [*facts.items()][:1] for"),
    ),
    *of(
        "mnist_cuda/ranks/session.py",
        ("test_ranks_processes.py -k 'error or killed'",),
        (
            "a-killed-rank-is-gone",
            "exit code",
            "elif rank > 0:\n                    error = processes.lost(rank)",
            "elif rank > 0:\n                    pass",
        ),
    ),
    *of(
        "mnist_cuda/ranks/world.py",
        ("test_ranks_world.py",),
        (
            "a-batch-script-is-a-rank",
            "launch",
            '("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")',
            '("SLURM_NTASKS",)',
        ),
    ),
    *of(
        "mnist_cuda/ranks/processes.py",
        ("test_ranks_processes.py -k 'listens'",),
        (
            "ranks-by-the-network",
            "launch",
            "pairs = [socket.socketpair() for _ in range(count - 1)]",
            'pairs = []\n    with socket.create_server(("", 0)) as server:\n        for _ in range(count - 1):\n'
            "            first = socket.create_connection(server.getsockname())\n"
            "            pairs.append((first, server.accept()[0]))",
        ),
    ),
    *of(
        "mnist_cuda/ranks/launchers.py",
        ("test_ranks_processes.py -k 'mpi'",),
        ("an-error-ends-one-rank-of-mpi", "exit code", "gather), ranks.Abort", "gather), lambda code: None"),
        ("each-rank-of-mpi-alone", "refusal", "if ranks.size != count:", "if False:"),
    ),
    *of(
        "mnist_cuda/bench/process.py",
        ("test_bench.py -k 'fails'",),
        ("last-words-unread", "race", "with suppress(BrokenPipeError):  # it has", "with suppress():  # it has"),
    ),
    *of(
        "mnist_cuda/run/options.py",
        (REPORTED, "test_train.py", *RESUMED),
        (
            "offline-not-passed-on",
            "option",
            "dataset.load(self.dataset, data_dir=self.data_dir, offline=self.offline, mirror=self.mirror)",
            "dataset.load(self.dataset, data_dir=self.data_dir, mirror=self.mirror)",
        ),
    ),
    *of(
        "mnist_cuda/engine/timing.py",
        (REPORTED, "test_timing.py"),
        (
            "recent-with-the-warm-up",
            "clock",
            "in reversed(self._blocks[1:] or self._blocks):",
            "in reversed(self._blocks):",
        ),
    ),
    *of(
        "mnist_cuda/rules.py",
        ("test_api.py -k 'impossible or numpy or flags_and'",),
        ("true-is-a-number", "refusal", "if isinstance(value, bool) or not of_kind:", "if not of_kind:"),
        ("numbers-stay-numpys", "state", "return self.kind(value)", "return value"),
        ("one-more-than-the-most", "refusal", 'if value > self.most else ""', 'if value > self.most + 1 else ""'),
        ("a-rise-of-more-than-all-steps", "refusal", "if not 0 <= rise <= 1:", "if not 0 <= rise <= 2:"),
    ),
    *of(
        "native/binding/interpreter.h",
        ("test_exit.py -k seam",),
        ("a-thread-takes-the-lock-at-the-end", "race", "if (door.closed && ending()) {", "if (false) {"),
    ),
    *of(
        "mnist_cuda/run/names.py",
        ("test_runs.py -k a_name_means", "test_api.py -k name_in_python"),
        ("an-empty-folder-hides-a-run", "refusal", "os.path.exists(path / holding)), found[0])", "True), found[0])"),
        ("a-models-file-means-its-neighbour", "file", "path.name in RECORDS", "path.suffix"),
    ),
    *of(
        "mnist_cuda/run/callbacks.py",
        ("test_library.py -k best",),
        ("the-last-weights-come-back", "state", "if self._best is None:", "if True:"),
        ("the-best-weights-without-statistics", "state", "if trainer.engine.statistics is None:", "if False:"),
    ),
    *of(
        "mnist_cuda/terminal/console.py",
        (REPORTED,),
        (
            "hours-from-the-61st-minute",
            "unit",
            'if minutes < 60 else f"{minutes // 60}',
            'if minutes <= 60 else f"{minutes // 60}',
        ),
    ),
    *of(
        "mnist_cuda/run/evaluation.py",
        (REPORTED, "test_evaluate.py"),
        (
            "labels-of-the-first-images",
            "off by one",
            "of_batch = classes[first : first + BATCH_SIZE]",
            "of_batch = classes[: min(BATCH_SIZE, len(classes) - first)]",
        ),
    ),
    *of(
        "mnist_cuda/commands/evaluate.py",
        (REPORTED, "test_evaluate.py"),
        (
            "evaluate-without-the-precision",
            "option",
            "engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)",
            "engine = Engine(args.engine, threads=args.threads, device=args.device)",
        ),
    ),
    *of(
        "mnist_cuda/engine/model.py",
        ("test_engines.py -k 'wrong_calls and reference'", REPORTED),
        ("any-shape", "refusal", "if value.shape != t.shape:", "if value.size != t.size:"),
        (
            "biases-as-if-of-one-input",
            "initial values",
            'bound = 1 / math.sqrt(math.prod(shapes[f"{layer}.weight"][1:]))',
            "bound = 1 / math.sqrt(math.prod(shapes[t.name][1:]))",
        ),
    ),
    *of(
        "mnist_cuda/engine/__init__.py",
        ("test_registry.py", "test_startup.py"),
        (
            "limits-of-every-engine",
            "option",
            'os.environ.get("MNIST_CUDA_FUSED_LIMITS", "") if takes_limits else ""',
            'os.environ.get("MNIST_CUDA_FUSED_LIMITS", "")',
        ),
    ),
    *of(
        "mnist_cuda/engine/__init__.py",
        (
            "test_engines.py -k 'wrong_calls and reference'",
            REPORTED,
            "test_engines.py -k '(round_trip or unknown or registry) and not gpu'",
        ),
        (
            "half-of-a-complex-rate",
            "refusal",
            'if rates.dtype.kind not in "fiu" or',
            'if rates.dtype.kind not in "fiuc" or',
        ),
        (
            "indices-cut-to-32-bits",
            "refusal",
            "if order.dtype != np.int32 and (changed := indices != order).any():",
            "if order.dtype == np.float32 and (changed := indices != order).any():",
        ),
    ),
    *of(
        "mnist_cuda/engine/__init__.py",
        ("test_ranks.py -k pieces",),
        (
            "pieces-by-each-ranks-own-time",
            "ranks",
            "next_piece(piece, count, mean)",
            "next_piece(piece, count, seconds)",
        ),
    ),
    *of(
        "mnist_cuda/engine/__init__.py",
        ("test_api.py -k share_an_engine",),
        ("two-threads-in-a-step", "race", "self._lock = threading.RLock()", "self._lock = threading.Semaphore(99)"),
    ),
    *of(
        "mnist_cuda/engine/__init__.py",
        ("test_api.py -k fork",),
        ("a-forks-engine-waits", "refusal", "if os.getpid() != self._process:", "if False:"),
    ),
    *of(
        "mnist_cuda/files.py",
        ("test_checkpoint.py", REPORTED),
        ("unsynced-file", "file", "            if sync:\n                os.fsync(number)\n", ""),
    ),
    *of(
        "mnist_cuda/files.py",
        ("test_files.py -k 'taken or parts'",),
        ("part-through-a-link", "file", "os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW", "os.O_CREAT | os.O_TRUNC"),
        ("parts-of-others-removed", "file", "filter(_PART.fullmatch,", "filter(_PART.match,"),
    ),
    *of(
        "mnist_cuda/run/folder.py",
        ("test_files.py -k locks",),
        (
            "leftovers-removed-without-the-lock",
            "file",
            "            if self._lock():\n",
            "            if self._lock() or True:\n",
        ),
    ),
    *of(
        "mnist_cuda/terminal/json_input.py",
        ("test_files.py -k json_of",),
        ("nan-is-a-number", "refusal", "if not abs(value) <= _LARGEST:", "if abs(value) > _LARGEST:"),
        ("json-true-is-a-number", "refusal", "if not (found is outer or", "if not (issubclass(found, outer) or"),
        ("json-of-any-depth", "refusal", "_require_plain(item, depth - 1)", "_require_plain(item, depth)"),
    ),
    *of(
        "mnist_cuda/terminal/streams.py",
        ("test_streams.py -k others",),
        ("errors-with-escapes", "refusal", "return self.write_styled(clean(text))", "return self.write_styled(text)"),
    ),
    *of(
        "mnist_cuda/terminal/console.py",
        ("test_streams.py -k others",),
        ("warnings-with-escapes", "refusal", "segment._replace(text=clean(segment.text))", "segment"),
    ),
    *of(
        "mnist_cuda/run/training_run.py",
        ("test_crashes.py -k call_that_failed",),
        ("result-hidden-by-a-full-disk", "reported value", "            self._report(signum, saved=False)\n", ""),
    ),
    *of(
        "mnist_cuda/terminal/json_output.py",
        ("test_crashes.py -k object",),
        ("object-hidden-by-a-full-disk", "reported value", "                print(dumps(value), flush=True)\n", ""),
    ),
    *of(
        "mnist_cuda/sweeps/table.py",
        ("test_sweep.py -k every_bit",),
        ("row-of-any-content", "refusal", "if check != _check(values):", "if not check:"),
    ),
    *of(
        "mnist_cuda/run/checkpoint.py",
        ("test_checkpoint.py", REPORTED),
        (
            "tensor-of-another-shape",
            "refusal",
            "if tensor.shape != shape:",
            "if tensor.ndim != len(shape):",
        ),
        ("any-pytorch", "refusal", "< (2, 6):", "< (2, 0):"),
        (
            "model-of-any-content",
            "refusal",
            'metadata.get("sha256") != digest_of(tensors, metadata)',
            'not metadata.get("sha256")',
        ),
        ("digest-of-parameters-alone", "file", "for name in sorted(tensors):", "for name in sorted(tensors)[:12]:"),
    ),
    *of(
        "mnist_cuda/run/folder.py",
        ("test_train.py", REPORTED),
        (
            "last-epochs-metrics-only",
            "file",
            "self._metrics.append(record)",
            "self._metrics = [record]",
        ),
    ),
    *of(
        "mnist_cuda/terminal/signals.py",
        ("test_signals.py -k 'not 500'", REPORTED, "test_streams.py -k second"),
        ("second-message-behind-the-bar", "output", "if os.isatty(2):", "if False:"),
        ("bar-below-the-second-message", "output", "os.dup2(nowhere, stream)", "pass"),
        (
            "second-signal-waits",
            "exit code",
            '            if self.signal is not None:\n                end_now(signum, "stopped by a second signal, at once")\n',
            "",
        ),
    ),
]

LOOKING = [
    *of(
        "mnist_cuda/run/confusion.py",
        ("test_runs.py", "test_evaluate.py"),
        (
            "errors-of-what-it-was-taken-for",
            "index",
            "self.counts - self.matrix.diagonal()",
            "self.matrix.sum(axis=0) - self.matrix.diagonal()",
        ),
    ),
    *of(
        "mnist_cuda/run/listing.py",
        ("test_runs.py",),
        ("removes-what-goes-on", "refusal", "if _goes_on(run.path):", "if False:"),
        ("removes-what-others-wrote", "refusal", " and _WRITTEN.fullmatch(path.name))", ")"),
        ("removes-any-config-json", "refusal", 'isinstance(versions, dict) and "mnist-cuda" in versions', "True"),
        ("at-most-for-less", "off by one", '{"<": value < limit', '{"<": value <= limit'),
    ),
    *of(
        "mnist_cuda/machine.py",
        ("test_doctor.py",),
        ("smi-that-failed", "refusal", "if result.returncode == 0 and all(", "if all("),
    ),
    *of(
        "mnist_cuda/commands/doctor.py",
        ("test_doctor.py",),
        (
            "idle-gpu-is-fine",
            "exit code",
            'return UnavailableError.exit_code if facts["gpu_there"] and not facts["gpu_usable"] else 0',
            "return 0",
        ),
    ),
    *of(
        "mnist_cuda/report/charts.py",
        ("test_report.py", "test_charts.py"),
        (
            "shapes-of-another-picture",
            "stale copy",
            'rf"\\g<1>{name}_{referred}"',
            'rf"\\g<1>{referred}"',
        ),
    ),
    *of(
        "mnist_cuda/report/page.py",
        ("test_report.py",),
        ("names-are-markup", "refusal", "<h2>{escape(panel.title)}</h2>", "<h2>{panel.title}</h2>"),
    ),
]

DATA = [
    *of(
        "mnist_cuda/data/idx.py",
        ("test_data_idx.py",),
        ("labels-of-other-images", "refusal", "if len(images) != len(labels):", "if len(images) < len(labels):"),
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
            "digest-of-images-alone",
            "file",
            "    for array in arrays:\n        digest.update",
            "    for array in arrays:\n        if array.ndim == 3:\n            digest.update",
        ),
        (
            "silent-fallback",
            "option",
            "return _generate(name, seed, warning)",
            "return _generate(name, seed, None)",
        ),
        ("no-word-of-the-fallback", "message", "            warnings.warn(warning, stacklevel=3)", "            pass"),
    ),
    *of(
        "mnist_cuda/data/arrays.py",
        ("test_api.py -k labels",),
        ("fewer-labels-than-images", "refusal", "if len(pixels) != len(classes)", "if len(pixels) < len(classes)"),
        ("labels-below-0", "refusal", "(array >= 0) & (array < CLASSES)", "(array < CLASSES)"),
    ),
    *of(
        "mnist_cuda/data/arrays.py",
        ("test_data_own_files.py -k 'holds or npz_of'",),
        ("nearly-black", "refusal", "pixels.max() == 1:", "pixels.max() == 2:"),
        (
            "held-out-by-place",
            "file",
            "order = np.random.Generator(stream).permutation(len(of_class))",
            "order = np.arange(len(of_class))",
        ),
    ),
    *of(
        "mnist_cuda/data/file_roles.py",
        ("test_data_own_files.py -k rule",),
        (
            "unpacked-before-gzip",
            "file",
            'return not member.file_name.lower().endswith(".gz")',
            'return member.file_name.lower().endswith(".gz")',
        ),
    ),
    *of(
        "mnist_cuda/data/csv_data.py",
        ("test_data_own_files.py -k table",),
        ("first-digit-cut-off", "off by one", "lengths.max() > 3:", "lengths.max() > 4:"),
    ),
    *of(
        "mnist_cuda/data/npz_data.py",
        ("test_data_own_files.py -k bomb",),
        ("npz-bomb", "refusal", "if elements > MAX_ELEMENTS or", "if"),
    ),
    *of(
        "mnist_cuda/run/keeping.py",
        ("test_data_own_files.py -k limit",),
        ("a-part-is-other-data", "message", "        data = data.first(limit)\n", "        pass\n"),
    ),
    *of(
        "mnist_cuda/data/catalogue.py",
        ("test_report.py -k password", "test_data_download.py"),
        ("password-kept", "file", 're.sub("://.*@", "://", text)', "text"),
    ),
    *of(
        "mnist_cuda/commands/data/verify.py",
        ("test_data_commands.py",),
        ("damaged-arrays-replace-files", "refusal", "if unpacked.read(info):", "if True:"),
    ),
    *of(
        "mnist_cuda/data/download.py",
        ("test_data_download.py",),
        ("anothers-part-removed", "file", "locked = take_lock(folder)", "locked = take_lock(folder, fcntl.LOCK_SH)"),
        (
            "stall-without-a-limit",
            "late",
            'limit, what = timeouts.stall, f"stalled',
            'limit, what = timeouts.total, f"stalled',
        ),
    ),
]

PICTURES = [
    *of(
        "mnist_cuda/data/digit.py",
        ("test_digit.py",),
        ("centre-one-pixel-off", "off by one", "_CENTRE = SIDE // 2  #", "_CENTRE = SIDE // 2 - 1  #"),
        ("table-taken-for-ink", "reported value", "        sides = inner\n", "        pass\n"),
        (
            "12-bits-of-16-are-dark",
            "unit",
            "bits = max(8, int(picture.max()).bit_length())",
            "bits = 8 * picture.dtype.itemsize",
        ),
    ),
    *of(
        "mnist_cuda/data/layout.py",
        ("test_digit.py", "test_rows.py"),
        ("comma-is-a-digit", "refusal", "_LOW = 0.4", "_LOW = 0.0"),
        ("sign-in-silence", "message", "    if remarks:", "    if False:"),
        ("fraction-of-a-row", "off by one", "_BESIDE = 0.25", "_BESIDE = 0.75"),
    ),
    *of(
        "mnist_cuda/data/looks.py",
        ("test_looks.py",),
        ("other-way-round", "reported value", "moved[k] = np.roll(image, (y, x), (0, 1))", "moved[k] = image.T"),
        ("inverted-in-silence", "message", "if share > 1 - _SOME:", "if share > 1:"),
    ),
    *of(
        "mnist_cuda/data/class_folders.py",
        ("test_class_folders.py",),
        ("old-pictures-from-the-cache", "stale copy", "sound = facts[0] == key and", "sound = bool(facts[0]) and"),
        ("link-out-of-the-folder", "refusal", "if picture.path.is_symlink() and", "if False and"),
    ),
    *of(
        "mnist_cuda/data/picture_file.py",
        ("test_picture_file.py",),
        ("turned-as-the-camera-lay", "file", "convert(ImageOps.exif_transpose(image))", "convert(image)"),
    ),
    *of(
        "mnist_cuda/run/onnx_export.py",
        ("test_export.py",),
        ("onnx-pixels-by-256", "unit", '(255 if kind == "uint8" else 1)', '(256 if kind == "uint8" else 1)'),
    ),
    *of(
        "mnist_cuda/data/likeness.py",
        ("test_predict.py -k 'plain_loop or unlike'",),
        ("nearest-of-any-class", "stale copy", "_form(among[labels == label])", "_form(among)"),
    ),
    *of(
        "mnist_cuda/commands/predict.py",
        ("test_predict.py",),
        (
            "a-bad-picture-costs-nothing",
            "refusal",
            "return 0 if not any(isinstance(found, DataError) for found in digits) else",
            "return 0 if read else",
        ),
    ),
    *of(
        "mnist_cuda/commands/export/__init__.py",
        ("test_export.py",),
        (
            "export-over-the-model",
            "file",
            "if path.exists() and file.exists()",
            "if not path.exists() and file.exists()",
        ),
    ),
]

BENCH = [
    *of(
        "mnist_cuda/bench/step.py",
        ("test_bench.py", REPORTED),
        (
            "void-peers-count",
            "reported value",
            "sound = [row for row in rows if row.timing and not row.fault]",
            "sound = [row for row in rows if row.timing]",
        ),
        (
            "all-blocks-of-one-first",
            "order",
            "not c.row.fault and c.wants_more(blocks, seconds)]:",
            "not c.row.fault and c.wants_more(blocks, seconds)][:1]:",
        ),
        ("a-model-takes-the-time-of-all", "unit", "us / row.competitor.models for us", "us for us"),
    ),
    *of(
        "mnist_cuda/bench/time_to_accuracy.py",
        (f"{REPORTED} -k recipe", "test_bench_time_to_accuracy.py"),
        (
            "time-with-the-evaluation",
            "clock",
            "return Run(seed, accuracy, steps.seconds, time.perf_counter() - start)",
            "return Run(seed, accuracy, time.perf_counter() - start, time.perf_counter() - start)",
        ),
        (
            "every-epoch-in-the-order-of-the-first",
            "order",
            "np.concatenate([epoch_order(seed, epoch, count)[:kept]",
            "np.concatenate([epoch_order(seed, 1, count)[:kept]",
        ),
    ),
    *of(
        "mnist_cuda/bench/submit.py",
        ("test_bench_submit.py -k 'not examples'",),
        ("classes-keep-their-digits", "refusal", "names = rng.permutation(10)", "names = np.arange(10)"),
        (
            "clock-stops-at-the-programs-word",
            "clock",
            "trained - start, end - start)",
            "trained - start, trained - start)",
        ),
        (
            "every-seed-is-half-of-them",
            "reported value",
            "in_time if reached == count else",
            "in_time if 2 * reached >= count else",
        ),
    ),
    *of(
        "mnist_cuda/bench/share.py",
        ("test_bench_share.py",),
        ("any-digest-will-do", "refusal", '("version", "digest")}', '("version", "digest", "engine")}'),
        ("a-step-as-fast-as-you-like", "unit", "1e6 * batch * IMAGE_FLOPS", "batch * IMAGE_FLOPS"),
    ),
    *of(
        "mnist_cuda/run/schedule.py",
        ("test_schedule.py -k 'not spec'",),
        ("rates-half-a-step-early", "off by one", "t = (np.arange(steps) + 0.5)", "t = (np.arange(steps) + 0.0)"),
    ),
    *of(
        "mnist_cuda/bench/accuracy.py",
        ("test_bench_accuracy.py",),
        (
            "weights-not-compared",
            "refusal",
            "return self.repeat is not None and (first.test_accuracy, first.parameters_sha256) == (\n            self.repeat.test_accuracy,\n            self.repeat.parameters_sha256,\n        )",
            "return self.repeat is not None and (first.test_accuracy) == (\n            self.repeat.test_accuracy\n        )",
        ),
    ),
    *of(
        "mnist_cuda/bench/check.py",
        ("test_bench_check.py",),
        (
            "a-nan-holds",
            "refusal",
            "return frozen and self.free <= self.free_bound",
            "return frozen and not self.free > self.free_bound",
        ),
    ),
    *of(
        "mnist_cuda/bench/profile.py",
        ("test_profile.py -k 'not gpu'",),
        (
            "slower-of-two-roofs",
            "reported value",
            'return (moving, "memory") if moving >= computing else (computing, op.unit)',
            'return (moving, "memory") if moving <= computing else (computing, op.unit)',
        ),
    ),
    *of(
        "mnist_cuda/bench/trace.py",
        ("test_profile.py -k 'trace and not gpu'",),
        ("phase-as-long-as-its-last-op", "reported value", '"dur": last + us - start', '"dur": us'),
    ),
    *of(
        "native/host/profile/step_timer.h",
        ("test_profile.py -k 'ops_of and cpu'",),
        ("trace-from-the-warm-up-on", "reported value", "span.start - steps_[0][0].start", "span.start"),
    ),
    *of(
        "mnist_cuda/bench/machine_code.py",
        ("test_machine_code.py",),
        ("code-of-another-gpu", "refusal", "number == wanted if letter else number <= wanted", "number <= wanted"),
    ),
    *of(
        "mnist_cuda/bench/op_peers.py",
        ("test_op_peers.py",),
        (
            "peer-beside-tensor-cores",
            "reported value",
            '(other["op"], other["unit"]) == (row["op"], row["unit"])',
            'other["op"] == row["op"]',
        ),
        (
            "simulator-that-is-not-there",
            "message",
            '            for row in rows:\n                row["absent"] = ',
            '            for row in rows[:0]:\n                row["absent"] = ',
        ),
    ),
    *of(
        "mnist_cuda/peers/numba_ops.py",
        ("test_op_peers.py",),
        ("numba-s-tile-by-rows", "index", "of_x[row, i] * of_w[column, i]", "of_x[row, i] * of_w[row, i]"),
    ),
    *of(
        "mnist_cuda/peers/baseline.py",
        ("test_baseline.py -k 'engine or cache'",),
        ("slower-called-faster", "formula", "{us / own_us:.2f} times", "{own_us / us:.2f} times"),
        (
            "engine-with-another-batch",
            "wrong value",
            'fields |= {"npz":',
            'fields |= {"batch_size": 8, "npz":',
        ),
        (
            "unpacked-labels-of-the-other-half",
            "index",
            "parts[2].reshape(-1, SIDE, SIDE), parts[3])",
            "parts[2].reshape(-1, SIDE, SIDE), parts[1])",
        ),
    ),
]

SET_UP = [
    *of(
        "scripts/setup.sh",
        ("test_setup.py -k 'gpu or speaks or alone'",),
        ("set-up-that-forgets-cuda", "state", """ || grep -qE '^(cuda|nvidia)-' <<<"$1"; then""", "; then"),
        (
            "gpu-that-comes-unseen",
            "condition",
            "  elif ! sign=$(sign_of_gpu); then\n",
            '  elif [ -n "$1" ] || ! sign=$(sign_of_gpu); then\n',
        ),
        (
            "driver-without-its-program-unseen",
            "condition",
            'ctypes.CDLL("libcuda.so.1")',
            'ctypes.CDLL("libcuda.so.0")',
        ),
    ),
]

# ---- host code -------------------------------------------------------------------------------------------------------

SEAM = (
    "test_evaluate.py -k 'statistics_are_those and reference'",
    f"{REPORTED} -k 'probe_of or rate_0'",
    "test_engines.py -k 'wrong_calls and cpu'",
    "test_schedule.py -k 'cpu and (evaluation_on or not_finite)'",
    f"{REPORTED} -k 'evaluation_is and cpu'",
)
CPU = (
    f"{REPORTED} -k 'probe_of and cpu'",
    "test_engine_sizes.py -k 'cpu-fp32 and (logits or long_call or statistics)'",
    "test_engines.py -k 'cpu-fp32 and (frozen_step or ragged or routing or statistics or update) and not digits'",
    "test_engine_sizes.py -k 'cpu-fp32 and copies'",
)
REFERENCE = (
    "ctest test_reference_engine",
    f"{REPORTED} -k '(probe_of or every_class) and reference'",
    "test_engine_sizes.py -k 'statistics and reference'",
    "test_engines.py -k reference-fp64",
)

HOST = [
    *of(
        "native/host/engines/engine.cpp",
        SEAM,
        (
            "statistics-outlive-the-weights",
            "state",
            "  do_set_parameters(values);\n  has_statistics_ = false;",
            "  do_set_parameters(values);",
        ),
        (
            "only-the-first-index",
            "refusal",
            "for (std::size_t i = 0; i < order.size(); ++i)\n    MNIST_REQUIRE(order[i] >= 0",
            "for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 1); ++i)\n    MNIST_REQUIRE(order[i] >= 0",
        ),
        (
            "first-500-images-scored-again",
            "off by one",
            "do_logits(std::span(evaluation_images_).subspan(first * kImagePixels, count * kImagePixels),",
            "do_logits(std::span(evaluation_images_).first(count * kImagePixels),",
        ),
    ),
    *of(
        "native/host/engines/cpu.cpp",
        CPU,
        (
            "the-first-batch-again",
            "off by one",
            "      order = order.subspan(now.size());\n",
            "      order = order.subspan(order.size() > 2 * now.size() ? now.size() : 0);\n",
        ),
        (
            "rate-of-the-first-step",
            "option",
            "network_.backward_and_update(batch, learning_rates[step]);",
            "network_.backward_and_update(batch, learning_rates[0]);",
        ),
    ),
    *of(
        "native/host/cpu/network.cpp",
        ("ctest test_cpu_network", *CPU),
        (
            "z2-never-computed-again",
            "boundary",
            "      if (!kept) conv2_forward(worker, worker.z.data(), worker.e.data(), sums);\n",
            "",
        ),
        ("sign-of-gamma-lost", "sign", "sign2_[c] = gamma < 0 ? -1.0f : 1.0f;", "sign2_[c] = 1.0f;"),
        ("ties-of-a-scale-0", "tie", "layer2_.live[c] = gamma == 0 ? 0 : -1;", "layer2_.live[c] = -1;"),
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
            "layer2_.alpha[c] = float(-scale * dbeta[c] / n - kappa * layer2_.mean[c]);",
            "layer2_.alpha[c] = float(-scale * dbeta[c] / n);",
        ),
    ),
    *of(
        "native/host/cpu/network.cpp",
        ("test_ranks.py",),
        (
            "gradients-of-a-shares-mean",
            "ranks",
            "upstream / double(batch.whole_size()) * (p[k]",
            "upstream / double(batch.size()) * (p[k]",
        ),
    ),
    *of(
        "native/include/mnist/communicator.h",
        ("ctest test_ranks",),
        (
            "an-image-in-no-share",
            "off by one",
            "{count * rank / size, count * (rank + 1) / size}",
            "{count * rank / size, count * (rank + 1) / size - (rank > 1)}",
        ),
    ),
    *of(
        "native/host/ranks/communicator.cpp",
        ("ctest test_ranks",),
        (
            "sums-from-the-last-rank",
            "order",
            "room.data() + rank * values.size_bytes()",
            "room.data() + (ranks.size() - 1 - rank) * values.size_bytes()",
        ),
    ),
    *of(
        "native/host/ranks/sockets.cpp",
        ("ctest test_ranks",),
        (
            "another-steps-frame-taken",
            "refusal",
            "if (header.kind != kind || header.bytes != bytes.size())",
            "if (header.bytes > bytes.size())",
        ),
    ),
    *of(
        "native/host/cpu/layer1.cpp",
        CPU,
        ("covariance-of-raw-pixels", "formula", "*product++ / n - mean[i] * mean[j];", "*product++ / n;"),
    ),
    *of(
        "native/host/cpu/parameters.cpp",
        ("test_engines.py -k 'cpu-fp32 and round_trip'", *CPU),
        (
            "fc1-in-torchs-order-inside",
            "layout",
            "visit((pixel * kConv2Channels + channel) * kHidden + out, i++);",
            "visit(i, i), i++;",
        ),
    ),
    *of(
        "native/host/cpu/thread_pool.cpp",
        ("ctest test_cpu_thread_pool", *CPU),
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
        "native/host/cpu/simd/conv1.h",
        ("ctest test_cpu_kernels", *CPU),
        (
            "last-of-ties",
            "tie",
            "        for (int k = 1; k < 4; ++k) {\n          const Mask better = y[k] > best;",
            "        for (int k = 1; k < 4; ++k) {\n          const Mask better = y[k] >= best;",
        ),
    ),
    *of(
        "native/host/cpu/simd/linear.h",
        ("ctest test_cpu_kernels", *CPU),
        (
            "gradient-through-a-dead-relu",
            "relu",
            "store(dh + i, load(h + i) <= Vec{} ? Vec{} : load(dh + i));",
            "store(dh + i, load(dh + i));",
        ),
    ),
    *of(
        "native/host/engines/reference.cpp",
        REFERENCE,
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
    ),
    *of(
        "native/host/cpu/reference_ops.cpp",
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
        (
            "last-maximum",
            "tie",
            "if (value > best || (std::isnan(value) && !std::isnan(best)))",
            "if (value >= best || (std::isnan(value) && !std::isnan(best)))",
        ),
    ),
    *of(
        "native/host/kernels/fused/plan.cpp",
        ("ctest test_fused_plan",),
        (
            "a-tile-that-just-fits",
            "boundary",
            "row.shared() <= gpu.shared && suits(row)",
            "row.shared() < gpu.shared && suits(row)",
        ),
        ("whole-images-after-halves", "layout", " && (row.wgmma || row.rows <= conv_forward.rows);", ";"),
    ),
    *of(
        "native/host/engines/registry.cpp",
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

FENCE = (
    "an H200 shows the tensor cores what was stored before a barrier without the fence, too: all tests of the precision "
    "pass; PTX asks for it, and CI counts the fences in the machine code (docs/kernel_resources.csv)"
)

FUSED = [
    *of(
        "native/gpu/kernels/device/barriers.cuh",
        ("ctest test_fused_conv2_backward",),
        (
            "parity-wrong-from-the-fifth-unit",
            "parity",
            "wait(int(unsigned(item) / kStages & 1));",
            "wait(item >= kStages);",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/device/loads.cuh",
        ("ctest test_fused_update",),
        (
            "last-row-added-twice",
            "off by one",
            "if (first + group + kGroups * k < rows) add(x[k], k);",
            "if (first + group + kGroups * k <= rows) add(x[k], k);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/shared/numbers.cuh",
        ("ctest test_fused_fc1",),
        (
            "big-part-cut-instead-of-rounded",
            "rounding",
            "return (x + 0x1000u) & 0xffffe000u;",
            "return x & 0xffffe000u;",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/image.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "padding-below-is-not-set",
            "boundary",
            "i < count * kImageBytes / 16; i += blockDim.x)",
            "i < (count * kImageBytes - kImagePitch * 2) / 16; i += blockDim.x)",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/shared/scales.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "range-of-the-first-channels",
            "scale from a part",
            "return power_of_two_scale<15, -60>(warp_max(s.bn1.largest_a1(lane)));",
            "return power_of_two_scale<15, -60>(warp_max(s.bn1.largest_a1(lane & 15)));",
        ),
        ("small-part-of-nothing", "rounding", "    x -= big.x, y -= big.y;\n", "    x -= big.x, y = 0;\n"),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/scales.cuh",
        (),
        (
            "a2-as-large-as-beta",
            "scale from a part",
            "fmaf(fabsf(gamma), rsqrtf(float(s.inv_n2)), fabsf(beta))",
            "0x1p-14f * fabsf(beta)",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/routing.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "a-zero-passes-relu",
            "relu",
            "const bool dead = value <= 0.f || padding;",
            "const bool dead = value < 0.f || padding;",
        ),
        (
            "last-of-equals-wins-in-pairs",
            "tie",
            "where = (is[0] & 0x00800080u) | (~is[0] & where);",
            "where = (is[0] & ~is[1] & 0x00800080u) | (~(is[0] & ~is[1]) & where);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/mma_products.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "filter-scale-forgotten",
            "unit",
            "scale[i] = bn1.scale(channel) * bn1.filter_scale(channel);",
            "scale[i] = bn1.scale(channel);",
        ),
        (
            "last-groups-sums-forgotten",
            "partial sum",
            "for (int k = 0; k < kGroups; ++k) total += warp_sums[4 * k + channel / 16]",
            "for (int k = 0; k < max(kGroups - 1, 1); ++k) total += warp_sums[4 * k + channel / 16]",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/wgmma_products.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "last-patch-row-stored-once",
            "off by one",
            "min(n + (lane >> 3), kRows - 1);",
            "min(n + (lane >> 3), kRows - 2);",
        ),
        ("zero-scale-of-the-other-channel", "tie", "top[i] = zero[i] ? firsts", "top[i] = zero[0] ? firsts"),
        (
            "rows-behind-the-image-counted",
            "boundary",
            "if (q + e >= kRows / 2 || first_row + 2 * (q + e) >= kPool1Side) continue;",
            "if (q + e >= kRows / 2) continue;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/mma.cuh",
        ("ctest test_fused_conv_forward", "test_engine_sizes.py -m gpu -k '{spec} and older_gpu'"),
        (
            "third-image-does-not-wait",
            "race",
            "if (image >= 2 * int(gridDim.x)) Free::sync(stage);",
            "if (image >= 3 * int(gridDim.x)) Free::sync(stage);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/wgmma.cuh",
        ("ctest test_fused_conv_forward", "test_engine_sizes.py -m gpu -k 'every_size and {spec}'"),
        (
            "third-images-pixels-are-the-seconds",
            "pipeline",
            "multiply(acc[0], group, 0);\n        store_image(image + 2 * step);",
            "multiply(acc[0], group, 0);\n        store_image(image + step);",
        ),
        (
            "fifth-image-overtakes",
            "race",
            "if (image >= step) Free::sync(group);",
            "if (image >= 2 * step) Free::sync(group);",
        ),
        (
            "a1-multiplied-without-a-fence",
            "fence",
            "  wgmma_publish();\n  __syncthreads();  // a1 is complete",
            "  __syncthreads();  // a1 is complete",
            FENCE,
        ),
        (
            "pooled_z2-of-the-image-before",
            "layout",
            "store_bulk(part_of(s.pooled_z2, kCells2 * Shared::kPooledZ2Cell)",
            "store_bulk(part_of(s.pooled_z2, kCells2 * Shared::kPooledZ2Cell) - (image > 300 ? kCells2 * Shared::kPooledZ2Cell : 0)",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/wgmma_products.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "plane-of-the-second-seven-rows",
            "parity",
            "const int plane = (kRow + n + m) & 1, cy",
            "const int plane = (n + m) & 1, cy",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/wgmma.cuh",
        ("ctest test_fused_conv_forward",),
        (
            "right-half-without-a-unit",
            "unit",
            "left.load_scale(s), right.load_scale(s);",
            "left.load_scale(s), right.acc_scale = 1.f;",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_forward/mma.cuh",
        ("ctest test_fused_fc1",),
        (
            "last-stage-of-the-ring-not-fetched",
            "pipeline",
            "if (const int next = k_tile - 1 + kFc1Stages; next < k_tiles) {",
            "if (const int next = k_tile - 1 + kFc1Stages; next + 1 < k_tiles) {",
        ),
        (
            "second-half-overwrites-the-first",
            "race",
            "    if (channel_half < last) __syncthreads();  // before the buffers and bn are written again\n",
            "",
        ),
        (
            "sums-never-drained",
            "accumulator",
            "add_accumulators(acc, partial);",
            "clear_accumulators(acc), add_accumulators(acc, partial);",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_forward/wgmma.cuh",
        ("ctest test_fused_fc1",),
        (
            "stage-free-after-half-of-its-warps",
            "race",
            "memory.empty.stages[tid].init(kThreads / 32 / kTurns);",
            "memory.empty.stages[tid].init(kThreads / 32 / kTurns / 2);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_forward/bn2.cuh",
        ("ctest test_fused_fc1",),
        (
            "scale-of-the-first-half-only",
            "state",
            "const bool leaves = blockIdx.x == 0 && blockIdx.y < 2;",
            "const bool leaves = blockIdx.x == 0 && blockIdx.y < 1;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_forward/bn2.cuh",
        ("ctest test_fused_fc1",),
        (
            "mean-without-what-rounding-took",
            "rounding",
            "s.bn2.mean_rest(channel) = float(mean - double(bn.mean));",
            "s.bn2.mean_rest(channel) = 0.f;",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_backward/columns.cuh",
        ("ctest test_fused_fc1",),
        (
            "one-row-behind-the-batch",
            "boundary",
            '"r"(row0 + row < count ? 16 : 0)',
            '"r"(row0 + row <= count ? 16 : 0)',
        ),
        (
            "largest-of-one-warp",
            "scale from a part",
            "if (lane == 0) s.dy2_max[blockIdx.x * kGradientWarps + warp] = largest;",
            "if (lane == 0) s.dy2_max[blockIdx.x * kGradientWarps + warp] = warp == 0 ? largest : 0.f;",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_backward/wgmma.cuh",
        ("ctest test_fused_fc1",),
        (
            "dy2-of-the-last-sample-not-stored",
            "boundary",
            "if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample < s.batch)",
            "if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample + 1 < s.batch)",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_backward/fp16_terms.cuh",
        ("ctest test_fused_fc1",),
        (
            "float-dy2-of-the-last-sample-not-stored",
            "boundary",
            "if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample < s.batch)",
            "if (const int sample = tile * Shared::kSamplesPerTile + row + upper * 8; sample + 1 < s.batch)",
        ),
        (
            "small-terms-of-b-left-out",
            "rounding",
            "product(sums[0], step, 0, 1, true);",
            "product(sums[0], step, 1, 0, true);",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/scales.cuh",
        ("ctest test_fused_update",),
        ("terms-in-the-order-of-features", "layout", "fc1_place(column))] = terms[term].x", "column)] = terms[term].x"),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/head.cuh",
        ("ctest test_fused_head", "test_engines.py -m gpu -k '{spec} and smaller_batch'"),
        (
            "dh-of-the-batch-before-stays",
            "stale",
            "const int tiles_end = (s.batch + kSamplesPerDhTile - 1) / kSamplesPerDhTile * kSamplesPerDhTile;",
            "const int tiles_end = 0;",
        ),
        (
            "next-moments-of-this-batch",
            "state",
            "s.samples.order[std::size_t(graph_step + 1) * s.batch + first + k * stride]",
            "s.samples.order[std::size_t(graph_step) * s.batch + first + k * stride]",
        ),
        (
            "last-maximum-is-the-answer",
            "tie",
            "if (const float other = of_class(score[r], k); other > top[r]) top[r] = other, best[r] = k;",
            "if (const float other = of_class(score[r], k); other > top[r]) top[r] = other, best[r] = k - 1;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/make_dz2.cuh",
        ("ctest test_fused_conv2_backward",),
        ("gradient-to-every-tie", "tie", "      left &= ~here;\n", ""),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/make_dz2.cuh",
        ("ctest test_fused_conv2_backward",),
        ("nothing-carried", "rounding", "rest.x = x - kept.x;", "rest.x = 0;"),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/bn2_backward.cuh",
        ("ctest test_fused_conv2_backward",),
        (
            "new-sign-of-gamma-unfolded",
            "sign",
            "s.bn2_sign[tid] = sign;",
            "s.bn2_sign[tid] = gamma - learning_rate * float(sign * dgamma) < 0 ? -1.f : 1.f;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/bn2_backward.cuh",
        (
            "ctest test_fused_conv2_backward",
            "test_engine_state.py -m gpu -k 'all_sizes and {spec}'",
            "test_sweep.py -m gpu -k 'each_model and {spec}'",
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
            "i < s.dy2_maxima()) maxima",
            "i < s.dy2_maxima() / 2) maxima",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/mma_products.cuh",
        ("ctest test_fused_conv2_backward",),
        (
            "neighbour-row-of-half-an-image",
            "boundary",
            "kLast = kRows == 14 ? 14 : kRows + 1;",
            "kLast = kRows == 14 ? 14 : kRows;",
        ),
        (
            "plain-sum-of-nothing",
            "partial sum",
            "const std::uint32_t ones = g == 1 ? Operand<P>::kOnes : 0u;",
            "const std::uint32_t ones = 0u;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv_forward/mma.cuh",
        ("ctest test_fused_conv_forward", "test_engines.py -k 'several_units and (l4 or rtx)'"),
        ("neighbour-row-of-the-upper-half", "boundary", "rows = half == 0 ? 9 : 7;", "rows = half == 0 ? 8 : 7;"),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/mma_items.cuh",
        ("ctest test_fused_conv2_backward", "test_engines.py -k 'several_units and (l4 or rtx)'"),
        (
            "first-channels-for-both-parts",
            "layout",
            "i / kCellChunks * kConv2Channels + first_channel() + i % kCellChunks * kChunk<P>;",
            "i / kCellChunks * kConv2Channels + i % kCellChunks * kChunk<P>;",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/conv3x3.cuh",
        ("ctest test_fused_conv2_backward", "test_engines.py -k 'several_units and a100'"),
        (
            "small-terms-of-the-filter-left-out",
            "rounding",
            "of_filter = kTerms<P> - 1 - term; of_filter",
            "of_filter = 0; of_filter",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/mma.cuh",
        ("ctest test_fused_conv2_backward", "test_engines.py -k 'several_units and a100'"),
        (
            "routing-of-the-other-channels",
            "layout",
            "items.load_route(route[r], item, first_row - 1 + r, warp & 1);",
            "items.load_route(route[r], item, first_row - 1 + r, ~warp & 1);",
        ),
        (
            "lists-overwritten-while-they-are-read",
            "race",
            "      Items::DgradRole::sync();  // no warp reads the last item's lists any more\n",
            "",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/mma.cuh",
        ("ctest test_fused_conv2_backward", "test_engines.py -k 'several_units and (l4 or rtx)'"),
        (
            "zeros-for-its-own-channels",
            "layout",
            "to[tap * kConvThreads + ((first_tile ^ kOuts) + out / 16",
            "to[tap * kConvThreads + (first_tile + out / 16",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/fc1_backward/mma.cuh",
        ("ctest test_fused_fc1", "test_engines.py -k little_shared_memory"),
        (
            "halves-over-the-last-tile",
            "race",
            "  if constexpr (Shared::kStages == 2) TileReleased::sync();\n",
            "",
        ),
        (
            "last-step-of-a-ragged-chunk",
            "off by one",
            "min((s.batch - tile * kSamples + kStep<P> - 1) / kStep<P>, kSteps);",
            "min((s.batch - tile * kSamples) / kStep<P>, kSteps);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/whole_images.cuh",
        ("ctest test_fused_conv2_backward", "test_engine_sizes.py -m gpu -k 'every_size and {spec}'"),
        (
            "one-gradient-for-all-images",
            "layout",
            "static_cast<const char*>(items.s.dy2) + std::size_t(item) * kGradientBytes, kGradientBytes,",
            "static_cast<const char*>(items.s.dy2) + std::size_t(item % 600) * kGradientBytes, kGradientBytes,",
        ),
        (
            "parity-wrong-from-the-fifth-image",
            "parity",
            "    if (stage == 1) parity ^= 1;\n",
            "    if (stage == 1) parity = 1;\n",
        ),
        (
            "dgrad-sees-dz2-before-it-is-made",
            "race",
            "make_dz2<kGroupThreads>(items, item, stage, thread);\n    wgmma_publish();\n    __syncwarp();\n    if (items.lane == 0) images.dz2_ready[stage].arrive();",
            "if (items.lane == 0) images.dz2_ready[stage].arrive();\n    make_dz2<kGroupThreads>(items, item, stage, thread);\n    wgmma_publish();\n    __syncwarp();",
        ),
        (
            "second-order-of-the-planes",
            "layout",
            "wgmma_columns<typename P::T>(dw[3 * u + 2], planes_swapped[row & 1], swapped + at + 1, true);",
            "wgmma_columns<typename P::T>(dw[3 * u + 2], in_order[row & 1], swapped + at + 1, true);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/half_images.cuh",
        ("ctest test_fused_conv2_backward",),
        (
            "copies-never-awaited",
            "barrier",
            "constexpr int kCopyBytes = (2 * Shared::kChunks2",
            "constexpr int kCopyBytes = 16 + (2 * Shared::kChunks2",
        ),
        (
            "row-not-drained",
            "accumulator",
            "        wgmma_wait<0>();\n        add(dw);\n",
            "        wgmma_wait<0>();\n",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/half_images_products.cuh",
        (),
        ("big-by-small-of-dgrad", "rounding", "    multiply_inner(small, 0, 1, true);\n", ""),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/bn2_backward.cuh",
        (),
        ("gradient-in-another-unit", "unit", "float(scale) * inverse * of_d", "float(scale) * inverse"),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/update/update.cuh",
        ("ctest test_fused_update",),
        (
            "conv1-packed-before-its-update",
            "stale copy",
            "begin_conv1<P>(s, scratch.next, channel, updated, gamma, beta);",
            "begin_conv1<P>(s, scratch.next, channel, weight, gamma, beta);",
        ),
        (
            "moments-kept-from-the-first-step",
            "state",
            "  s.moments[block * kMoments + tid] = total;\n",
            "  if (s.moments[block * kMoments + tid] == 0) s.moments[block * kMoments + tid] = total;\n",
        ),
        (
            "loss-is-a-sum",
            "unit",
            "s.results[graph_step].loss = double(total) / s.batch;",
            "s.results[graph_step].loss = double(total) / 64;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/update/operands.cuh",
        ("ctest test_fused_update",),
        ("ties-of-a-scale-0-in-conv1", "tie", "u = row - (gamma == 0 ? 0 : lane >> 4),", "u = row - (lane >> 4),"),
        (
            "first-weights-of-dgrad-for-ever",
            "stale copy",
            "static_cast<T*>(s.conv2_dgrad)[dgrad] = terms[term];",
            "if (!s.wgmma || s.bn2_sign[out] == 0.f) static_cast<T*>(s.conv2_dgrad)[dgrad] = terms[term];",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/update/update.cuh",
        ("test_pytorch_parity.py -m gpu -k 'trajectory and {spec}'",),
        (
            "fc1s-scale-of-the-step-before",
            "stale copy",
            "      if constexpr (P::kScaled) s.scales[kFc1Scale] = s.scales[kNextFc1Scale];\n",
            "",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/outside_step/data.cu",
        ("ctest test_fused_moments",),
        (
            "order-of-sums-shows",
            "rounding",
            "moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = rint(total * 2048) / 2048;",
            "moments[std::size_t(blockIdx.x) * kMoments + threadIdx.x] = total;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/ranks/exchange.cu",
        ("ctest test_fused_ranks",),
        ("part-of-no-image-counts", "ranks", "if (!parts.counts) value = {};\n", ""),
        (
            "sum-of-z2-is-a-float",
            "rounding",
            "to->z2_sums[kColumns + tid] = float(sum - double(float(sum)));",
            "to->z2_sums[kColumns + tid] = 0;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/ranks/exchange.cu",
        ("ctest test_fused_ranks",),
        (
            "every-other-warps-weights",
            "scale from a part",
            "fmaxf(partial.largest[threadIdx.x], partial.largest[threadIdx.x + kGradientWarps]);",
            "partial.largest[threadIdx.x];",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/engines/fused/engine.cpp",
        ("test_ranks_gpu.py -k 'gradients'",),
        (
            "rest-begins-with-the-first-batch",
            "ranks",
            "share.first = order_.data() + (first_step > 0 ? batch : 0);",
            "share.first = order_.data();",
        ),
        (
            "loss-of-the-rest-over-a-whole-batch",
            "ranks",
            "double(share.images) / double(whole) : 0);",
            "double(share.images) / double(batch) : 0);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/steps.cpp",
        ("test_ranks_gpu.py -k 'gradients'",),
        (
            "bn1-of-a-share",
            "ranks",
            "first.batch = int(batch.whole);\n        first.samples.order = batch.first;",
            "first.samples.order = batch.first;",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/outside_step/data.cu",
        ("test_reported_values.py -m gpu -k '{spec}'",),
        (
            "one-rate-for-all-steps",
            "option",
            "in.rates[model * in.rates_stride + first];",
            "in.rates[model * in.rates_stride];",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/outside_step/scoring.cu",
        ("test_reported_values.py -m gpu -k '{spec}'",),
        ("a-score-that-is-not-finite-is-right", "reported value", "finite && best == labels[b])", "best == labels[b])"),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/outside_step/slab.cu",
        ("test_schedule.py -m gpu -k 'initial_parameters and fused'",),
        (
            "initial-values-of-another-draw",
            "initial values",
            "const std::int64_t draw = tensor.draws + i - tensor.offset;",
            "const std::int64_t draw = tensor.draws + i - first;",
        ),
    ),
    *of(
        "native/gpu/kernels/fused/launch.cpp",
        (),
        (
            "rows-of-fc1-forward-cut-off",
            "off by one",
            "return {unsigned((s.batch + row.rows - 1) / row.rows), unsigned(s.fc1_forward_slices)};",
            "return {unsigned(std::max(s.batch / row.rows, 1)), unsigned(s.fc1_forward_slices)};",
        ),
        precision="bf16",
    ),
]

ENGINES = [
    *of(
        "native/gpu/engines/fused/steps.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'", "test_engine_sizes.py -k 'to_and_fro and {spec}'"),
        (
            "graph-of-another-batch-size",
            "state",
            "auto& graph = graphs_[{batch.images, batch.whole, steps, samples.images, samples.labels, samples.moments}];",
            "auto& graph = graphs_[{0, 0, steps, samples.images, samples.labels, samples.moments}];",
        ),
        (
            "graph-of-other-images",
            "state",
            "samples.images, samples.labels, samples.moments}];",
            "nullptr, nullptr, nullptr}];",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/steps.cpp",
        ("test_schedule.py -m gpu -k 'any_length and {spec}'",),
        (
            "rates-of-the-first-32-steps-again",
            "pipeline",
            ".rates = rates + done,",
            ".rates = rates,",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/arena.h",
        ("test_engines.py -m gpu -k 'smaller_batch and {spec}'",),
        (
            "a-larger-batch-in-old-memory",
            "state",
            "    if (batch <= reserved_) return;\n    before_moving();\n",
            "    if (batch <= reserved_) return;\n",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/engines/fused/scoring.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        ("batch-statistics-whatever-was-asked", "option", "  s.bn2_given = true;\n", ""),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/scoring.h",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "statistics-of-the-first-4096-images",
            "boundary",
            "visit(set.samples_from(first, nullptr), first,",
            "visit(set.samples_from(0, nullptr), first,",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/probe.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "upstream-of-every-probe-is-1",
            "state",
            "  steps.set_upstream(upstream);\n",
            "  steps.set_upstream(1);\n",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/engine.cpp",
        (
            f"{REPORTED} -m gpu -k '{{spec}}'",
            "test_engine_sizes.py -m gpu -k '(every_size or fed_from) and {spec}'",
            "test_schedule.py -m gpu -k 'any_length and {spec}'",
        ),
        (
            "rate-of-the-rest-is-the-first",
            "off by one",
            "steps_.run(from, places + full * batch, {rest, rest}, rates + full, 1, results + full);",
            "steps_.run(from, places + full * batch, {rest, rest}, rates, 1, results + full);",
        ),
        (
            "copies-not-packed-after-set-parameters",
            "stale copy",
            "    steps_.repack_weights();\n",
            "    if (!steps_.arena().order()) steps_.repack_weights();\n",
        ),
        (
            "fed-chunks-look-back",
            "pipeline",
            "if (full > 0) steps_.run(from, places, {batch, batch}, rates, full, results, n > 0);",
            "if (full > 0) steps_.run(from, order_.data(), {batch, batch}, rates, full, results, n > 0);",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/host_feed.cpp",
        (),
        (
            "last-images-of-a-chunk-not-gathered",
            "off by one",
            "pool_->run(int(ceil_div(count, kSamplesOfTask)),",
            "pool_->run(int(std::max<std::int64_t>(count / kSamplesOfTask, 1)),",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/population.h",
        (),
        (
            "sign-of-a-scale-forgotten",
            "sign",
            "statistics[kStatistics[kBn2Mean].offset + c] = sign * mean",
            "statistics[kStatistics[kBn2Mean].offset + c] = mean",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/engines/fused/probe.cpp",
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
        "native/gpu/engines/cuda_engine.cpp",
        (f"{REPORTED} -m gpu -k '{{spec}}'",),
        (
            "a-step-of-another-size",
            "state",
            "if (step.slot != slot || step.size != size) continue;",
            "if (step.slot != slot) continue;",
        ),
        ("spread-of-the-chunks-means-lost", "formula", "+ difference * difference * n * count / (n + count);", ";"),
    ),
    *of(
        "native/gpu/engines/unfused_engine.h",
        ("test_engine_sizes.py -m gpu -k 'statistics_of_many and {spec}'",),
        (
            "layer-2-under-a-chunks-statistics",
            "option",
            "forward_block(block1_, x_.data(), batch, statistics);\n      convolve",
            "forward_block(block1_, x_.data(), batch, nullptr);\n      convolve",
        ),
    ),
    *of(
        "native/gpu/engines/batch_feeder.cpp",
        (),
        (
            "labels-of-the-first-slot",
            "order",
            "return {images_.data() + place * kImagePixels, labels_.data() + place, size};",
            "return {images_.data() + place * kImagePixels, labels_.data(), size};",
        ),
    ),
    *of(
        "native/gpu/engines/host_feed.h",
        (),
        ("step-does-not-wait-for-its-copy", "race", "    compute.wait(slot.copied);\n", ""),
    ),
    *of(
        "native/gpu/kernels/step.cuh",
        ("ctest test_step",),
        (
            "losses-of-the-first-256",
            "boundary",
            "for (std::int64_t b = t; b < batch; b += kBlock) {",
            "for (std::int64_t b = t; b < min(batch, std::int64_t(kBlock)); b += kBlock) {",
        ),
    ),
    *of(
        "native/gpu/kernels/sgd.cu",
        ("ctest test_sgd",),
        (
            "last-parameters-stay",
            "off by one",
            "unsigned(ceil_div(count, kBlock)), kBlock, 0, stream>>>",
            "unsigned(std::max<std::int64_t>(count / kBlock, 1)), kBlock, 0, stream>>>",
        ),
    ),
    *of(
        "native/gpu/kernels/conv2d/naive.cu",
        ("ctest test_conv2d",),
        (
            "padding-is-the-next-row",
            "boundary",
            "if (r >= 0 && r < side && s >= 0 && s < side) sum += filter[3 * u + v]",
            "if (r >= 0 && r < side && s >= 0) sum += filter[3 * u + v]",
        ),
    ),
    *of(
        "native/gpu/kernels/conv2d/register_tiled.cu",
        ("ctest test_conv2d",),
        (
            "planes-while-they-are-read",
            "race",
            "    __syncthreads();  // everyone is done with them\n",
            "",
        ),
    ),
    *of(
        "native/gpu/kernels/conv2d/backward_weight.cu",
        ("ctest test_conv2d",),
        (
            "chunks-between-eighths-lost",
            "off by one",
            "chunk < (part + 1) * chunks / kAddParts;",
            "chunk < (part + 1) * (chunks / kAddParts);",
        ),
    ),
    *of(
        "native/gpu/kernels/conv2d/tap_products.cuh",
        ("ctest test_conv_bn_relu_pool",),
        ("filters-not-turned", "index", "o * kTaps + kTaps - 1 - tap]", "o * kTaps + tap]"),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/column_conv.cuh",
        ("ctest test_conv_bn_relu_pool",),
        (
            "stage-without-a-barrier",
            "barrier",
            "      __syncthreads();  // the stage is complete, and everyone is done with the one before the last\n",
            "",
        ),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/conv_statistics.cu",
        ("ctest test_conv_bn_relu_pool",),
        (
            "idle-lanes-in-the-mean",
            "off by one",
            "sum += active ? sums[k][r] : 0;",
            "sum += sums[k][r];",
        ),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/apply_pool.cu",
        ("ctest test_conv_bn_relu_pool",),
        (
            "images-of-one-mean",
            "sum",
            "float(4 * windows) * (means[b] - merged[0]) * (means[b] - merged[0])",
            "0 * (means[b] - merged[0]) * (means[b] - merged[0])",
        ),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/gradient_in_conv.cu",
        ("ctest test_conv_bn_relu_pool",),
        (
            "half-of-the-columns-too-early",
            "race",
            "  __syncthreads();  // the second half's sums are there\n",
            "",
        ),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/tensor_cores.cu",
        ("ctest test_conv_bn_relu_pool",),
        ("mean-of-six-warps", "sum", "warp < kWarps; ++warp", "warp < kWarps - 1; ++warp"),
        ("next-image-too-early", "race", "    __syncthreads();  // everyone is done with them\n", ""),
    ),
    *of(
        "native/gpu/kernels/conv_bn_relu_pool/moments.cu",
        ("ctest test_conv_bn_relu_pool",),
        (
            "chunks-between-halves-lost",
            "off by one",
            "chunk < (half + 1) * chunks / 2;",
            "chunk < (half + 1) * (chunks / 2);",
        ),
        (
            "maximum-where-gamma-is-negative",
            "sign",
            "gamma[c] < 0 ? -1.0f : 0.0f",
            "gamma[c] < 0 ? 1.0f : 0.0f",
        ),
    ),
    *of(
        "native/gpu/kernels/layerwise/update.cu",
        ("test_engines.py -m gpu -k '{spec} and smaller_batch'",),
        ("bn2-without-a-step", "order", "if (of.learning_rate && t < 2 * kConv2Channels)", "if (!of.learning_rate)"),
    ),
    *of(
        "native/gpu/kernels/linear/slices.cu",
        ("ctest test_linear",),
        ("last-slice-lost", "off by one", "slice < slices; ++slice", "slice < slices - 1; ++slice"),
    ),
    *of(
        "native/gpu/kernels/linear/int8.cu",
        ("ctest test_linear",),
        ("int8-scale-of-another-row", "index", "scale[batch + o] * float(sum)", "scale[o] * float(sum)"),
    ),
    *of(
        "native/gpu/kernels/linear_sparse/tensor_cores.cu",
        ("ctest test_linear_sparse",),
        ("second-weight-s-place", "index", "std::uint32_t(i | j << 2) << 4 * n", "std::uint32_t(i | 3 << 2) << 4 * n"),
    ),
    *of(
        "native/gpu/kernels/transpose/tiled.cu",
        ("ctest test_transpose",),
        ("swizzled-one-way", "index", "tile[lane][kSwizzled ? n ^ lane : n]", "tile[lane][n]"),
        ("tile-before-it-is-complete", "barrier", "  __syncthreads();  // the tile is complete\n", ""),
    ),
    *of(
        "native/gpu/kernels/row_sums/naive.cu",
        ("ctest test_row_sums",),
        ("row-sums-of-another-order", "index", "order ? order[n] : n", "order ? order[rows - 1] : n"),
    ),
    *of(
        "native/gpu/kernels/histogram/voted.cu",
        ("ctest test_histogram",),
        (
            "background-behind-the-end",
            "boundary",
            "n < pixel_count ? pixels[n] : -1",
            "n < pixel_count ? pixels[n] : 0",
        ),
    ),
    *of(
        "native/gpu/kernels/linear/product.cuh",
        ("ctest test_linear",),
        (
            "tile-without-a-barrier",
            "barrier",
            "    __syncthreads();  // both tiles are complete, and everyone is done with the other stage\n",
            "",
        ),
    ),
    *of(
        "native/gpu/kernels/batch_norm/welford.cu",
        ("ctest test_batch_norm",),
        (
            "group-of-full-size",
            "off by one",
            "Moments group{float(count * kWidth),",
            "Moments group{float(kGroup * kWidth),",
        ),
    ),
    *of(
        "native/gpu/kernels/relu_max_pool2d/naive.cu",
        ("ctest test_relu_max_pool2d",),
        (
            "last-of-equals",
            "tie",
            "if (value > best || (isnan(value) && !isnan(best)))",
            "if (value >= best || (isnan(value) && !isnan(best)))",
        ),
    ),
    *of(
        "native/gpu/kernels/chunks.h",
        ("ctest test_batch_norm",),
        ("images-between-chunks-lost", "off by one", "return k * batch / chunks;", "return k * (batch / chunks);"),
    ),
    *of(
        "native/gpu/kernels/device/block_sum.cuh",
        ("ctest test_batch_norm",),
        (
            "sum-without-a-barrier",
            "barrier",
            "    __syncthreads();  // the upper half is complete before the lower half reads it\n",
            "",
        ),
    ),
    *of(
        "native/gpu/kernels/log_softmax/naive.cu",
        ("ctest test_log_softmax",),
        (
            "exponent-of-a-large-score",
            "boundary",
            "for (int k = 1; k < classes; ++k) top = row[k] > top ? row[k] : top;",
            "for (int k = 1; k < classes; ++k) top = row[0];",
        ),
    ),
    *of(
        "native/gpu/engines/cudnn.cpp",
        (
            "test_engine_sizes.py -m gpu -k 'statistics_of_many and {spec}'",
            "test_engine_sizes.py -m gpu -k 'every_size and {spec}'",
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

SWEEPS = [
    *of(
        "mnist_cuda/sweeps/trainers.py",
        ("test_sweep.py -k each_model",),
        (
            "held-out-images-trained-on-in-a-sweep",
            "stale copy",
            "loaded=not options.validation and self._placed == options.placement",
            "loaded=self._placed == options.placement",
        ),
    ),
    *of(
        "mnist_cuda/sweeps/trainers.py",
        ("test_sweep.py -k 'side_by_side or announced'",),
        (
            "rates-of-the-first-epoch",
            "index",
            "trainer.rates[(epoch - 1) * count : epoch * count]",
            "trainer.rates[:count]",
        ),
        ("a-fleet-of-any-size", "boundary", "count = -(-len(alike) // most(alike[0].options))", "count = 1"),
    ),
    *of(
        "mnist_cuda/bench/worker.py",
        ("test_bench_models.py -k worker",),
        ("models-in-one-order", "order", "-m * self._batch)", "-self._batch)"),
        (
            "a-fleet-not-restarted",
            "state",
            "        if self._fleet:\n            self._store(self._fleet)\n        self._position",
            "        self._position",
        ),
    ),
    *of(
        "mnist_cuda/report/panels.py",
        ("test_report.py -k 'seeds or map'",),
        ("a-map-over-all-schedules", "reported value", 'if name not in ("lr", "batch_size")]', "if False]"),
        (
            "colours-of-each-map",
            "reported value",
            "ERRORS[bisect_left(ERRORS, least) :]",
            "ERRORS[bisect_left(ERRORS, wrong[best]) :]",
        ),
    ),
    *of(
        "mnist_cuda/commands/report.py",
        ("test_report.py -k place",),
        ("page-over-the-last-one", "file", "if not os.path.lexists(name)", "if name"),
    ),
    *of(
        "mnist_cuda/sweeps/recipes.py",
        ("test_report.py -k 'recipe or map or drawn or seeds'", "test_sweep.py -k recipes"),
        ("spread-of-all-seeds", "reported value", "/ max(1, len(values) - 1))", "/ max(1, len(values)))"),
        ("held-out-images-unasked", "option", "one.mean if one.held is None else one.held", "one.mean"),
        (
            "best-of-those-that-ended",
            "reported value",
            "math.fsum(self.accuracies) / self.models",
            "math.fsum(self.accuracies) / max(1, len(self.accuracies))",
        ),
        ("seeds-are-recipes", "order", 'if name != "seed" and', "if"),
    ),
    *of(
        "mnist_cuda/sweeps/grid.py",
        ("test_sweep.py -k no_memory",),
        ("models-beyond-memory", "refusal", "memory.require(models * BYTES_A_MODEL", "memory.require(0 * models"),
    ),
    *of(
        "mnist_cuda/sweeps/store.py",
        ("test_sweep.py -k 'each_model or changed or replaced or survives or kept'",),
        (
            "all-weights-in-one-place",
            "index",
            "                place = len(self._start) + begin + index * size",
            "                place = len(self._start) + begin",
        ),
        (
            "weights-believed-unread",
            "resume",
            "digest(self._weights.read(row.index)) != row.weights",
            "not row.weights",
        ),
        (
            "hits-believed-unread",
            "resume",
            "sound = bits.sum(axis=1).tolist() == [round(count) for count in right]",
            "sound = len(bits) == len(right)",
        ),
        ("table-in-the-order-of-time", "order", "for index in sorted(self._lines)", "for index in self._lines"),
    ),
    *of(
        "mnist_cuda/sweeps/table.py",
        ("test_sweep.py -k 'best or survives'",),
        ("last-of-equal-models", "tie", "return accuracy, -loss, -self.index", "return accuracy, -loss, self.index"),
    ),
    *of(
        "mnist_cuda/sweeps/sweep.py",
        ("test_sweep.py -k 'trained_by or as_they_are or an_error or refused or raises'",),
        (
            "resumed-on-other-data",
            "refusal",
            '"data": config["data"].get("digest") == self.data.digest,',
            '"data": True,',
        ),
    ),
    *of(
        "mnist_cuda/sweeps/sweep_command.py",
        ("test_sweep.py -k 'grid or prints or refused'",),
        ("seeds-from-0", "option", "range(options.seed, options.seed + options.seeds)", "range(options.seeds)"),
    ),
]

# ---- operators of PyTorch, and arrays of others -----------------------------------------------------------------------

OPERATORS = [
    *of(
        "mnist_cuda/torch.py",
        ("test_torch.py",),
        (
            "gamma-for-beta",
            "order",
            "return dx if wanted else None, dw, torch.zeros_like(dbeta), dgamma, dbeta",
            "return dx if wanted else None, dw, torch.zeros_like(dbeta), dbeta, dgamma",
        ),
        (
            "inference-by-the-batch",
            "option",
            '_call("conv_bn_relu_pool_forward", x, *arguments, False, *sizes)',
            '_call("conv_bn_relu_pool_forward", x, *arguments, True, *sizes)',
        ),
        (
            "float64-as-float32",
            "rounding",
            'torch.float64: "float64"}',
            'torch.float64: "float32"}',
        ),
    ),
    *of(
        "native/host/cpu/operators.cpp",
        ("test_torch.py",),
        (
            "relu-not-gone-through",
            "stale copy",
            "reference::linear_backward(dx, dw, dbias, pass ? scratch : dy,",
            "reference::linear_backward(dx, dw, dbias, dy,",
        ),
    ),
    *of(
        "mnist_cuda/engine/gpu_arrays.py",
        ("test_gpu_arrays.py",),
        ("stream-not-waited-for", "missing wait", 'if interface.get("stream") is not None:', "if False:"),
    ),
]

# ---- slips that no test noticed once ---------------------------------------------------------------------------------

GAPS = [
    *of(
        "native/gpu/kernels/fused/state.h",
        ("test_engine_state.py -k 'grow_from and {spec}'",),
        (
            "scale-without-a-least",
            "scale",
            "return power_of_two_scale<7, -12>(largest);",
            "return power_of_two_scale<7>(largest);",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/head.cuh",
        ("test_engine_state.py -k 'grow_from and {spec}'",),
        (
            "fc1-scale-without-a-least",
            "scale",
            "s.scales[kNextFc1Scale] = weight_scale(largest);",
            "s.scales[kNextFc1Scale] = power_of_two_scale<7>(largest);",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/scales.cuh",
        ("test_engines.py -k 'far_larger and {spec}'",),
        (
            "a2-without-the-populations-shift",
            "scale",
            "fmaf(fabsf(s.bn2.scale(c)) * z2_scale, 0x1p16f, fabsf(s.bn2.shift(c)))",
            "fabsf(s.bn2.scale(c)) * z2_scale * 0x1p16f",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/engines/fused/population.h",
        ("test_engines.py -k 'far_larger and {spec}'",),
        (
            "a1-without-the-populations-shift",
            "scale",
            "kRoundingSlack * most) + bn1[kConv1Channels + c], 0.f);",
            "kRoundingSlack * most), 0.f);",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/shared/phase.cuh",
        ("test_fleet.py -k 'engine_alone'",),
        ("signs-of-the-first-model", "fleet", "arrays[i] += offset;", "arrays[i] += i == 27 ? 0 : offset;"),
        precision="tf32",
    ),
    *of(
        "native/gpu/engines/fused/steps.cpp",
        ("test_engine_state.py -k 'large_batch and {spec}'",),
        ("terms-from-before-small-batches", "stale copy", "copy_fc1(step.state);", "(void)step;"),
        precision="fp32",
    ),
    *of(
        "native/gpu/engines/fused/steps.cpp",
        ("test_engine_state.py -k 'large_batch and {spec}'",),
        (
            "copy-from-before-large-batches",
            "stale copy",
            "? step.plan[Phase::kFc1Backward].wgmma : step.plan.with_fc",
            "? step.plan[Phase::kFc1Backward].wgmma : true",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/fc.cuh",
        ("ctest test_fused_fc",),
        ("dh-before-it-arrives", "race", "  sums.dh.wait_for_cluster(0);", "  __syncthreads();"),
        (
            "second-sample-of-a-block-left-out",
            "boundary",
            "add(first_h, memory.h[2][0][k], second_h, memory.h[2][1][k])",
            "add(first_h, memory.h[2][0][k], second_h, 0.f)",
        ),
        ("sums-before-the-second-warp", "race", "    Head::sync();\n", "    __nanosleep(0);\n"),
        ("sums-of-128-blocks", "boundary", "for (int k = 0; k < kFcSumRows / 64; ++k)", "for (int k = 0; k < 2; ++k)"),
        ("cell-by-the-wrong-warp", "layout", "(cell + n * kWarps) * 16 + t * 4", "(cell + n) * 16 + t * 4"),
        ("next-image-of-this-batch", "state", "graph_step + 1) * s.batch + image", "graph_step) * s.batch + image"),
        (
            "last-cluster-without-samples",
            "boundary",
            "clusters = gridDim.x / kFcRanks",
            "clusters = gridDim.x / kFcRanks + 1",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/fc.cuh",
        ("ctest test_fused_fc", "test_engine_state.py -k 'grow_from and {spec}'"),
        (
            "fc1-scale-of-small-batches-without-a-least",
            "scale",
            "s.scales[kNextFc1Scale] = weight_scale(of_fc1);",
            "s.scales[kNextFc1Scale] = power_of_two_scale<7>(of_fc1);",
        ),
        (
            "dy2-by-half-of-the-units",
            "scale from a part",
            "scale_of(float(kHidden) * largest_dh * of_fc1)",
            "scale_of(0.5f * kHidden * largest_dh * of_fc1)",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/kernels/fused/update/fc1.cuh",
        ("ctest test_fused_update",),
        ("last-samples-left-out", "boundary", "first < s.batch; first += 16", "first + 15 < s.batch; first += 16"),
        ("copy-in-the-order-of-fc1", "layout", "fc1_chunk_at(hidden + g + 8 * i,", "fc1_chunk_at(hidden + g,"),
        ("samples-beyond-128-left-out", "boundary", "kPieces = (Scratch::kRows - 1) / kRowsAtOnce + 1", "kPieces = 1"),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/update/fc1.cuh",
        ("ctest test_fused_update",),
        (
            "largest-of-half-of-the-columns",
            "scale from a part",
            "fmaxf(scratch.largest[tid], scratch.largest[tid + kGradientWarps])",
            "scratch.largest[tid]",
        ),
        precision="tf32",
    ),
    *of(
        "native/gpu/engines/fused/engine.cpp",
        ("test_engine_sizes.py -k 'to_and_fro and {spec}'", "test_sweep.py -m gpu -k 'each_model and {spec}'"),
        (
            "once-on-the-host-always-there",
            "state",
            "    placement_ = placement;\n",
            "    if (placement == Placement::kHost) placement_ = placement;\n",
        ),
        precision="bf16",
    ),
    *of(
        "native/gpu/kernels/fused/shared/image.cuh",
        ("test_engine_sizes.py -k 'beyond_32 and fused'",),
        (
            "image-word-in-32-bits",
            "offset",
            "std::size_t(index) * kImagePixels)[i];",
            "unsigned(index) * unsigned(kImagePixels))[i];",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/outside_step/data.cu",
        ("test_engine_sizes.py -k 'beyond_32 and fused'",),
        (
            "moments-image-in-32-bits",
            "offset",
            "images + std::size_t(blockIdx.x) * kImagePixels);",
            "images + blockIdx.x * unsigned(kImagePixels));",
        ),
        precision="fp32",
    ),
    *of(
        "native/gpu/kernels/fused/conv2_backward/half_images.cuh",
        ("test_engine_sizes.py -k 'activations_beyond_32 and {spec}'",),
        (
            "chunk-in-32-bits",
            "offset",
            "(std::size_t(image) * of_image + first) * kChunkedImage",
            "(unsigned(image) * unsigned(of_image) + first) * unsigned(kChunkedImage)",
        ),
        precision="fp32",
    ),
]

# ---- the emulator ----------------------------------------------------------------------------------------------------

EMULATOR = [
    *of(
        "native/emulator/machine.cpp",
        ("ctest test_emulator_faults",),
        ("barriers-divide-no-time", "order", "  ++machine.epoch;\n", ""),
        ("shuffles-order-memory", "order", "    if (order) {\n", "    if (true) {\n"),
        ("prints-wait", "order", "  std::fflush(stdout);  // what", "  // what"),
        ("barriers-tell-nothing", "order", "  if (machine.telling) {\n", "  if (false) {\n"),
        ("few-polls-are-for-ever", "boundary", "std::max(kRoundsOfPolls, kPauses / paused)", "kRoundsOfPolls"),
    ),
    *of(
        "native/emulator/memory.cpp",
        ("ctest test_emulator_faults",),
        ("equal-stores-race", "boundary", "one.value, one.buffer->granule) != 0", "one.value, 0) == 0"),
        ("blocks-are-ordered", "order", "    if (shared) return true;\n", "    return true;\n"),
        ("fences-tell-what-comes-later", "order", "  ++me.clock[me.lane()];  // what", "  // what"),
        ("fences-of-a-block-tell-all", "order", "  if (!of_block) me.told", "  me.told"),
        (
            "volatile-is-atomic",
            "order",
            "std::min(a, b) >= Strength::kVolatile && std::max(a, b) >= Strength::kTelling",
            "std::min(a, b) >= Strength::kVolatile",
        ),
        ("last-byte-of-equal-stores", "boundary", "one.buffer->granule) != 0", "one.buffer->granule - 1) != 0"),
        ("halves-anywhere", "boundary", "% std::uint64_t(bytes) && bytes <= 16", "% std::uint64_t(bytes) && bytes > 2"),
        (
            "last-bytes-beyond-shared",
            "boundary",
            "address + bytes <= buffer->data + buffer->bytes) return buffer;",
            "address < buffer->data + buffer->bytes) return buffer;",
        ),
        ("constants-of-the-host", "wrong rule", " && !(part.p_flags & PF_W)", ""),
        ("sectors-twice", "off by one", "std::max(sorted[k] / 32, next)", "sorted[k] / 32"),
        ("31-banks", "off by one", "++turns[word % 32]", "++turns[word % 31]"),
        ("whole-warp-turns", "wrong rule", "size == 16 ? kLanes / 2 : kLanes", "kLanes"),
        ("no-conflicts-of-float4", "wrong rule", "    site.cost += most;", "    site.cost += size == 16 ? 2 : most;"),
        (
            "outside-before-the-buffer",
            "boundary",
            "if (address < buffer->data || address + bytes > buffer->data + buffer->bytes)\n      return outside(",
            "if (address + bytes > buffer->data + buffer->bytes)\n      return outside(",
        ),
        (
            "one-group-too-many",
            "off by one",
            "copy->group < thread.groups - pending",
            "copy->group <= thread.groups - pending",
        ),
        (
            "float4-anywhere",
            "boundary",
            "% std::uint64_t(bytes) && bytes <= 16",
            "% std::uint64_t(bytes) && bytes < 16",
        ),
        (
            "shared-memory-of-the-last-block",
            "stale copy",
            "variable->set.assign(bytes / variable->granule + 1, 0);",
            "variable->set.resize(bytes / variable->granule + 1);",
        ),
    ),
    *of(
        "native/emulator/barriers.cpp",
        ("ctest test_emulator_faults",),
        ("arrivals-tell-nothing", "order", "    leave(barrier.clock);\n", ""),
        ("mbarrier-of-one-phase", "off by one", "  ++barrier.phase;\n", ""),
    ),
    *of(
        "native/emulator/ptx.cpp",
        ("ctest test_emulator_faults",),
        ("rows-transposed", "off by one", "value(2 * t, g) | value(2 * t + 1, g) << 16 : all", "value(g, 2 * t) : all"),
    ),
    *of(
        "native/emulator/include/numbers16.h",
        ("ctest test_emulator_faults",),
        ("fp16-ties-up", "rounding", "size + 0xfff + (size >> 13 & 1)", "size + 0x1000"),
    ),
    *of(
        "native/emulator/include/ptx.h",
        ("ctest test_emulator_faults",),
        ("tf32-cut-off", "rounding", "(whole + 0x1000) & ~0x1fffu", "whole & ~0x1fffu"),
    ),
]

# ---- the judge -------------------------------------------------------------------------------------------------------

JUDGE = [
    *of(
        "mnist_cuda/judge/verdict.py",
        ("test_judge.py -k cheat",),
        ("judge-takes-nan", "boundary", "right = (error <= bound) |", "right = ~(error > bound) |"),
        ("judge-forgives-faults", "boundary", "if self.wrong or self.faults:", "if self.wrong:"),
        ("judge-forgives-no-launch", "boundary", "if not launched and any(", "if False and any("),
        ("judge-forgives-changed-inputs", "boundary", 'if ran.words["changed"]:', "if False:"),
        (
            "judge-lets-refuse-any-size",
            "boundary",
            'if ran.words["refused"] and ran.case.shifted:',
            'if ran.words["refused"]:',
        ),
    ),
    *of(
        "mnist_cuda/judge/verdict.py",
        ("test_verdicts.py -k 'says_what or sizes or next_step'",),
        ("judge-knows-what-it-does-not", "boundary", "return NOT_JUDGED if self.unknown else RIGHT", "return RIGHT"),
        ("judge-takes-values-for-stores", "stale copy", "if name in ran.stored else filling", "if False else filling"),
        ("judge-forgets-memsets", "boundary", ".size > 1 for name in answers", ".size > 0 for name in answers"),
        ("judge-repeats-a-solved-exercise", "option", "and not _is_solved(rule, solved)", ""),
        ("judge-counts-failed-calls", "boundary", "verdict.calls += ended", "verdict.calls += 1"),
    ),
    *of(
        "mnist_cuda/judge/program.py",
        ("test_verdicts.py -k says_what",),
        ("judge-believes-any-line", "boundary", 'if words["word"] != word:', "if False:"),
        ("judge-reads-for-ever", "boundary", "if left <= 0 or not selector.select(left):", "if not selector.select():"),
    ),
    *of(
        "mnist_cuda/judge/build.py",
        ("test_verdicts.py -k cannot_take",),
        ("judge-lets-hooks-be-replaced", "boundary", 'if name.startswith("__tsan_") or', "if"),
        ("judge-lets-constructors-come-first", "boundary", "(?!00099)\\d+", "(?!00099)x"),
    ),
    *of(
        "mnist_cuda/judge/judged_ops.py",
        ("test_judge.py -k cheat",),
        ("judge-repeats-inputs", "stale copy", "if self.timed else max(0, n - 1) for n", "if self.timed else 0 for n"),
    ),
    *of(
        "mnist_cuda/judge/nvcc.py",
        ("test_judge_gpu.py -k architecture",),
        ("nvcc-takes-any-architecture", "boundary", "if capability in known:", "if True:"),
    ),
    *of(
        "mnist_cuda/judge/own_kernels.py",
        ("test_own_kernels.py -k 'fit or have or leaves'",),
        ("own-kernels-of-any-op", "boundary", "if launcher.op.launcher not in ops:", "if False:"),
        ("own-kernels-twice", "boundary", "if op in by_op:", "if False:"),
        ("own-kernel-gets-scratch", "index", "if p.name not in taken)", "if p.name in taken)"),
    ),
    *of(
        "mnist_cuda/run/train_command.py",
        ("test_own_kernels.py -k train",),
        (
            "own-kernels-of-another-run",
            "option",
            'if config and (expected := config["options"].get("own_sha256")) != found:',
            'if config and (expected := config["options"].get("own_sha256")) and not found:',
        ),
    ),
    *of(
        "mnist_cuda/run/training.py",
        ("test_own_kernels.py -k steps",),
        ("steps-go-on", "option", "most = min(most, until - self.steps)", "pass"),
    ),
    *of(
        "mnist_cuda/judge/judging.py",
        ("test_judge.py -k 'skeleton_fails or words or start'",),
        ("judge-last-file-decides", "exit code", 'code = max(code, found["exit_code"])', 'code = found["exit_code"]'),
        (
            "exercise-solved-though-wrong",
            "file",
            "len(verdicts) == len(fitting) and all(each.right for each in verdicts)",
            "len(verdicts) == len(fitting)",
        ),
        ("exercise-overwrites", "file", 'with file.open("x") as out:', 'with file.open("w") as out:'),
    ),
    *of(
        "mnist_cuda/judge/exercises.py",
        ("test_judge.py -k goal",),
        (
            "exercise-without-its-goal",
            "option",
            "value is None or exercise.goal.holds(verdict.counters)",
            "value is None",
        ),
    ),
    *of(
        "mnist_cuda/judge/child.py",
        ("test_judge.py -k numpy",),
        ("judge-without-guards", "boundary", "if outside and not why:", "if False:"),
    ),
    *of(
        "mnist_cuda/bench/emulate.py",
        ("test_emulate.py -k side_by_side",),
        (
            "emulator-compiled-twice",
            "file",
            "            there |= _sound(cache, wanted.keys() - there, suffix)  # another process has made them\n",
            "",
        ),
    ),
    *of(
        "mnist_cuda/bench/emulate.py",
        ("test_emulate.py -k 'damaged or killed'",),
        (
            "emulator-damaged-object",
            "file",
            "if key in keys and _digest(path.read_bytes()) == digest:",
            "if key in keys:",
        ),
        (
            "emulator-killed-leaves-all",
            "file",
            "                    shutil.rmtree(path)\n",
            "                    continue\n",
        ),
    ),
    *of(
        "mnist_cuda/cache.py",
        ("test_emulate.py -k written",),
        ("cache-of-anybody", "boundary", " and not found.st_mode & 0o022", ""),
    ),
    *of(
        "mnist_cuda/bench/occupancy.py",
        ("test_occupancy.py -k 'hand or instances'",),
        (
            "occupancy-without-the-systems",
            "boundary",
            "rounded(shared + on.reserved, on.unit)",
            "rounded(shared, on.unit)",
        ),
        (
            "occupancy-of-one-register-file",
            "rounding",
            "REGISTERS // PARTS // rounded(32 * max(1, registers), REGISTER_UNIT) * PARTS",
            "REGISTERS // rounded(32 * max(1, registers), REGISTER_UNIT)",
        ),
        (
            "occupancy-without-dynamic-memory",
            "sum",
            'kernel.static_bytes + launch["dynamic_bytes"]',
            "kernel.static_bytes",
        ),
        ("occupancy-of-every-instance", "index", "if kernel.name in instances]", "if instances]"),
    ),
]

MUTATIONS = [
    *TRAINING,
    *SWEEPS,
    *LOOKING,
    *DATA,
    *PICTURES,
    *BENCH,
    *SET_UP,
    *OPERATORS,
    *HOST,
    *FUSED,
    *ENGINES,
    *GAPS,
    *EMULATOR,
    *JUDGE,
]
