"""What errors and warnings say: "Got …; expected …. <What to do, naming the argument, flag or column>."."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer

import congruence
from congruence import errors
from congruence.cli import app
from congruence.cli._base import name_flags

SOURCES = Path(congruence.__file__).parent

#: Words that scikit-learn's checks of estimators look for.
NOT_GOT = {
    "Got {} with 0 feature(s) (shape=({}, 0)) while a minimum of 1 is required. Expected vectors with at least one "
    "dimension. Read another key or column.",
    "X has {} features, but {} is expecting {} features as input. {}.",
    "{} requires y to be passed, but the target y is None; expected the target rows. Call fit(X, Y).",
}

VAGUE = re.compile(
    r"(Correct|Check|Fix|Change|Mend|Convert|Drop|Lower|Raise|Swap|Choose|Name|Add|Pass|Fill|Write)( it| them| one| some| another| these)?\.( |$)"
)


def text_of(node: ast.AST) -> str | None:
    """Return a message with {} for what is filled in, or None for one that is made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (text_of(node.left) or "{}") + (text_of(node.right) or "{}")
    return None


@cache
def messages() -> list[tuple[str, str]]:
    classes = {name for name, item in vars(errors).items() if isinstance(item, type)} | {"warn"}
    calls: list[tuple[str, str, ast.Call]] = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and classes & {getattr(base, "id", "") for base in node.bases}:
                classes.add(node.name)
            elif isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                calls.append((name, f"{path.relative_to(SOURCES).as_posix()}:{node.lineno}", node))
    texts = [(place, text_of(call.args[0])) for name, place, call in calls if name in classes]
    return [(place, text) for place, text in texts if text is not None]


@cache
def commands() -> dict:
    return typer.main.get_command(app).commands


def offenders(wrong) -> list[str]:
    return [f"{place} {text}" for place, text in messages() if wrong(place, text)]


def test_every_message_is_found():
    assert len(messages()) > 550


def test_messages_say_what_was_got_and_what_was_expected():
    def wrong(place, text):
        return text not in NOT_GOT and not (
            text.startswith(("Got ", "{}; expected")) and ("; expected" in text or "; {}" in text)
        )

    assert not offenders(wrong)


def test_messages_end_in_a_sentence_that_says_what_to_do():
    def wrong(place, text):
        advised = re.search(r"[^.]\. \S", text) or text.endswith(("{}", "{}.", "{}). {}."))
        return not advised or not text.endswith((".", "{}")) or re.search(r"[^.]\.\.( |$)", text)

    assert not offenders(wrong)


def test_messages_do_not_end_in_what_says_nothing():
    assert not offenders(
        lambda place, text: VAGUE.search(text) or re.search(r"; do |\bdo (use|pass|check|add|drop)\b", text)
    )


def test_no_sentence_begins_with_a_small_letter():
    assert not offenders(lambda place, text: re.search(r"[^.…]\. [a-z]", re.sub(r"\d\. |pandas|e\.g\. ", "", text)))


def test_private_words_do_not_reach_users():
    words = r"\bcarr(y|ies|ied)\b|wrong way round|there and back|nobody knows|goes on where|regularis|normalis|neighbour|colour"
    assert not offenders(lambda place, text: re.search(words, text))


def test_flags_are_named_by_commands_only_and_exist():
    """The library names arguments; what runs another command may show its flags."""
    known = {
        text
        for command in commands().values()
        for option in command.params
        for text in option.opts + option.secondary_opts
    }

    def wrong(place, text):
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        if place.startswith("cli/"):
            return flags - known - {"--query-"}
        return flags and "congruence " not in text

    assert not offenders(wrong)


# ------------------------------------------------------------------ arguments become flags


@pytest.mark.parametrize(
    ("command", "library", "typed"),
    [
        (
            "fit",
            "Got holdout=2.5; expected less. Pass holdout=0.2.",
            "Got --holdout 2.5; expected less. Pass --holdout 0.2.",
        ),
        ("fit", "Got method='pca'; expected 'cca'.", "Got --method pca; expected 'cca'."),
        ("fit", "Pass force=True to replace it.", "Pass --force to replace it."),
        ("fit", "Got check=False.", "Got --no-check."),
        ("fit", "or groups=None to split row by row.", "or --groups none to split row by row."),
        ("fit", "Pass a shrinkage_strength=… above 0.", "Pass a --shrinkage-strength above 0."),
        ("fit", "Got allow_reflection=False.", "Got --no-reflection."),
        ("fit", 'Pass missing="drop" or modality=….', "Pass --missing drop or --modality."),
        ("similarity", "Got random_state=-1.", "Got --seed -1."),
        ("similarity", "Pass metrics=….", "Pass --metric."),
        ("report", "or held_out=False to measure on all rows.", "or --all to measure on all rows."),
        ("train", "Got method='x'.", "Got METHOD x."),
        ("train", "Got n_components=-1 and alpha=…, nonsense=3.", "Got --set n_components=-1 and alpha=…, nonsense=3."),
        ("train", "Got --set n_components=3.", "Got --set n_components=3."),
        ("inspect", "Pass holdout=0.2.", "Pass holdout=0.2."),
        (
            "fit",
            "Got no file at a/ids=3.npy, b.npz:ids=3 or 'ids=3'.",
            "Got no file at a/ids=3.npy, b.npz:ids=3 or 'ids=3'.",
        ),
        ("embed", "Got layer=-9 of hf:a/b#layer=-9.", "Got --layer -9 of hf:a/b#layer=-9."),
        ("fit", "Got kind='a b', as x.ids=3.", "Got kind='a b', as x.ids=3."),
        (
            "fit",
            "Drop them, or pass allow_zero_rows=True where they are read.",
            "Drop them, or pass --allow-zero-rows where they are read.",
        ),
        ("drift", "Drop them, or pass allow_zero_rows=True where they are read.", "Drop them."),
        ("drift", "Drop them, or pass ridge=1.0 or more. Look.", "Drop them. Look."),
        ("train", "Add rows, or pass alpha=0.5 here.", "Add rows, or pass --set alpha=0.5 here."),
        ("demo", "expected a new one. Pass force=True to replace it.", "expected a new one. Pass another path."),
    ],
)
def test_a_message_names_flags_of_the_command(command, library, typed):
    assert (
        name_flags(
            library, commands()[command].params, frozenset({"n_components", "alpha"} if command == "train" else ())
        )
        == typed
    )


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    np.savez(tmp_path / "a.npz", v=X)
    np.savez(tmp_path / "b.npz", v=X @ np.linalg.qr(rng.normal(size=(4, 4)))[0])
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "a.npz", "b.npz", "-o", "m", "--method", "pca"], "Got --method pca; expected one of"),
        (["fit", "a.npz", "b.npz", "-o", "m", "--holdout", "90"], "Pass a smaller --holdout."),
        (["fit", "a.npz", "b.npz", "-o", "m", "--method", "cca", "--n-components", "0"], "Got --n-components 0; expected an integer > 0. Pass --n-components 1 or more."),
        (["similarity", "a.npz", "b.npz", "--permutations", "-1"], "Got --permutations -1; expected an integer"),
        (["similarity", "a.npz", "b.npz", "--metric", "nonsense"], "Got --metric nonsense"),
        (["match", "a.npz", "b.npz", "--rows", "900"], "Got --rows 900 for 40 pairs; expected 8 to 40. Pass --rows 40"),
        (["train", "csa", "--pairs", "a.npz,b.npz", "-o", "m", "--set", "n_components=0"], "Got --set n_components=0; expected an integer > 0. Pass --set n_components=1 or more."),
        (["train", "nonsense", "--pairs", "a.npz,b.npz", "-o", "m"], "Got METHOD nonsense; expected one of"),
        (["embed", "hf:x", "caltech101", "-o", "m"], "Pass --root"),
    ],
)  # fmt: skip
def test_commands_name_what_to_type(here, files, arguments, said):
    result = here(*arguments)
    assert result.code == 2
    assert said in result.err
    assert result.err.startswith("error: ")


def test_python_names_arguments(files):
    X = np.load(files / "a.npz")["v"]
    with pytest.raises(errors.TooFewAnchorsError, match=r"Pass a smaller holdout=…\."):
        congruence.fit(congruence.Embeddings(X), congruence.Embeddings(X), holdout=39)
    with pytest.raises(
        errors.ShapeError, match=r"Got 40 rows of source and 39 rows of target; .* Pass ids=… for both sides"
    ):
        congruence.fit(congruence.Embeddings(X), congruence.Embeddings(X[1:]))
    (files / "taken").mkdir()
    with pytest.raises(errors.OutputExistsError, match=r"Pass force=True to replace it\."):
        congruence.fit(congruence.Embeddings(X), congruence.Embeddings(X)).save(files / "taken")


def test_warnings_name_flags_too(here, files):
    with np.load(files / "b.npz") as b:
        np.savez(files / "turned.npz", v=np.roll(b["v"], 7, axis=0))
    result = here("fit", "a.npz", "turned.npz", "-o", "m")
    assert result.code == 0
    assert "or pass --ids to pair them by id" in result.err
