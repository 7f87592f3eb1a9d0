"""Models as functions, and what the common base refuses of any encoder."""

import os
import signal

import numpy as np
import pytest

from congruence import read_embeddings
from congruence.embed import embed, open_items
from congruence.embed.inputs import Items
from congruence.encoders import TowerEncoder, load_towers
from congruence.errors import DatabaseUnavailableError, FileError, NotFiniteError, ParameterError, ShapeError
from fresh import run_fresh

WORDS = ["sky", "red bird", "the big dog", "a photo of the cat"]


def letters(texts):
    return np.array([[len(text), text.count("a") + 1, ord(text[0]) if text else 0] for text in texts], float)


def tower(function=letters, **options) -> TowerEncoder:
    return load_towers({"text": function}, **{"name": "letters", "revision": "1", **options})["text"]


def test_towers_state_what_they_are():
    eyes_and_ears = load_towers(
        {"image": lambda images: [np.asarray(one).mean((0, 1)) for one in images], "text": letters},
        name="both", revision="7", normalize=True, prompt="a ",
    )  # fmt: skip
    facts = {"model": "both", "revision": "7", "dim": 3, "normalized": True}
    assert eyes_and_ears["image"].space.to_dict() == {**facts, "modality": "image"}
    assert eyes_and_ears["text"].space.to_dict() == {**facts, "modality": "text", "prompt": "a "}
    want = letters([f"a {text}" for text in WORDS])
    got = eyes_and_ears["text"].encode_all(WORDS, 2)
    np.testing.assert_allclose(got, want / np.linalg.norm(want, axis=1, keepdims=True), rtol=1e-6)
    assert len({tower().fingerprint, tower(revision="2").fingerprint, tower(prompt="a ").fingerprint}) == 3


def test_any_modality_can_have_a_tower():
    cells = load_towers({"other": lambda rows: np.array(rows)}, name="cells", revision="1", dim=2)["other"]
    np.testing.assert_array_equal(cells.encode_all([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]])
    with pytest.raises(ParameterError, match="modality='smell'"):
        load_towers({"smell": letters}, name="n", revision="1", dim=2)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda texts: letters(texts)[:-1] if len(texts) > 1 else letters(texts), ShapeError, r"\(3, 3\) for 4 items"),
        (lambda texts: letters(texts)[:, : 4 - len(texts) // 2], ShapeError, r"\(4, 2\).*expected \(4, 3\)"),
        (lambda texts: letters(texts)[None], ShapeError, "shape"),
        (lambda texts: [[1.0], [1.0, 2.0]], ShapeError, "no matrix of numbers|inhomogeneous"),
        (lambda texts: [["x"] * 3] * len(texts), ShapeError, "no matrix of numbers"),
        (lambda texts: letters(sorted(texts)), ShapeError, "another order"),
        (lambda texts: letters(texts[::-1]), ShapeError, "another order"),
        (lambda texts: np.roll(letters(texts), 1, axis=0), ShapeError, "another order"),
        (
            lambda texts: letters(texts) * [[np.nan] if text == WORDS[2] else [1] for text in texts],
            NotFiniteError,
            "'2'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_wrong_vectors_are_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        tower(wrong).encode_all(WORDS, 4)


def test_a_function_that_varies_a_little_is_not_taken_for_another_order():
    rng = np.random.default_rng(0)
    noisy = tower(lambda texts: letters(texts) * (1 + 1e-3 * rng.normal(size=(len(texts), 1))))
    assert noisy.encode_all(WORDS * 3, 4).shape == (12, 3)
    assert tower(lambda texts: np.ones((len(texts), 3))).encode_all(WORDS, 4).shape == (4, 3)


def numbered(n, start=0):
    texts = [f"{k} item" for k in range(start, n)]
    return Items.of_texts("numbers", [f"i{k}" for k in range(start, n)], texts)


N, BAD = 7400, 7301


class Counting:
    """Numbers as vectors; fails as ordered."""

    def __init__(self, fail=None):
        self.seen, self.fail = [], fail

    def __call__(self, texts):
        numbers = [int(text.split()[0]) if text[0].isdigit() else 1 for text in texts]
        if self.fail and BAD in numbers:
            self.fail(numbers)
        self.seen += numbers
        return np.array([[number + 1, number % 7, 1.0] for number in numbers])


def stop(error):
    def fail(numbers):
        raise error

    return fail


@pytest.mark.parametrize("cache", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), DatabaseUnavailableError("The server is gone.", "Run again.")])
def test_a_run_that_stops_at_an_item_encodes_no_item_twice(tmp_path, error, cache):
    items, out = numbered(N), tmp_path / "o.parquet"
    options = {"batch_size": 64, "cache": tmp_path / "cache" if cache else None}
    first = Counting(stop(error))
    with pytest.raises(type(error)):
        embed(tower(first), items, out, **options)
    again = Counting()
    report = embed(tower(again), items, out, **options)
    kept = BAD - BAD % 64
    assert (report.rows, report.resumed, report.encoded) == (N, kept, N - kept)
    assert not {number for number in again.seen[2:] if number < kept}  # but for the sample, and the test of the order
    np.testing.assert_array_equal(read_embeddings(out).vectors[:, 0], np.arange(N) + 1)


@pytest.mark.long
def test_an_item_that_the_model_cannot_take_is_named_or_left_out(tmp_path):
    items, out = numbered(N), tmp_path / "o.parquet"
    with pytest.raises(FileError, match=f"'i{BAD}'.*ValueError.*odd") as caught:
        embed(tower(Counting(stop(ValueError("odd")))), items, out, batch_size=64)
    assert "\n" not in str(caught.value)
    counting = Counting(stop(ValueError("odd")))
    report = embed(tower(counting), items, out, batch_size=64, on_error="skip")
    assert [one["id"] for one in report.failures] == [f"i{BAD}"]
    assert (report.rows, report.resumed) == (N - 1, BAD - BAD % 64 + 63)  # the others of its batch too


def test_an_encoder_that_loses_rows_stops_the_run_and_keeps_the_rest(tmp_path):
    def fewer(texts):
        return letters(texts)[: 63 if f"{BAD} item" in texts else None]

    items, out = numbered(N), tmp_path / "o.parquet"
    with pytest.raises(ShapeError, match=r"\(63, 3\) for 64 items"):
        embed(tower(fewer), items, out, batch_size=64, on_error="skip")
    assert embed(tower(), items, out, batch_size=64).resumed == BAD - BAD % 64


KILLED = """
import os, sys, signal
sys.path[:0] = sys.argv[2:]
from test_towers import BAD, N, Counting, embed, numbered, tower
from pathlib import Path
kill = lambda numbers: os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
embed(tower(Counting(kill)), numbered(N), folder / "o.parquet", batch_size=64, cache=folder / "cache")
"""


@pytest.mark.long
def test_a_killed_process_encodes_only_its_last_batch_again(tmp_path):
    here = os.path.dirname(__file__)
    ended = run_fresh(KILLED, str(tmp_path), here, os.path.dirname(here))
    assert ended.returncode == -signal.SIGKILL
    counting = Counting()
    report = embed(tower(counting), numbered(N), tmp_path / "o.parquet", batch_size=64, cache=tmp_path / "cache")
    kept = BAD - BAD % 64
    assert (report.rows, report.encoded) == (N, N - kept)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "o.parquet").vectors[:, 0], np.arange(N) + 1)


def test_a_prompt_given_to_the_function_is_not_cached_as_without(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(WORDS))
    for prompt in (None, "z "):
        report = embed(
            tower(prompt=prompt), open_items(tmp_path / "t.txt"), tmp_path / f"{prompt}.npz", cache=tmp_path / "c"
        )
        assert (report.encoded, report.cached) == (4, 0)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (3, {}, "Got int for the tower of text"),
        (lambda items: None, {}, r"an array of shape \(\)"),
        (lambda items: np.ones((len(items), 3)), {"dim": -1}, "dim=-1"),
        (lambda items: np.ones((len(items), 3)), {"rate": 0}, "rate=0"),
        (lambda items: np.ones((len(items), 3)), {"frames": 2.5}, "frames=2.5"),
    ],
)
def test_a_tower_that_cannot_be_one_is_refused(function, options, message):
    with pytest.raises((ParameterError, ShapeError), match=message):
        load_towers({"text": function}, name="m", revision="1", **options)
