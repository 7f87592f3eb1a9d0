"""YAML from other people: what is refused before anything is built of it, and that it takes no time."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence._utils.yaml import MAX_BYTES, MAX_DEPTH, parse_yaml, read_yaml
from congruence.errors import CongruenceError, CorruptFileError, FileError
from congruence.recipe import make_recipe

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 12)
)

BAD = {
    "bomb": (BOMB, "an alias; write the value out"),
    "loop": ("a: &a [*a]", "an alias"),
    "merge": ("a: &a {b: 1}\nc:\n  <<: *a", "an alias"),
    "deep list": ("[" * 100_000, "20 levels"),
    "deep mapping": ("{a: " * 50_000, "20 levels"),
    "deep block": ("".join(f"{' ' * k}a:\n" for k in range(600)), "20 levels"),
    "deep dashes": ("- " * 50_000 + "a", "20 levels"),
    "long": ("a: " + "b" * MAX_BYTES, "256 KiB"),
    "long outside ASCII": ("a: " + "é" * (MAX_BYTES // 2), "256 KiB"),
    "twice": ("seed: 1\nseed: 2", "'seed' twice"),
    "object": ("a: !!python/object/apply:os.getcwd []", "python/object"),
}
NOT_YAML = {
    **{"number": "a: " + "9" * 5000, "empty number": "a: !!int ''", "binary": "a: 0b_", "date": "a: 2001-99-99"},
    **{"flag": "a: !!bool maybe", "surrogate": 'a: "\\ud800"', "control": "a: \x00", "list as key": "? [a]\n: b"},
    "two documents": "a: 1\n---\nb: 2",
}
BAD |= {case: (text, "not YAML") for case, text in NOT_YAML.items()}


@pytest.mark.parametrize("case", BAD)
def test_hostile_yaml_is_one_sentence(case):
    text, said = BAD[case]
    with pytest.raises(CorruptFileError, match=said) as caught:
        parse_yaml(text, "own.yaml")
    assert str(caught.value).startswith("Got own.yaml")


def test_what_is_not_too_much_is_taken():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert str(parse_yaml(text, "x")) == text
    assert parse_yaml("a: [1, 2.5, true, null, 'x', 2001-01-01]", "x")["a"][:5] == [1, 2.5, True, None, "x"]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml", "a recipe")
    with pytest.raises(FileError, match="cannot be read"):
        read_yaml(tmp_path, "a recipe")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(CorruptFileError, match="256 KiB"):
        read_yaml("/dev/zero", "a recipe")  # no more is read than may be there
    with pytest.raises(CorruptFileError, match="UTF-8"):
        read_yaml(tmp_path / "latin.yaml", "a recipe")


KEYS = st.sampled_from(["dim", "seed", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["sail", "a.npz"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = ["validation", "test", "seed", "keep_pairs", "parameters", "grid", "groups", "unpaired_source", "pairs"]


@given(st.dictionaries(st.sampled_from([*ENTRIES, "tasks"]), VALUES, min_size=1, max_size=3))
def test_no_entry_of_a_recipe_is_a_traceback(entries):
    try:
        recipe = make_recipe({"method": "sail", "pairs": ["a.npz", "b.npz"], **entries})
    except CongruenceError:
        return
    assert type(recipe.seed) is int
    for heldout in (recipe.validation, recipe.test):
        assert isinstance(heldout, tuple) or (not isinstance(heldout, bool) and heldout >= 0)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_no_text_is_a_traceback(text):
    with suppress(CongruenceError):
        parse_yaml(text, "x")
