"""open_clip and timm need torchvision: here stand-ins of the same interface take their place."""

import sys

import numpy as np
import pytest
import stand_in_open_clip
import stand_in_timm
import torch
from tiny_models import TEXTS

from congruence.encoders import load_encoder
from congruence.errors import FileError, MissingExtraError, ParameterError


@pytest.fixture
def open_clip(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", stand_in_open_clip)
    return stand_in_open_clip


@pytest.fixture
def timm(monkeypatch):
    return stand_in_timm.install(monkeypatch)


def unit(X):
    return X / X.norm(dim=1, keepdim=True)


def test_both_towers_give_unit_rows_of_the_librarys_model(open_clip, images):
    model, preprocess = open_clip.create_model_from_pretrained("ViT-B-32", "openai", force_quick_gelu=True)
    with torch.no_grad():
        pictures = unit(model.encode_image(torch.stack([preprocess(image) for image in images])))
        texts = unit(model.encode_text(open_clip.get_tokenizer("ViT-B-32")(TEXTS)))
    eyes = load_encoder("open_clip:ViT-B-32/openai", "image")
    np.testing.assert_allclose(eyes.encode_all(images, 2), pictures, atol=1e-6)
    ears = load_encoder("open_clip:ViT-B-32/openai", "text")
    np.testing.assert_allclose(ears.encode_all(TEXTS, 3), texts, atol=1e-6)
    assert ears.space.to_dict().items() >= {
        "model": "open_clip:ViT-B-32/openai", "modality": "text", "dim": 6, "normalized": True
    }.items()  # fmt: skip
    assert eyes.fingerprint != ears.fingerprint
    raw = load_encoder("open_clip:ViT-B-32/openai", "text", normalize=False)
    assert not np.allclose(np.linalg.norm(raw.encode_all(TEXTS), axis=1), 1)


def test_weights_trained_with_quickgelu_get_it_under_either_spelling(open_clip, images):
    plain = load_encoder("open_clip:ViT-B-32/laion400m_e31", "image")
    spelt = load_encoder("open_clip:ViT-B-32-quickgelu/laion400m_e31", "image")
    np.testing.assert_array_equal(plain.encode_all(images), spelt.encode_all(images))
    assert plain.fingerprint == spelt.fingerprint
    assert plain._model.quick
    assert not load_encoder("open_clip:ViT-B-32/laion2b", "image")._model.quick


def test_folders_and_the_hub_have_their_schemes(open_clip, tmp_path, images):
    folder = tmp_path / "saved"
    folder.mkdir()
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    with torch.no_grad():
        want = unit(model.encode_image(torch.stack([preprocess(image) for image in images])))
    np.testing.assert_allclose(load_encoder(f"open_clip:{folder}", "image").encode_all(images), want, atol=1e-6)
    assert load_encoder("open_clip:hf-hub:laion/some-clip", "image").space.dim == 6


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("ViT-B-32", {"modality": "image"}, ParameterError, "<arch>/<tag>"),
        ("ViT-B-32/nonsense", {"modality": "image"}, FileError, "not a known tag"),
        ("ViT-B-32/openai", {}, ParameterError, "modality=None"),
        ("ViT-B-32/openai", {"modality": "image", "layer": 3}, ParameterError, "layer=3"),
        ("ViT-B-32/openai", {"modality": "image", "pooling": "cls"}, ParameterError, "pooling='cls'"),
        ("ViT-B-32/openai", {"modality": "image", "revision": "main"}, ParameterError, "revision='main'"),
    ],
)
def test_open_clip_refuses(open_clip, name, options, error, message):
    with pytest.raises(error, match=message):
        load_encoder(f"open_clip:{name}", **options)


def test_timm_gives_pooled_features_without_a_classifier(timm, images):
    model = timm.create_model("tiny_net", pretrained=True, num_classes=0)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        want = model(torch.stack([transform(image) for image in images]))
    encoder = load_encoder("timm:tiny_net")
    np.testing.assert_allclose(encoder.encode_all(images, 2), want, atol=1e-6)
    assert encoder.space.normalized is False
    assert encoder.space.dim == 5
    scaled = load_encoder("timm:tiny_net", normalize=True)
    np.testing.assert_allclose(scaled.encode_all(images), unit(want), atol=1e-6)
    assert scaled.fingerprint != encoder.fingerprint


def test_timm_refuses(timm):
    for name, options, error, match in (
        ("tiny_net", {"modality": "text"}, ParameterError, "modality='text'"),
        ("tiny_net", {"layer": 2}, ParameterError, "layer=2"),
        ("no_such_net", {}, FileError, "Unknown model"),
    ):
        with pytest.raises(error, match=match):
            load_encoder(f"timm:{name}", **options)


@pytest.mark.parametrize("extra", ["open-clip", "timm", "hf", "sentence-transformers", "onnx"])
def test_without_the_library_the_extra_is_named(monkeypatch, extra, tmp_path):
    library = {"hf": "transformers", "onnx": "onnxruntime"}.get(extra, extra.replace("-", "_"))
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "g.onnx").touch()
    name = {"onnx": tmp_path / "g.onnx"}.get(extra, "ViT-B-32/openai")
    prefix = "open_clip" if extra == "open-clip" else extra
    with pytest.raises(MissingExtraError, match=rf"congruence\[{extra}\]"):
        load_encoder(f"{prefix}:{name}", "text" if extra == "sentence-transformers" else "image")


def test_unknown_prefixes_list_the_adapters():
    for name in ("clip-vit", "keras:thing", "hf:", "/some/model.onnx"):
        with pytest.raises(ParameterError, match=r"hf:…, open_clip:…, sentence-transformers:…, timm:…, onnx:…"):
            load_encoder(name)
