"""What a training, and commands alike, can be asked for. Imports nothing heavy: flags take their defaults from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda import rules

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.engine import Engine


@dataclass(frozen=True)
class TrainOptions:
    """The options of a training.

    epochs: passes over the training images. batch_size: images per step; a last batch that is not full is dropped.
    lr: learning rate of plain SGD. schedule: of the rate, with `lr` its peak: `constant`, `linear` (falls to 0) or
    `triangle[:FRACTION]`, which first rises for this fraction of the steps, 0.2 if not given. seed: of the initial
    weights and the order of the images. eval_bn: batch norm statistics for test images: of all training images
    (`population`) or of each batch of 250 (`batch`). placement: memory of the training images, `device` or `host`; CPU
    engines ignore it. validation: number of training images to hold out, chosen by the seed, and to test after each
    epoch.

    Raises UsageError for any other value.
    """

    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.05
    schedule: str = "constant"
    seed: int = 0
    eval_bn: str = "population"
    placement: str = "device"
    validation: int = 0

    def __post_init__(self) -> None:
        for name, rule in TRAINING_RULES.items():
            object.__setattr__(self, name, rule(name, getattr(self, name)))


# Of the fields of TrainOptions; the flags have the same.
TRAINING_RULES: dict[str, rules.Rule] = {
    "epochs": rules.COUNT,
    "batch_size": rules.COUNT,
    "lr": rules.RATE,
    "schedule": rules.SCHEDULE,
    "seed": rules.NATURAL,
    "eval_bn": rules.EVAL_BN,
    "placement": rules.PLACEMENT,
    "validation": rules.NATURAL,
}


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data set, and where from: as `dataset.load` takes them."""

    dataset: str = "auto"
    data_dir: Path | None = None
    offline: bool = False
    mirror: str | None = None

    def read(self) -> Dataset:
        """The data set. Raises what `dataset.load` does."""
        from mnist_cuda.data import dataset

        return dataset.load(self.dataset, data_dir=self.data_dir, offline=self.offline, mirror=self.mirror)

    def load(self) -> Dataset:
        """The data set, after its warning on stderr if it has one. Raises what `dataset.load` does."""
        from mnist_cuda.terminal import console

        data = self.read()
        if data.warning:
            console.print_warning(data.warning)
        return data


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine computes, and how: as `Engine` takes them."""

    engine: str = "auto"
    precision: str | None = None
    threads: int = 0
    device: int = 0

    def make(self, **more: Any) -> Engine:
        """The engine; more: other arguments of `Engine`. Raises what that does."""
        from mnist_cuda.engine import Engine

        return Engine(self.engine, self.precision, threads=self.threads, device=self.device, **more)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """json: where the object for programs goes, as JsonOutput takes it."""

    json: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RecordOptions(OutputOptions):
    """json: where the record of a benchmark goes, as Record takes it. busy: write it on a busy machine, too."""

    busy: bool = False


@dataclass(frozen=True, kw_only=True)
class PartOptions(EngineOptions):
    """multiprocessors: how many of a GPU's `fused` uses; 0 is all. own: files with kernels of the user's.

    emulate: run the engine's kernels on the CPU.
    """

    multiprocessors: int = 0
    own: Sequence[Path] = ()
    emulate: bool = False


@dataclass(frozen=True, kw_only=True)
class FolderOptions(OutputOptions):
    """out: a run's new folder, by default one in `runs/`. save_every: as `Saving.parse` takes it. keep: checkpoints.

    save_best: whether the model that is best on held-out images has a file of its own.
    """

    out: Path | None = None
    save_every: str = "1epochs"
    keep: int = 1
    save_best: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class RanksOptions:
    """gpus, processes: how many ranks to start on this machine. wait: seconds for all ranks of torchrun to start."""

    gpus: int = 1
    processes: int = 1
    wait: int = 120


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Everything that a training in a folder is asked for.

    init: what gives the first weights, and init_sha256 their digest, which those of a run that goes on must have;
    own_sha256 likewise, of the files of kernels of the user's.
    limit: only the first so many training images, 0 for all. patience: after how many epochs without a better accuracy
    on held-out images to end, 0 for never. steps: after how many steps of this process to stop, 0 for never.
    resume, config: the folder of the run that goes on, or the configuration that is repeated. given: names of the
    options that the user gave; argv: all words, for the other ranks.
    """

    training: TrainOptions = field(default_factory=TrainOptions)
    data: DataOptions = field(default_factory=DataOptions)
    engine: PartOptions = field(default_factory=PartOptions)
    output: FolderOptions = field(default_factory=FolderOptions)
    ranks: RanksOptions = field(default_factory=RanksOptions)
    init: Path | None = None
    init_sha256: str | None = None
    limit: int = 0
    patience: int = 0
    steps: int = 0
    own_sha256: str | None = None
    resume: Path | None = None
    config: Path | None = None
    given: Set[str] = frozenset()
    argv: Sequence[str] = ()

    def flat(self) -> dict[str, Any]:
        """Each option by its name alone, as config.json has them."""
        found: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            found |= asdict(value) if is_dataclass(value) and not isinstance(value, type) else {part.name: value}
        return found

    def recorded(self) -> dict[str, Any]:
        """What config.json has of them: paths to be found from any folder, and no password."""
        from mnist_cuda.data.catalogue import without_password

        flat = self.flat()
        found = {name: value for name, value in flat.items() if isinstance(value, int | float | str | None)}
        found |= {name: (path := flat[name]) and str(path.absolute()) for name in ("data_dir", "init")}
        return found | {
            "json": (file := flat["json"]) and str(file),
            "mirror": (url := flat["mirror"]) and without_password(url),
        }


# Options that decide the weights, or what is reported of them; the epochs, too, where the rates depend on their number.
FIXED = (
    "batch_size",
    "lr",
    "schedule",
    "seed",
    "eval_bn",
    "validation",
    "init_sha256",
    "multiprocessors",
    "own_sha256",
    "limit",
)


def fixed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's options that a run that goes on must share."""
    fixed = {name: options.get(name) for name in FIXED}
    return fixed if options.get("schedule") == "constant" else fixed | {"epochs": options.get("epochs")}
