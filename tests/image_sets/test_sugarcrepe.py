"""SugarCrepe, a small one and the real one."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.datasets import load_sugarcrepe
from congruence.datasets.sugarcrepe import CATEGORIES, SugarCrepe
from congruence.errors import CorruptFileError, FileError, ParameterError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "sugarcrepe"


def item(k: int, image: int) -> dict[str, str]:
    return {"filename": f"{image:012d}.jpg", "caption": f"caption {k}", "negative_caption": f"wrong {k}"}


@pytest.fixture
def folder(tmp_path):
    for c, category in enumerate(CATEGORIES):
        keys = ("0", "3", "7") if category == "swap_obj" else ("0", "1", "2", "3")
        (tmp_path / f"{category}.json").write_text(json.dumps({key: item(int(key), c + int(key)) for key in keys}))
    return tmp_path


def test_items_keep_their_keys_and_texts(folder):
    data = load_sugarcrepe(folder)
    assert len(data) == 6 * 4 + 3
    assert data.ids[-3:].tolist() == ["swap_obj/0", "swap_obj/3", "swap_obj/7"]
    assert data.categories[-1] == "swap_obj"
    last = (data.filenames[-1], data.captions[-1], data.negative_captions[-1])
    assert last == ("000000000013.jpg", "caption 7", "wrong 7")
    assert len(data.images) == 11  # 0 to 9, and 13
    assert set(load_sugarcrepe(folder, ["swap_att", "swap_obj", "swap_att"]).categories) == {"swap_att", "swap_obj"}


def test_the_real_one():
    if not REAL.is_dir():
        pytest.skip("needs sugarcrepe of the shared test data, which is not beside this checkout")
    data = load_sugarcrepe(REAL)
    assert (len(data), len(data.images), len(set(data.ids.tolist()))) == (7511, 1560, 7511)
    names, counts = np.unique(data.categories, return_counts=True)
    assert names.tolist() == sorted(CATEGORIES)
    assert counts.tolist() == [692, 2062, 788, 1652, 1406, 666, 245]
    assert not (data.captions == data.negative_captions).any()
    train, rest = data.split_by_image(0.7, random_state=5)
    validation, test = rest.split_by_image(0.5, random_state=5)
    assert (len(train.images), len(validation.images), len(test.images)) == (1092, 234, 234)
    assert not set(train.images) & set(rest.images)
    # dividing items instead of images would have put most images of the rest among those trained on
    shuffled = np.random.default_rng(0).permutation(len(data))
    leaked = np.isin(data.filenames[shuffled[5257:]], data.filenames[shuffled[:5257]]).mean()
    assert leaked > 0.9


@given(
    images=st.lists(st.integers(0, 30), min_size=4, max_size=80).filter(lambda x: len(set(x)) > 4),
    train=st.floats(0.4, 0.8),
    seed=st.integers(0, 9),
)
def test_no_image_is_on_both_sides_and_no_item_is_lost(images, train, seed):
    names = np.array([f"{k}.jpg" for k in images])
    ids = np.array([f"swap_att/{k}" for k in range(len(images))])
    data = SugarCrepe(ids, np.full(len(ids), "swap_att"), names, ids, ids)
    first, rest = data.split_by_image(train, seed)
    assert not set(first.images) & set(rest.images)
    assert sorted([*first.ids, *rest.ids]) == sorted(ids)
    assert len(first.images) == round(train * len(set(images)))
    again = data.take(np.arange(len(ids))[::-1]).split_by_image(train, seed)[0]
    assert set(again.images) == set(first.images)  # whatever the order of the items


def test_other_seeds_divide_otherwise(folder):
    data = load_sugarcrepe(folder)
    assert len({tuple(data.split_by_image(0.5, seed)[0].images) for seed in range(5)}) > 1


@pytest.mark.parametrize("train", [0, 1, -0.1, 1.5, float("nan"), "0.7", 0.999, 0.001])
def test_shares_that_leave_a_side_empty(train, folder):
    with pytest.raises(ParameterError, match="train="):
        load_sugarcrepe(folder).split_by_image(train)


def test_files_that_are_missing_or_unknown(folder):
    with pytest.raises(ParameterError, match="'swap_rel'.*'add_att'"):
        load_sugarcrepe(folder, ["swap_rel"])
    for odd in ("swap_att", []):
        with pytest.raises(ParameterError, match="a list"):
            load_sugarcrepe(folder, odd)
    (folder / "add_obj.json").unlink()
    with pytest.raises(FileError, match=r"add_obj\.json.*sugar-crepe"):
        load_sugarcrepe(folder)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[" * 100_000, "[]", "{}", '{"0": []}', '{"0": {"filename": "a.jpg", "caption": "x"}}'),
        '{"0": {"filename": "a.jpg", "caption": "x", "negative_caption": 3}}',
        '{"0": {"filename": "a.jpg", "caption": "x", "negative_caption": " "}}',
    ],
)
def test_files_that_are_no_annotations(content, folder):
    (folder / "add_att.json").write_text(content)
    with pytest.raises(CorruptFileError, match=r"add_att\.json"):
        load_sugarcrepe(folder)
