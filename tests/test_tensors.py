"""Every tensor counts: what is checked, compared or kept of several is tried with each of them."""

import itertools
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_dataset

from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import PARAMETERS, STATISTICS, digest, init_parameters
from mnist_cuda.errors import CheckpointError, DivergedError
from mnist_cuda.ranks.session import share_state
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.results import Model
from mnist_cuda.run.resume import load_state, save_state
from mnist_cuda.run.training import State, Trainer
from mnist_cuda.sweeps.store import stacked_weights

EACH = pytest.mark.parametrize("tensor", [*PARAMETERS, *STATISTICS], ids=lambda tensor: tensor.name)
EACH_PARAMETER = pytest.mark.parametrize("tensor", PARAMETERS, ids=lambda tensor: tensor.name)


def values(seed=3, dtype=np.float32):
    """A model's tensors, no two alike."""
    statistics = {t.name: np.linspace(0.5, 2, t.size) + k for k, t in enumerate(STATISTICS)}
    found = init_parameters(seed) | statistics
    for layer in ("bn1", "bn2"):
        found[f"{layer}.bias"] = found[f"{layer}.bias"] + np.arange(found[f"{layer}.bias"].size) / 8
    return {name: value.astype(dtype) for name, value in found.items()}


def model_of(tensors):
    return Model(
        {t.name: tensors[t.name] for t in PARAMETERS},
        {t.name: tensors[t.name] for t in STATISTICS},
        {"dataset": "tiny"},
    )


def with_value(tensor, place, value):
    changed = tensor.copy()
    changed.reshape(-1)[place] = value
    return changed


# What is done to a tensor, and what is said behind its name: of a file, and of tensors given to an engine.
WRONG = {
    "shorter": (lambda v: v.reshape(-1)[:-1], " has shape", " has shape"),
    "another axis": (lambda v: v[None], " has shape", " has shape"),
    "turned": (lambda v: v.T if v.ndim > 1 else v[:0], " has shape", " has shape"),
    "half precision": (lambda v: v.astype(np.float16), " has dtype F16, expected F32 or F64", None),
    "whole numbers": (lambda v: v.astype(np.int32), " has dtype I32, expected F32 or F64", None),
    "complex": (lambda v: v.astype(complex), None, " has dtype complex128, expected real numbers"),
    "first NaN": (lambda v: with_value(v, 0, np.nan), " has 1 value", "[0] is nan"),
    "last infinite": (lambda v: with_value(v, -1, np.inf), " has 1 value", "[{last}] is inf"),
    "last -infinite": (lambda v: with_value(v, -1, -np.inf), " has 1 value", "[{last}] is -inf"),
}


@EACH
def test_a_file_with_a_wrong_tensor_is_refused(tensor, tmp_path):
    path, name = tmp_path / "model.safetensors", tensor.name
    for what, (change, words, _) in WRONG.items():
        if words is None:
            continue
        save_file(values() | {name: np.ascontiguousarray(change(values()[name]))}, path)
        with pytest.raises(CheckpointError) as error:
            load_model(path)
        assert f"tensor {name}{words}" in str(error.value), what
        if "value" in words:
            path.write_bytes(b"what was there")
            with pytest.raises(CheckpointError, match=f"tensor {name} has 1 value"):
                save_model(path, model_of(values() | {name: change(values()[name])}))
            assert path.read_bytes() == b"what was there"
    save_file({key: value for key, value in values().items() if key != name}, path)
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing$"):
        load_model(path)
    save_file(values() | {f"module.{name}": values()[name]}, path)
    with pytest.raises(CheckpointError, match=f"tensor 'module.{name}' is unknown$"):
        load_model(path)
    if name.endswith("running_var"):
        save_file(values() | {name: with_value(values()[name], -1, -1e-30)}, path)
        with pytest.raises(CheckpointError, match=f"{name} holds -1e-30, expected variances >= 0"):
            load_model(path)


@EACH
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_an_engine_refuses_a_wrong_tensor_and_keeps_what_it_has(tensor, engine):
    """float64 and float32 take ways of their own."""
    ready, name = Engine(engine), tensor.name
    give = ready.set_parameters if tensor in PARAMETERS else ready.set_statistics
    good = values(dtype=np.float64)
    ready.set_parameters(good)
    ready.set_statistics(good)
    before = ready.parameters | ready.statistics
    wrong = {what: (change(good[name]), words) for what, (change, _, words) in WRONG.items() if words}
    if name.endswith("running_var"):
        wrong["negative"] = with_value(good[name], -1, -1e-30), "[{last}] is -1e-30, expected a variance"
    for value, words in wrong.values():
        with pytest.raises(ValueError, match=re.escape(f"{name}{words.format(last=tensor.size - 1)}")):
            give(good | {name: value})
    with pytest.raises(ValueError, match=f"tensor {name} is missing, expected shape"):
        give({key: value for key, value in good.items() if key != name})
    after = ready.parameters | ready.statistics
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)
    give(good | {name: good[name] + 1})
    after = ready.parameters | (ready.statistics or {})
    assert {key for key in after if before[key].tobytes() != after[key].tobytes()} == {name}


def test_a_training_of_which_a_tensor_is_not_finite_diverged(monkeypatch):
    """A NaN that no loss shows."""
    engine = Engine("cpu")
    engine.init_parameters(0)
    trainer = Trainer(engine, tiny_dataset(), TrainOptions(epochs=1, batch_size=35))
    trainer.prepare()
    trainer.train_epoch()
    record = trainer.evaluate()
    for tensor, (place, value) in itertools.product((*PARAMETERS, *STATISTICS), ((0, np.nan), (-1, np.inf))):
        kind = "parameters" if tensor in PARAMETERS else "statistics"
        holder = getattr(engine, kind)
        changed = holder | {tensor.name: with_value(holder[tensor.name], place, value)}
        with monkeypatch.context() as patch:
            patch.setattr(Engine, kind, property(lambda _, changed=changed: changed))
            trainer._parameters = None
            with pytest.raises(DivergedError, match=f"training diverged: {tensor.name} is not finite after epoch 1"):
                trainer.end_epoch(record)
        trainer._parameters = None
    assert trainer.end_epoch(record)


@EACH_PARAMETER
def test_the_digest_sees_the_first_and_the_last_bit(tensor):
    before = digest(values())
    for place in (0, -1):
        changed = values()
        changed[tensor.name].reshape(-1).view(np.uint32)[place] ^= 1
        assert digest(changed) != before


def places(content):
    """Of each tensor in a safetensors file its first byte and the one behind its last."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__")
    return {name: tuple(start + at for at in entry["data_offsets"]) for name, entry in header.items()}


def test_a_checkpoint_is_sound_in_every_tensor_or_refused(tmp_path):
    """A bit at either end of each, and any two that change places."""
    state = State(1, 3, model_of(values()).parameters, np.arange(3.0), np.arange(3, dtype=np.int32), 1.5)
    path = save_state(tmp_path, 3, state, {"options": {}, "data_digest": "", "versions": {}}, 1)
    good = path.read_bytes()
    found = places(good)
    assert set(found) == {t.name for t in PARAMETERS} | {"epoch.losses", "epoch.correct"}
    damaged = []
    for begin, end in found.values():
        for at in (begin, end - 1):
            damaged.append(bytearray(good))
            damaged[-1][at] ^= 1
    for one in found:
        for other in found:
            (a, b), (c, d) = found[one], found[other]
            if one < other and b - a == d - c and good[a:b] != good[c:d]:
                damaged.append(bytearray(good))
                damaged[-1][a:b], damaged[-1][c:d] = good[c:d], good[a:b]
    assert len(damaged) > 30
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a sound checkpoint"):
            load_state(path)
    path.write_bytes(good)
    assert digest(load_state(path).state.parameters) == digest(state.parameters)


class Alone:
    """A rank whose word is kept, and then given to another."""

    def from_rank_0(self, content=b""):
        self.said = content or self.said
        return self.said


def test_a_rank_gets_every_tensor_of_the_state():
    state = State(2, 3, model_of(values()).parameters, np.arange(3.0), np.arange(3, dtype=np.int32), 1.5)
    ranks = Alone()
    assert share_state(ranks, state) is state
    found = share_state(ranks, None)
    assert (found.epoch, found.step, found.seconds) == (2, 3, 1.5)
    assert (found.losses.tolist(), found.correct.tolist()) == ([0, 1, 2], [0, 1, 2])
    for name, value in state.parameters.items():
        assert found.parameters[name].tobytes() == value.tobytes(), name


def test_stacked_weights_hold_each_tensor_of_each_model(tmp_path):
    file = stacked_weights(tmp_path, 3, np.float32)
    file.open()
    models = [model_of(values(seed)) for seed in range(3)]
    for index in (2, 0, 1):
        file.write(index, models[index].parameters | models[index].statistics)
    stacked = load_file(file.path)
    for index, model in enumerate(models):
        for name, value in (model.parameters | model.statistics).items():
            assert stacked[name][index].tobytes() == value.tobytes(), (index, name)
    want = [digest(model.parameters) for model in models]
    assert [digest(file.read(index)) for index in range(3)] == want
    good = file.path.read_bytes()
    for name, (begin, end) in places(good).items():
        size = (end - begin) // 3
        for at in (begin + size, begin + 2 * size - 1):  # of model 1
            changed = bytearray(good)
            changed[at] ^= 1
            file.path.write_bytes(changed)
            same = [digest(file.read(index)) == want[index] for index in range(3)]
            assert same == [True, "running" in name, True], name
    file.write(1, {})
    stacked = load_file(file.path)
    assert all(np.isnan(tensor[1]).all() and np.isfinite(tensor[::2]).all() for tensor in stacked.values())
    file.close()
