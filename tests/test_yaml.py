"""YAML from other people: what is refused before anything is built of it, and that it takes no time."""

import subprocess
import sys
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from congruence._utils.yaml import MAX_BYTES, MAX_DEPTH, find_line, parse_yaml, read_yaml
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
    "number": ("a: " + "9" * 5000, "not YAML"),
    "empty number": ("a: !!int ''", "not YAML"),
    "binary": ("a: 0b_", "not YAML"),
    "date": ("a: 2001-99-99", "not YAML"),
    "flag": ("a: !!bool maybe", "not YAML"),
    "surrogate": ('a: "\\ud800"', "not YAML"),
    "control": ("a: \x00", "not YAML"),
    "list as key": ("? [a]\n: b", "not YAML"),
    "two documents": ("a: 1\n---\nb: 2", "not YAML"),
}


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


def test_a_text_is_read_once(monkeypatch):
    """Checked and built in one pass: scanning is most of what YAML costs."""
    read, reader = [], yaml.reader.Reader.__init__
    monkeypatch.setattr(yaml.reader.Reader, "__init__", lambda self, text: read.append(text) or reader(self, text))
    assert parse_yaml("a: [1, 2]", "x") == {"a": [1, 2]}
    assert read == ["a: [1, 2]"]


LINED = """# a comment
seed: 3
grid:
  dim: [8, 16]
  ridge:
    - 0.1
    - x
"a b": {deep: {er: 1,
  est: 2}}
7: seven
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("seed",), 2), (("grid",), 3), (("grid", "dim", 1), 4), (("grid", "ridge"), 5), (("grid", "ridge", 1), 7),
        (("grid", "ridge", 9), 5), (("a b", "deep", "est"), 9), ((7,), 10), (("seed", "int"), 2), (("none",), None),
        ((), None),
    ],
)  # fmt: skip
def test_an_entry_has_a_line(path, line):
    assert find_line(LINED, path) == line


CHILD = """
import resource, sys
from congruence._utils.yaml import parse_yaml, read_yaml
from congruence.errors import CorruptFileError
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
for text in sys.argv[1:]:
    try:
        str(parse_yaml(read_yaml(text, "a recipe") if text[0] == "/" else text, "x"))
    except CorruptFileError:
        print("refused")
"""


def test_a_bomb_costs_a_process_neither_time_nor_memory():
    texts = [BOMB, "a: &a [*a]", "{a: " * 30_000, "/dev/zero"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *texts], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.split() == ["refused"] * len(texts), done.stderr[-2000:]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="Got no file"):
        read_yaml(tmp_path / "none.yaml", "a recipe")
    with pytest.raises(FileError, match="cannot be read"):
        read_yaml(tmp_path, "a recipe")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(CorruptFileError, match="UTF-8"):
        read_yaml(tmp_path / "latin.yaml", "a recipe")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["sail", "a.npz"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dim", "seed", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
ENTRIES = [
    "validation",
    "test",
    "seed",
    "keep_pairs",
    "parameters",
    "grid",
    "groups",
    "unpaired_source",
    "pairs",
    "tasks",
]


@given(st.dictionaries(st.sampled_from(ENTRIES), VALUES, min_size=1, max_size=3))
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
