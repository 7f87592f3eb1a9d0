"""Graphs built here, run by onnxruntime, against the same arithmetic in NumPy and in transformers."""

import json

import numpy as np
import onnx
import pytest
from graphs import TABLE, WEIGHTS, image_graph, save, text_graph, value
from onnx import helper
from PIL import Image
from tiny_models import TEXTS, word_tokenizer

from congruence.encoders import load_encoder
from congruence.errors import CorruptFileError, FileError, ParameterError, ShapeError

RNG = np.random.default_rng(0)


def describe(path, **facts):
    path.with_suffix(".json").write_text(json.dumps(facts))


@pytest.fixture
def eyes(tmp_path):
    path = image_graph(tmp_path / "eyes.onnx")
    describe(path, modality="image", size=6, mean=[0.5, 0.5, 0.5], std=[0.25, 0.2, 0.1])
    return path


@pytest.fixture
def ears(tmp_path):
    path = text_graph(tmp_path / "ears.onnx")
    describe(path, modality="text", pooling="mean", max_length=12)
    return path


def pixels(image, mean=0.5, std=(0.25, 0.2, 0.1)):
    return ((np.asarray(image, np.float64) / 255 - mean) / std).transpose(2, 0, 1)


def test_images_are_resized_cropped_and_standardised(eyes, images):
    encoder = load_encoder(f"onnx:{eyes}")
    square = images[0].resize((6, 6))
    np.testing.assert_allclose(encoder.encode_all([square])[0], pixels(square).reshape(-1) @ WEIGHTS, rtol=1e-5)
    # 33 × 20: the shorter side becomes 6, the longer 9.9, its center stays.
    wide = images[1].resize((10, 6), Image.Resampling.BICUBIC).crop((2, 0, 8, 6))
    got = encoder.encode_all(images, 2)
    np.testing.assert_allclose(got[1], pixels(wide).reshape(-1) @ WEIGHTS, rtol=1e-4)
    np.testing.assert_array_equal(encoder.encode_all(images, 5), got)
    assert encoder.space.to_dict().items() >= {"modality": "image", "dim": 5, "normalized": False}.items()


@pytest.mark.parametrize(
    ("facts", "prepare"),
    [
        ({"resize": "squash"}, lambda image: image.resize((6, 6), Image.Resampling.BICUBIC)),
        (
            {"resize_to": 8, "interpolation": "bilinear"},
            lambda image: image.resize((13, 8), Image.Resampling.BILINEAR).crop((3, 1, 9, 7)),
        ),
        ({"size": [6, 6], "layout": "NHWC"}, lambda image: image.resize((10, 6), 3).crop((2, 0, 8, 6))),
    ],
)
def test_the_description_says_how(tmp_path, images, facts, prepare):
    path = image_graph(tmp_path / "g.onnx", layout=facts.get("layout", "NCHW"))
    encoder = load_encoder(f"onnx:{path}", description={"modality": "image", "size": 6, **facts})
    want = np.asarray(prepare(images[1]), np.float64) / 255
    want = want if facts.get("layout") == "NHWC" else want.transpose(2, 0, 1)
    np.testing.assert_allclose(encoder.encode_all([images[1]])[0], want.reshape(-1) @ WEIGHTS, rtol=1e-4)


def test_a_graph_of_one_batch_size_takes_any_number(eyes, tmp_path, images):
    fixed = image_graph(tmp_path / "fixed.onnx", batch=2)
    encoder = load_encoder(f"onnx:{fixed}", description=eyes.with_suffix(".json"))
    np.testing.assert_allclose(
        encoder.encode_all(images, 3), load_encoder(f"onnx:{eyes}").encode_all(images), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls_mean", "last"])
def test_texts_are_pooled_over_their_tokens(ears, pooling):
    tokenizer = word_tokenizer()
    rows = [TABLE[tokenizer.encode(text).ids] for text in TEXTS]
    cls, mean, last = (np.array(x) for x in zip(*[(r[0], r.mean(0), r[-1]) for r in rows], strict=True))
    want = {"cls": cls, "mean": mean, "cls_mean": np.hstack([cls, mean]), "last": last}[pooling]
    encoder = load_encoder(f"onnx:{ears}", pooling=pooling)
    np.testing.assert_allclose(encoder.encode_all(TEXTS, 4), want, rtol=1e-5)
    np.testing.assert_allclose(encoder.encode_all(TEXTS, 1), want, rtol=1e-5)


def test_tokens_before_the_patches_are_left_out_of_a_mean(tmp_path):
    """Rows of pixels as tokens, the first of them in the place of [CLS]."""
    nodes = [
        helper.make_node("Transpose", ["pixels"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["v"]),
    ]
    path = save(
        tmp_path / "g.onnx", nodes, [value("pixels", ["n", 3, 6, 6])], [value("v", ["n", 6, 18])],
        shape=np.array([-1, 6, 18]),
    )  # fmt: skip
    image = Image.fromarray(RNG.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    tokens = (np.asarray(image) / 255).transpose(0, 2, 1).reshape(6, 18)
    facts = {"modality": "image", "size": 6, "prefix": 1, "pooling": "cls_mean"}
    got = load_encoder(f"onnx:{path}", description=facts).encode_all([image])[0]
    np.testing.assert_allclose(got, np.hstack([tokens[0], tokens[1:].mean(0)]), rtol=1e-5)


def test_rows_are_normalized_when_the_description_says_so(ears):
    plain = load_encoder(f"onnx:{ears}")
    describe(ears, modality="text", pooling="mean", max_length=12, normalize=True)
    encoder = load_encoder(f"onnx:{ears}")
    np.testing.assert_allclose(np.linalg.norm(encoder.encode_all(TEXTS), axis=1), 1, atol=1e-6)
    assert encoder.space.normalized is True
    assert encoder.fingerprint != plain.fingerprint
    assert load_encoder(f"onnx:{ears}", normalize=False).encode_all(TEXTS) == pytest.approx(plain.encode_all(TEXTS))


def test_weights_beside_the_graph_are_part_of_the_fingerprint(eyes):
    before = load_encoder(f"onnx:{eyes}").fingerprint
    model = onnx.load(eyes)
    onnx.save(model, eyes, save_as_external_data=True, location="eyes.onnx_data", size_threshold=0)
    first = load_encoder(f"onnx:{eyes}").fingerprint
    data = bytearray((eyes.parent / "eyes.onnx_data").read_bytes())
    data[2] ^= 1
    (eyes.parent / "eyes.onnx_data").write_bytes(data)
    assert len({before, first, load_encoder(f"onnx:{eyes}").fingerprint}) == 3


@pytest.mark.parametrize(
    ("facts", "error", "message"),
    [
        ({}, ParameterError, "'image' or 'text' in its description"),
        ({"modality": "image", "sizes": 6}, ParameterError, "Got sizes"),
        ({"modality": "image", "resize": "stretch"}, ParameterError, "resize='stretch'"),
        ({"modality": "image", "layout": "CHW"}, ParameterError, "layout='CHW'"),
        ({"modality": "image", "interpolation": "cubic"}, ParameterError, "interpolation='cubic'"),
        ({"modality": "image", "size": 6, "output": "logits"}, ParameterError, "output.*'logits'.*'vector'"),
        ({"modality": "image", "size": 6, "input": "x"}, ParameterError, "input.*'x'.*'pixels'"),
        ({"modality": "image", "size": 6, "pooling": "mean"}, ShapeError, r"'vector' of shape \(1, 5\)"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(eyes, facts, error, message):
    describe(eyes, **facts)
    with pytest.raises(error, match=message):
        load_encoder(f"onnx:{eyes}")


def test_refusals(eyes, ears, tmp_path):
    for place, options, error, match in (
        (tmp_path / "none.onnx", {}, FileError, "No graph"),
        (eyes, {"modality": "text"}, ParameterError, "modality='text'"),
        (eyes, {"dtype": "float16"}, ParameterError, "dtype='float16'"),
        (eyes, {"device": "mps"}, ParameterError, "device='mps'"),
        (eyes, {"layer": 1}, ParameterError, "layer=1"),
        (ears, {"description": {"modality": "text"}}, ShapeError, "pooling=None"),
        (eyes, {"description": tmp_path / "none.json"}, FileError, "No description"),
    ):
        with pytest.raises(error, match=match):
            load_encoder(f"onnx:{place}", **options)
    eyes.with_suffix(".json").write_text("{")
    with pytest.raises(CorruptFileError, match="not JSON"):
        load_encoder(f"onnx:{eyes}")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FileError, match="No tokenizer"):
        load_encoder(f"onnx:{ears}")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(FileError, match="error while loading"):
        load_encoder(f"onnx:{broken}", description={"modality": "image"})
