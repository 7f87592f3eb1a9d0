"""Captions from a file, edits by name, and the figures that ask what is kept of a caption."""

from dataclasses import replace

import numpy as np
import pytest
from test_models import CLASSES, PretendedEncoder, options, world  # noqa: F401

from congruence.errors import CongruenceError, FileError, InputError, ParameterError
from congruence_papers import run
from congruence_papers.canonical import edit_caption, open_models, open_sample
from congruence_papers.canonical.data import edit_captions, read_captions, shared_words


def test_names_are_replaced_as_whole_words():
    for caption, edited in (
        ("A fluffy Birman on a chair.", "A fluffy Russian Blue on a chair."),
        ("birman, asleep", "Russian Blue, asleep"),
        ("Two Birmans", None),
        ("a (Birman) and a Birman", "a (Russian Blue) and a Russian Blue"),
        ("a cat", None),
    ):
        assert edit_caption(caption, "Birman", "Russian Blue") == edited
    assert edit_caption("an american_bulldog stands", "American Bulldog", "Basset Hound") == "an Basset Hound stands"
    assert edit_caption("a c++ dog", "c++", r"\1") == r"a \1 dog"


def test_shared_words_leave_names_out():
    names = ["Russian Blue", "cat", "dog"]
    found = shared_words(["a Russian Blue with big eyes", "cat"], ["big eyes of a cat", "dog"], names)
    np.testing.assert_allclose(found, [3 / 4, np.nan])


def test_captions_are_read_from_tables(tmp_path):
    wanted = [("one.jpg", "a cat, asleep"), ("one.jpg", "a cat"), ("dog", "ein größerer Hund")]
    text = 'caption,id\n"a cat, asleep",one.jpg\na cat,one.jpg\nein größerer Hund,dog\n'
    (tmp_path / "c.csv").write_text(text, encoding="utf-8")
    assert read_captions(tmp_path / "c.csv") == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,caption\na,b\n", "name"),
        ("id,caption\n", "No "),
        ("id,caption\na,\n", "caption"),
        ("id,caption\n,b\n", "id"),
    ],
)
def test_files_that_hold_no_captions_are_refused(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(CongruenceError, match=message):
        read_captions(tmp_path / "c.csv")
    with pytest.raises(FileError):
        read_captions(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("captions", "edits", "message"),
    [
        ([("nowhere", "a cat")], {"cat": "dog"}, "no image or class"),
        ([("cat", "a cat")], {"cat": "wolf"}, "'wolf' is no class"),
        ([("cat", "a tabby")], {"cat": "dog"}, "contains cat"),
    ],
)
def test_edits_that_cannot_be_made_are_named(captions, edits, message):
    with pytest.raises(InputError, match=message):
        edit_captions(captions, edits, ["cat", "dog"], {})


def write(folder):
    looks = ("on a chair", "asleep in the sun", "with big round eyes")
    lines = ["id,caption", *(f"{name},a {name} {look}" for name in CLASSES for look in looks)]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder / "captions.csv"


def test_a_class_is_edited_by_name_in_captions(world, tmp_path):  # noqa: F811
    where = options(world)
    parameters = {"captions": str(write(tmp_path)), "edits": {"cat": "dog", "owl": "fox"}}
    results = run("fig55", models="openai-b32/flava", parameters=parameters, **where).results
    after = {(r["metric"], r["series"]): r["mean"] for r in results["rows"] if r["quantity"] == "after"}
    assert after["edited_class_text", "mapped"] == 1.0  # the pretended models are a rotation apart
    assert after["edited_class_image", "mapped"] == after["edited_class_image", "target alone"]
    assert results["data"][0]["captions"] == 18
    assert any("18 captions, 6 of them edited (cat → dog, owl → fox)" in note for note in results["notes"])
    for example in results["extra"]["examples"]:
        old, new = ("cat", "dog") if "cat" in example["read"] else ("owl", "fox")
        assert old in example["read"]
        assert example["mapped_to"] == example["read"].replace(old, new)
    where |= {"captions": tmp_path / "captions.csv", "edits": {"cat": "dog"}}
    bank = open_models("openai-b32/flava", "pets", **where).bank
    assert bank.edited_texts == ("a dog on a chair", "a dog asleep in the sun", "a dog with big round eyes")
    assert [CLASSES[k] for k in bank.wanted] == ["dog"] * 3


def test_one_template_without_captions_is_refused(world):  # noqa: F811
    message = "with one template per class and no captions"
    with pytest.raises(InputError, match=f"Got pets {message}"):
        run("fig55", models="paper", **options(world))
    assert PretendedEncoder.calls == 0  # before anything is embedded
    sample = open_sample("sample")
    with pytest.raises(InputError, match=f"Got sample {message}"):
        run("fig55", collections=[replace(sample, prompt_templates=np.zeros_like(sample.prompt_templates))])


def test_captions_are_taken_where_they_can_be_embedded_only(tmp_path):
    with pytest.raises(ParameterError, match="sample has no encoders"):
        run("fig55", parameters={"captions": str(write(tmp_path))})
    with pytest.raises(ParameterError, match="fig4 has no parameter captions"):
        run("fig4", parameters={"captions": str(write(tmp_path))})


def test_class_prompts_are_said_to_be_no_captions():
    results = run("fig55", quick=True, collections=[open_sample("sample")]).results
    assert any("no captions here" in note and "needs a file of captions" in note for note in results["notes"])
