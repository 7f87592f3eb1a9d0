"""``congruence embed`` on real models of the tiny kind."""

import json
import shutil

import numpy as np
import pytest
from tiny_models import TEXTS

from congruence import read_embeddings
from congruence.encoders import load_encoder
from congruence.io import matrices

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder(tmp_path, images):
    place = tmp_path / "images"
    place.mkdir()
    for k, image in enumerate(images):
        image.save(place / f"{k}.png")
    return place


@pytest.mark.long
def test_images_and_texts_of_one_model_meet_in_one_space(here, clip, folder, images, tmp_path):
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"t{k},{text}\n" for k, text in enumerate(TEXTS)))
    common = ["--batch-size", 2, "--device", "cpu", "--json"]
    first = here("embed", f"hf:{clip}", "images", "-o", "i.parquet", *common).ends(0)
    facts = json.loads(first.out)
    assert facts["rows"] == 5
    assert facts["space"]["modality"] == "image"
    here("embed", f"hf:{clip}", "texts.csv", "-o", "t.npz", *common).ends(0)
    got = read_embeddings(tmp_path / "i.parquet")
    np.testing.assert_allclose(got.vectors, load_encoder(f"hf:{clip}", "image").encode_all(images), atol=1e-5)
    assert got.ids.tolist() == [f"{k}.png" for k in range(5)]
    assert got.space.normalized is True
    texts = read_embeddings(tmp_path / "t.npz")
    assert texts.ids.tolist() == ["t0", "t1", "t2", "t3"]
    assert texts.space.model == got.space.model
    assert texts.space.modality == "text"
    np.save(tmp_path / "turned.npy", -got.vectors)
    # What was embedded is what the other commands read.
    here("fit", "i.parquet", "turned.npy", "--ids", "none", "-o", "map").ends(0)


def test_the_output_is_never_the_input(here, bert, tmp_path):
    (tmp_path / "t.csv").write_text("id,text\na,a red cat\n")
    here("embed", f"hf:{bert}", "t.csv", "-o", "t.csv", "--force").refused("t.csv, which is also the input")
    assert (tmp_path / "t.csv").read_text() == "id,text\na,a red cat\n"


def test_the_table_tells_what_was_left_out(here, dinov2, folder):
    (folder / "9.png").write_bytes(b"no picture")
    here("embed", f"hf:{dinov2}", "images", "-o", "out").refused("'9.png'")
    skip = ("--set", "on_error=skip", "--cache", "cache")
    result = here("embed", f"hf:{dinov2}", "images", "-o", "out", *skip, "--set", "shard_size=2").ends(0)
    assert "1 items left out, see out.failures.csv" in result.err
    assert "left out" in result.out
    again = here("embed", f"hf:{dinov2}", "images", "-o", "again.npz", *skip, "--json")
    assert json.loads(again.out)["cached"] == 5
    assert json.loads(again.out)["encoded"] == 0


def test_every_layer_can_be_compared(here, bert, tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(TEXTS * 1) + "\n")
    here("embed", f"hf:{bert}", "t.txt", "-o", "layers", "--layer", "all", "--set", "pooling=cls_mean").ends(0)
    assert list(matrices(tmp_path / "layers")) == ["layer_0", "layer_1", "layer_2", "layer_3"]
    alone = load_encoder(f"hf:{bert}", layer=2, pooling="cls_mean")
    got = read_embeddings(tmp_path / "layers" / "layer_2.parquet")
    np.testing.assert_allclose(got.vectors, alone.encode_all(TEXTS), atol=1e-5)
    assert got.space.model == alone.space.model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "first"], "--layer first"),
        (["--layer", "-9"], "--layer -9"),
        (["--modality", "image"], "texts only"),
        (["--set", "dtype=int8"], "--set dtype=int8"),
        (["--set", "on_error=ask"], "--set on_error=ask"),
    ],
)
def test_bad_options_are_one_sentence(here, bert, tmp_path, options, message):
    (tmp_path / "t.txt").write_text("cat\n")
    result = here("embed", f"hf:{bert}", "t.txt", "-o", "o.npz", *options).refused(message)
    assert result.err.startswith("error: ")
    assert not (tmp_path / "o.npz").exists()


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
    np.testing.assert_allclose(
        read_embeddings(tmp_path / "o.npz").vectors, load_encoder(f"hf:{bert}").encode_all(TEXTS), atol=1e-5
    )
    absent = here("embed", "hf:acme/other", "t.txt", "-o", "p.npz")
    assert absent.code == 2
    assert absent.err.startswith("error: Got an error while loading 'hf:acme/other'")
    assert absent.err.count("\n") == 1


def test_an_interrupted_command_says_how_to_go_on(here, bert, tmp_path, monkeypatch):
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("congruence.embed.embed", stop)
    result = here("embed", f"hf:{bert}", "t.txt", "-o", "o.npz").ends(130)
    assert "Run the same command again to resume" in result.err
