"""Model files: names and dtypes that PyTorch takes, strict reading, atomic writing."""

import errno
import json
import os
import struct
import sys
import types

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file
from tiny import prints

from mnist_cuda.engine.model import PARAMETERS, STATISTICS, init_parameters
from mnist_cuda.errors import CheckpointError, UnavailableError
from mnist_cuda.files import atomic_write
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.results import Model

STATISTIC_VALUES = {t.name: np.linspace(0.5, 2, t.size) for t in STATISTICS}


def checkpoint(dtype=np.float32, statistics=True):
    def cast(tensors):
        return {name: value.astype(dtype) for name, value in tensors.items()}

    return Model(cast(init_parameters(3)), cast(STATISTIC_VALUES) if statistics else None, {"dataset": "tiny"})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, checkpoint(), steps=7)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("statistics", [True, False])
def test_round_trip(tmp_path, dtype, statistics):
    path = tmp_path / "model.safetensors"
    saved = checkpoint(dtype, statistics)
    save_model(path, saved, steps=7)
    for place in (path, tmp_path):
        loaded = load_model(place)
        assert loaded.metadata["statistics"] == ("population" if statistics else "absent")
        assert loaded.metadata["normalisation"] == "(u/255 - 0.1307)/0.3081"
        assert loaded.metadata["dataset"] == "tiny"
        assert (loaded.statistics is not None) == statistics
        for tensors, found in ((saved.parameters, loaded.parameters), (saved.statistics, loaded.statistics)):
            for name, value in (tensors or {}).items():
                assert found[name].dtype == dtype
                np.testing.assert_array_equal(found[name], value)


def test_names_are_those_of_a_pytorch_state_dict(path):
    tensors = load_file(path)
    assert set(tensors) == (
        {t.name for t in PARAMETERS + STATISTICS} | {"bn1.num_batches_tracked", "bn2.num_batches_tracked"}
    )
    assert tensors["bn1.num_batches_tracked"].dtype == np.int64
    assert tensors["bn1.num_batches_tracked"].shape == ()
    assert tensors["bn2.num_batches_tracked"] == 7


def flipped(path, place, bit):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_flipped_bit_of_a_tensor_is_found(path, tmp_path):
    """Whoever loads the model: most flips leave a number that is as good as any."""
    whole = path.read_bytes()
    header, rng = 8 + struct.unpack("<Q", whole[:8])[0], np.random.default_rng(4)
    for place in (header, len(whole) - 1, *rng.integers(header, len(whole), 200)):
        path.write_bytes(whole)
        flipped(path, place, int(rng.integers(8)))
        with pytest.raises(CheckpointError):
            load_model(path)


def commands(path):
    yield "evaluate", path
    yield "predict", "--model", path, path.parent / "x.png"
    yield "export", "state-dict", "--model", path
    yield "export", "onnx", "--model", path
    yield "train", "--init", path, "--out", path.parent / "run"


def test_every_command_refuses_a_model_that_is_not_what_was_saved(path, capsys):
    pytest.importorskip("PIL")
    flipped(path, -5, 0)
    for argv in commands(path):
        err = prints(capsys, *argv, code=6)
        assert f"{path}: damaged, its sha256 is not that of its content" in err, argv
        assert err.count("\n") == 1
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("edit", [lambda m: m.pop("sha256"), lambda m: m.update(dataset="another")])
def test_a_file_of_ours_has_its_digest_and_metadata(path, edit):
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    edit(metadata)
    path.write_bytes(save(load_file(path), metadata))
    with pytest.raises(CheckpointError, match="its sha256 is not that of its content"):
        load_model(path)


def test_a_digest_tells_files_of_ours_from_others(path):
    assert len(load_model(path).metadata["sha256"]) == 64
    save_file(load_file(path), path)
    assert load_model(path).metadata == {}
    save_model(path, load_model(path))
    assert len(load_model(path).metadata["sha256"]) == 64


@pytest.mark.parametrize(
    ("version", "sound"),
    [("2.5.1+cu124", False), ("1.13.0", False), ("2.6.0", True), ("2.13.0+cpu", True)],
)
def test_files_of_pytorch_want_a_pytorch_that_executes_nothing(version, sound, tmp_path, monkeypatch):
    loaded = []
    torch = types.ModuleType("torch")
    torch.__version__, torch.Tensor, torch.load = version, np.ndarray, lambda *_, **how: loaded.append(how) or {}
    monkeypatch.setitem(sys.modules, "torch", torch)
    (tmp_path / "model.pt").touch()
    with pytest.raises(CheckpointError if sound else UnavailableError) as error:
        load_model(tmp_path / "model.pt")
    assert (loaded == [{"map_location": "cpu", "weights_only": True}]) == sound
    assert sound or f"versions before 2.6 may execute, and here is {version}:" in str(error.value)


def edited(path, edit):
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def renamed(tensors, old, new):
    tensors[new] = tensors.pop(old)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("bn2.running_var"), "bn2.running_var is missing"),
        (lambda t: t.update(extra=np.zeros(1)), "'extra' is unknown"),
        (lambda t: renamed(t, "conv1.bias", "module.conv1.bias"), "conv1.bias is missing, 'module.conv1.bias' is unk"),
        (lambda t: t.update({"fc2.bias": np.zeros(11, np.float32)}), "shape (11,), expected (10,)"),
        (lambda t: t["conv2.weight"].fill(np.nan), "conv2.weight has 18432 values that are not finite"),
        (lambda t: t["bn1.running_var"].put(4, -1), "bn1.running_var holds -1, expected variances >= 0"),
    ],
)
def test_a_wrong_tensor_is_refused(path, edit, words):
    edited(path, edit)
    with pytest.raises(CheckpointError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_another_normalisation_is_refused(path):
    path.write_bytes(save(load_file(path), {"normalisation": "u/255"}))
    with pytest.raises(CheckpointError, match="normalised by u/255, expected"):
        load_model(path)


def hostile(header, body=b"\0" * 64):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


FIRST = PARAMETERS[0]
ENTRY = {"dtype": "F32", "shape": [32, 1, 3, 3], "data_offsets": [0, 1152]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 64,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**9) + b"{}",
        hostile(b"{"),
        hostile(b"\xff\xfe"),
        hostile([]),
        hostile({}),
        hostile({FIRST.name: ENTRY}),  # offsets beyond the end
        hostile({FIRST.name: ENTRY | {"data_offsets": [1152, 0]}}),
        hostile({FIRST.name: ENTRY | {"shape": [2**62, 2**62]}}),
        hostile({FIRST.name: ENTRY | {"shape": [-1]}}),
        hostile({FIRST.name: ENTRY | {"dtype": "F33"}}),
        hostile({FIRST.name: None}),
        hostile(b'{"a":' * 100_000),
        b"<html>not found</html>",
        b"PK\x03\x04" + b"\0" * 100,
    ],
)
def test_a_hostile_file_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_truncation_and_flipped_bits_never_crash(path):
    content = path.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    rng = np.random.default_rng(0)
    for length in [0, 1, 8, 9, header - 1, header, header + 1, len(content) - 1, *rng.integers(0, len(content), 20)]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load_model(path)
    for position in rng.integers(0, header, 200):
        path.write_bytes(content)
        flipped(path, position, int(rng.integers(8)))
        with pytest.raises(CheckpointError):
            load_model(path)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.symlink_to(p)])
def test_a_path_that_is_no_file(tmp_path, make, capsys):
    make(tmp_path / "x")
    assert prints(capsys, "evaluate", str(tmp_path / "x"), code=6).count("\n") == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(path, monkeypatch, call):
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        atomic_write(path, b"new")
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
