"""`mnist-cuda export`: ONNX Runtime and PyTorch load what is written and give our logits."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import mixed, signed_weights
from safetensors.numpy import load_file
from tiny import ENVIRONMENT, prints, said

from mnist_cuda import bench, cli
from mnist_cuda.engine.model import PARAMETERS, STATISTICS
from mnist_cuda.errors import CheckpointError, UnavailableError
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.evaluation import engine_of
from mnist_cuda.run.onnx_export import onnx_model
from mnist_cuda.run.results import Model

onnx = pytest.importorskip("onnx", reason="the package onnx, which the extra `test` installs, is not here")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime, which the extra `test` installs, is not here")

KINDS = [(kind, fold) for kind in ("uint8", "float") for fold in (False, True)]


def scores(content, images):
    """ONNX Runtime's logits; what it warns of is an error here."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (given,), (wanted,) = session.get_inputs(), session.get_outputs()
    assert (given.name, wanted.name, wanted.type) == ("images", "logits", "tensor(float)")
    if given.type == "tensor(uint8)":
        assert given.shape == ["N", 28, 28]
    else:
        assert (given.type, given.shape) == ("tensor(float)", ["N", 1, 28, 28])
        images = (images.astype(np.float32) / 255)[:, None]
    return session.run(None, {"images": images})[0]


@pytest.fixture(scope="module")
def ours(trained, mnist):
    """The reference's logits of all test images would take minutes; `cpu` in fp32 is what users have."""
    return engine_of(trained, "cpu").logits(mnist.test_images)


@pytest.mark.parametrize(("kind", "fold"), KINDS)
def test_onnx_runtime_gives_our_logits_of_all_test_images(trained, mnist, ours, kind, fold):
    theirs = scores(onnx_model(load_model(trained), kind, fold_bn=fold), mnist.test_images)
    assert theirs.shape == (10_000, 10)
    assert np.abs(theirs - ours).max() <= 1e-4
    np.testing.assert_array_equal(theirs.argmax(1), ours.argmax(1))


@pytest.fixture(scope="module")
def odd():
    """A model that shows every part: signed scales, one of 0, variances so small that epsilon counts."""
    rng = np.random.default_rng(5)
    statistics = {t.name: rng.uniform(2e-5, 2e-4, t.size) for t in STATISTICS}
    statistics |= {t.name: rng.normal(0, 0.1, t.size) for t in STATISTICS if t.name.endswith("mean")}
    return Model(signed_weights(7), statistics, {"dataset": "none", "steps": "3"})


@pytest.mark.parametrize(("kind", "fold"), KINDS)
def test_every_part_of_the_network_is_there(odd, kind, fold):
    """Against float64, for 1, 2 and 7 images: the batch is free."""
    images = mixed(7)
    expected = engine_of(odd, "reference").logits(images)
    content = onnx_model(odd, kind, fold_bn=fold)
    for count in (1, 2, 7):
        error = np.abs(scores(content, images[:count]) - expected[:count]).max()
        assert error <= 2e-6 * np.abs(expected).max(), error


def test_the_file(odd):
    model = onnx.load_model_from_string(onnx_model(odd))
    assert {c.name for c in model.graph.initializer} - {"axis", "scale", "shift"} == (
        {t.name for t in PARAMETERS + STATISTICS}
    )
    assert {p.key: p.value for p in model.metadata_props} == odd.metadata
    assert model.producer_name == "mnist-cuda"
    folded = onnx.load_model_from_string(onnx_model(odd, fold_bn=True))
    assert "BatchNormalization" in {node.op_type for node in model.graph.node}
    assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
    assert onnx_model(odd) == onnx_model(odd)


def test_what_cannot_be_exported(odd):
    with pytest.raises(CheckpointError, match="no population statistics"):
        onnx_model(Model(odd.parameters))
    huge = {**odd.parameters, "fc2.bias": np.full(10, 1e300)}
    with pytest.raises(CheckpointError, match=r"fc2\.bias does not fit float32"):
        onnx_model(Model(huge, odd.statistics))
    with pytest.raises(ValueError, match="kind is 'int8', expected uint8 or float"):
        onnx_model(odd, "int8")


def test_a_state_dict_says_what_its_inputs_are(saved, capsys):
    """And with --input float has what makes them of u/255: by ONNX Runtime's graph of the same two numbers."""
    said = prints(capsys, "export", "state-dict", "--model", str(saved))
    assert "inputs  (N,1,28,28) (u/255 - 0.1307)/0.3081, by transforms.Normalize((0.1307,), (0.3081,)) after" in said
    plain = saved / "plain.safetensors"
    said = prints(capsys, "export", "state-dict", "--model", str(saved), "--input", "float", "--out", str(plain))
    assert "inputs  (N,1,28,28) u/255, as ToTensor makes them; its module has normalise = nn.Conv2d(1, 1, 1)" in said
    found, other = load_file(plain), load_file(saved / "state-dict.safetensors")
    assert found.keys() - other.keys() == {"normalise.weight", "normalise.bias"}
    pixels = np.linspace(0, 1, 256)
    layer = found["normalise.weight"].item() * pixels + found["normalise.bias"].item()
    np.testing.assert_allclose(layer, (pixels - 0.1307) / 0.3081, atol=3e-7)


@pytest.fixture
def saved(odd, tmp_path):
    """The folder of a run with that model."""
    save_model(tmp_path / "model.safetensors", odd, steps=3)
    return tmp_path


def test_the_commands_write_beside_the_model_or_where_they_are_told(saved, capsys):
    model = (saved / "model.safetensors").read_bytes()
    assert cli.main(["export", "onnx", "--model", str(saved)]) == 0
    name = saved / "model.onnx"
    assert capsys.readouterr().out == f"saved {name}: images (N,28,28) uint8 in, logits (N,10) float32 out\n"
    onnx.checker.check_model(onnx.load(name), full_check=True)
    out = saved / "other.onnx"
    argv = ["--input", "float", "--fold-bn", "--out", str(out)]
    assert cli.main(["export", "onnx", "--model", str(saved / "model.safetensors"), *argv]) == 0
    assert out.read_bytes() == onnx_model(load_model(saved), "float", fold_bn=True)
    assert cli.main(["export", "state-dict", "--model", str(saved)]) == 0
    assert load_file(saved / "state-dict.safetensors").keys() == load_file(saved / "model.safetensors").keys()
    assert (saved / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["onnx", "--out", "model.txt"], 2, "'model.txt' does not end in .onnx"),
        (["state-dict", "--out", "model.onnx"], 2, "ends neither in .safetensors nor in .pt"),
        (["state-dict", "--out", "{}/model.safetensors"], 2, "this is the model itself"),
        (["onnx", "--out", "{}/no/folder/model.onnx"], 6, "cannot write it"),
        (["onnx", "--model", "{}/gone"], 6, "no such file"),
        (["onnx", "--input", "int8"], 2, "int8"),
    ],
)
def test_errors_take_one_line(saved, argv, code, words, capsys):
    argv = [*argv[:1], "--model", str(saved), *(arg.format(saved) for arg in argv[1:])] if argv else []
    found, out, err = said(capsys, "export", *argv)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert words in err


def test_a_model_without_statistics(odd, saved, capsys):
    save_model(saved / "model.safetensors", Model(odd.parameters), steps=3)
    for what in ("onnx", "state-dict"):
        assert "no population statistics" in prints(capsys, "export", what, "--model", str(saved), code=6)
    assert cli.main(["export", "state-dict", "--model", str(saved), "--parameters-only"]) == 0
    assert load_file(saved / "state-dict.safetensors").keys() == {t.name for t in PARAMETERS}


@pytest.mark.parametrize(
    ("package", "argv", "words"),
    [
        ("onnx", ["onnx"], f"run `{sys.executable} -m pip install onnx`"),
        ("torch", ["state-dict", "--out", "{}/a.pt"], "one that ends in .safetensors as well"),
    ],
)
def test_a_missing_package_is_named(saved, package, argv, words, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named '{package}'", name=package)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    argv = [arg.format(saved) for arg in argv]
    code, out, err = said(capsys, "export", *argv, "--model", str(saved))
    assert (code, out, err.count("\n")) == (UnavailableError.exit_code, "", 1)
    assert words in err
    assert sorted(path.name for path in saved.iterdir()) == ["model.safetensors"]


# Loads state dicts strictly: FILE into a module whose batch norms have statistics, PARAMETERS into the network of
# mnist_cuda/peers, whose batch norms have none; prints the first one's float64 logits and its counters.
IN_TORCH = """
import json, sys
import numpy as np, torch
from torch import nn
peers, images, file, parameters, plain = sys.argv[1:]
sys.path.insert(0, peers)
from pytorch_baseline import Net

class Tracking(Net):
    def __init__(self):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(32), nn.BatchNorm2d(64)

class Plain(Tracking):
    def __init__(self):
        super().__init__()
        self.normalise = nn.Conv2d(1, 1, 1)
    def forward(self, x):
        return super().forward(self.normalise(x))

def read(file):
    if file.endswith(".pt"):
        return torch.load(file, weights_only=True)
    return {key: torch.from_numpy(value) for key, value in np.load(file).items()}

Net().load_state_dict(read(parameters), strict=True)
net = Tracking().double()
net.load_state_dict(read(file), strict=True)
x = torch.from_numpy(np.load(images)).double()[:, None]
logits = net.eval()((x / 255 - 0.1307) / 0.3081)
of_plain = Plain().double()
of_plain.load_state_dict(read(plain), strict=True)
logits, plain = logits.tolist(), of_plain.eval()(x / 255).tolist()
print(json.dumps([logits, plain, int(net.bn1.num_batches_tracked), int(net.bn2.num_batches_tracked)]))
"""


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_pytorch_loads_it_strictly_and_gives_our_logits(odd, saved, peer, suffix, request):
    names = []
    folders = request.getfixturevalue("torch_folders") if suffix == "pt" else []
    environment = ENVIRONMENT | {"PYTHONPATH": ":".join([ENVIRONMENT["PYTHONPATH"], *folders])}
    kinds = {
        f"all.{suffix}": [],
        "parameters.safetensors": ["--parameters-only"],
        f"plain.{suffix}": ["--input", "float"],
    }
    for name, flags in kinds.items():
        path = saved / name
        argv = [sys.executable, "-m", "mnist_cuda", "export", "state-dict", "--model", saved, "--out", path, *flags]
        subprocess.run(argv, env=environment, check=True, capture_output=True)
        if path.suffix == ".safetensors":  # the peers have no safetensors
            np.savez(path.with_suffix(".npz"), **load_file(path))
            path = path.with_suffix(".npz")
        names.append(path)
    images = mixed(7)
    np.save(saved / "images.npy", images)
    peers = Path(bench.__file__).parents[1] / "peers"
    argv = [peer.command[0], "-c", IN_TORCH, peers, saved / "images.npy", *names]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    logits, of_plain, *steps = json.loads(result.stdout)
    assert steps == [3, 3]
    expected = engine_of(odd, "reference").logits(images)
    assert np.abs(np.array(logits) - expected).max() <= 1e-9 * np.abs(expected).max()
    assert np.abs(np.array(of_plain) - expected).max() <= 1e-6 * np.abs(expected).max()  # its two numbers are float32
