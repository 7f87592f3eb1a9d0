"""``congruence embed`` on a graph, which takes no time to load, and on tiny models of transformers, which does."""

import json
import shutil

import numpy as np
import pytest
from graphs import image_graph
from tiny_models import TEXTS

from congruence import read_embeddings
from congruence.encoders import load_encoder
from congruence.io import matrices


@pytest.fixture
def folder(tmp_path, images):
    place = tmp_path / "images"
    place.mkdir()
    for k, image in enumerate(images):
        image.save(place / f"{k}.png")
    return place


@pytest.fixture
def eyes(tmp_path):
    path = image_graph(tmp_path / "eyes.onnx")
    path.with_suffix(".json").write_text(json.dumps({"modality": "image", "size": 6}))
    return f"onnx:{path}"


def test_vectors_are_those_of_the_encoder_and_the_output_is_never_the_input(here, eyes, folder, images, tmp_path):
    facts = json.loads(here("embed", eyes, "images", "-o", "i.parquet", "--batch-size", 2, "--json").ends(0).out)
    assert (facts["rows"], facts["space"]["model"]) == (5, eyes)
    got = read_embeddings(tmp_path / "i.parquet")
    np.testing.assert_allclose(got.vectors, load_encoder(eyes).encode_all(images), atol=1e-5)
    assert got.ids.tolist() == [f"{k}.png" for k in range(5)]
    (tmp_path / "t.csv").write_text("id,path\na,images/0.png\n")
    here("embed", eyes, "t.csv", "-o", "t.csv", "--force").refused("t.csv is the source t.csv")
    assert (tmp_path / "t.csv").read_text() == "id,path\na,images/0.png\n"


def test_the_table_tells_what_was_left_out(here, eyes, folder):
    (folder / "9.png").write_bytes(b"no picture")
    here("embed", eyes, "images", "-o", "first").refused("'9.png'")
    skip = ("--set", "on_error=skip", "--cache", "cache")
    result = here("embed", eyes, "images", "-o", "out", *skip, "--set", "shard_size=2").ends(0)
    assert "1 items left out, see out.failures.csv" in result.err
    assert "left out" in result.out
    again = json.loads(here("embed", eyes, "images", "-o", "again.npz", *skip, "--json").out)
    assert (again["cached"], again["encoded"]) == (5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "-9"], "--layer -9"),
        (["--modality", "text"], "videos only"),
        (["--set", "dtype=int8"], "--set dtype=int8"),
        (["--set", "on_error=ask"], "--set on_error=ask"),
    ],
)
def test_bad_options_are_one_sentence(here, eyes, folder, tmp_path, options, message):
    result = here("embed", eyes, "images", "-o", "o.npz", *options).refused(message)
    assert result.err.startswith("error: ")
    assert not (tmp_path / "o.npz").exists()


def test_an_interrupted_command_says_how_to_go_on(here, eyes, folder, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("congruence.embed.run.EncoderRun._encode_batch", stop)
        assert "nothing was written" in here("embed", eyes, "images", "-o", "o.npz").ends(130).err
    monkeypatch.setattr("congruence.embed.run._write", stop)
    assert "run the same command again to resume" in here("embed", eyes, "images", "-o", "o.npz").ends(130).err


@pytest.mark.heavy
@pytest.mark.long
def test_images_and_texts_of_one_model_meet_in_one_space(here, clip, folder, images, tmp_path):
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"t{k},{text}\n" for k, text in enumerate(TEXTS)))
    for source, out in (("images", "i.parquet"), ("texts.csv", "t.npz")):
        here("embed", f"hf:{clip}", source, "-o", out, "--device", "cpu").ends(0)
    got, texts = read_embeddings(tmp_path / "i.parquet"), read_embeddings(tmp_path / "t.npz")
    np.testing.assert_allclose(got.vectors, load_encoder(f"hf:{clip}", "image").encode_all(images), atol=1e-5)
    assert texts.ids.tolist() == ["t0", "t1", "t2", "t3"]
    assert texts.space.model == got.space.model
    assert (got.space.modality, got.space.normalized, texts.space.modality) == ("image", True, "text")
    np.save(tmp_path / "turned.npy", -got.vectors)
    # What was embedded is what the other commands read.
    here("fit", "i.parquet", "turned.npy", "--ids", "none", "-o", "map").ends(0)


@pytest.mark.heavy
@pytest.mark.long
def test_every_layer_can_be_compared(here, bert, tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    here("embed", f"hf:{bert}", "t.txt", "-o", "layers", "--layer", "first").refused("--layer first")
    here("embed", f"hf:{bert}", "t.txt", "-o", "layers", "--layer", "all", "--set", "pooling=cls_mean").ends(0)
    assert list(matrices(tmp_path / "layers")) == ["layer_0", "layer_1", "layer_2", "layer_3"]
    alone = load_encoder(f"hf:{bert}", layer=2, pooling="cls_mean")
    got = read_embeddings(tmp_path / "layers" / "layer_2.parquet")
    np.testing.assert_allclose(got.vectors, alone.encode_all(TEXTS), atol=1e-5)
    assert got.space.model == alone.space.model


@pytest.mark.heavy
@pytest.mark.long
def test_a_model_of_the_hub_goes_by_its_commit(here, bert, tmp_path, monkeypatch):
    """The hub's own cache, laid out by hand, offline."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--acme--tiny-bert"
    shutil.copytree(bert, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    # What HF_HUB_CACHE and HF_HUB_OFFLINE set, which the library reads only once.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    result = here("embed", "hf:acme/tiny-bert", "t.txt", "-o", "o.npz", "--json").ends(0)
    assert result.err == ""
    assert json.loads(result.out)["space"]["revision"] == commit
    vectors = read_embeddings(tmp_path / "o.npz").vectors
    np.testing.assert_allclose(vectors, load_encoder(f"hf:{bert}").encode_all(TEXTS), atol=1e-5)
    absent = here("embed", "hf:acme/other", "t.txt", "-o", "p.npz")
    assert (absent.code, absent.err.count("\n")) == (2, 1)
    assert absent.err.startswith("error: Got an error while loading 'hf:acme/other'")
