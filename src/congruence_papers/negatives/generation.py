"""Hard negatives of captions, made by rules or by a user-defined generator; of class names, by other classes."""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from congruence.embeddings import normalize_rows
from congruence.errors import CongruenceWarning, DtypeError, ParameterError, ShapeError
from congruence.metrics import nearest
from congruence.persist import atomic_path
from congruence_papers.core import check_choice, check_embedded, check_number, check_same_rows
from congruence_papers.negatives.caption import Caption, parse_caption
from congruence_papers.negatives.lexicon import Words, lexicon
from congruence_papers.negatives.rules import RULES
from congruence_papers.negatives.words import Edit, Sentence, changed_words, same_words

#: SugarCrepe's kinds of wrong captions.
KINDS = tuple(RULES)

#: Maximum number of calls of a generator per requested negative.
_TRIES = 10

#: ``(caption, kind, rng)`` to a wrong caption, or None; all random numbers must come from ``rng``.
Generator = Callable[[str, str, np.random.Generator], "str | None"]


@dataclass(frozen=True)
class Negative:
    """A caption and a version of it that is wrong in one detail."""

    caption: str
    negative: str
    kind: str
    changed: tuple[str, str]
    row: int


def generate(
    captions: Sequence[str],
    kinds: Sequence[str] = KINDS,
    per_caption: int = 1,
    random_state: int = 0,
    generator: Generator | None = None,
    *,
    groups: Sequence[object] | None = None,
) -> list[Negative]:
    """Make wrong captions by replacing a word, swapping two words, or adding an object or attribute.

    Parameters
    ----------
    captions : sequence of str, length n
        Captions; the rules expect English.
    kinds : sequence of str
        Some of ``KINDS``; with your own generator, any names.
    per_caption, random_state : int
        Largest number of different negatives of each kind per caption. The negatives of a caption depend on the seed,
        its row and the captions, but not on which other kinds are requested.
    generator : callable, optional
        ``(caption, kind, rng)`` to a wrong caption or ``None``; the rules by default. Texts with the words of a caption
        of the same item are skipped.
    groups : sequence, length n, optional
        The item, such as an image, that each caption describes. A negative is then never another caption of the same
        item, and the rules do not introduce anything that these captions mention.

    Returns
    -------
    list of Negative
        Ordered by caption, then as in ``kinds``; ``count`` returns for how many captions a kind has no valid edit.

    Notes
    -----
    Among the possible replacements of a word, one that occurs k times in ``captions`` is drawn k + 1 times as often as
    one that does not occur. With equal probabilities, negatives could be recognized by their rare words, without the
    image. The kinds are those of Hsieh et al. (2023), "SugarCrepe", section 3; see also Yoon, Yue and Kim (2025), 2.1.

    Examples
    --------
    >>> from congruence_papers.negatives import generate
    >>> kinds = ["replace_obj", "swap_obj", "swap_att", "add_att"]
    >>> for made in generate(["A black cat sits on a wooden chair."], kinds):
    ...     print(made.kind, "|", made.negative)
    replace_obj | A black rabbit sits on a wooden chair.
    swap_obj | A wooden chair sits on a black cat.
    add_att | A soaked black cat sits on a wooden chair.
    """
    texts = check_captions(captions)
    if isinstance(kinds, str) or not len(kinds) or not all(isinstance(kind, str) for kind in kinds):
        raise ParameterError(argument="kinds", got=kinds, expected=f"a list of {', '.join(KINDS)}")
    for kind in kinds if generator is None else ():
        check_choice(kind, KINDS, "kind")
    if generator is not None and not callable(generator):
        raise ParameterError(f"Got {generator!r} for a generator.", "Pass a callable (caption, kind, rng).")
    check_number(per_caption, "per_caption", integer=True)
    check_number(random_state, "random_state", zero=True, integer=True)
    others, frequencies = _others(texts, groups), _frequencies(texts)
    negatives = []
    for row, caption in enumerate(texts):
        parsed = parse_caption(caption, others[row]) if generator is None else None
        for kind in dict.fromkeys(kinds):
            rng = np.random.default_rng([random_state, crc32(kind.encode()), row])
            if parsed is not None:
                made = _from_rules(parsed, (caption, *others[row]), kind, per_caption, rng, frequencies)
            else:
                made = _from_generator(generator, (caption, *others[row]), kind, per_caption, rng)  # type: ignore[arg-type]
            negatives += [Negative(caption, text, kind, changed_words(caption, text), row) for text in made]
    return negatives


def count(negatives: Iterable[Negative], n: int, kinds: Sequence[str] = KINDS) -> dict[str, dict[str, int]]:
    """Count negatives, and captions without any, by kind."""
    rows: dict[str, list[int]] = {kind: [] for kind in kinds}
    for negative in negatives:
        rows.setdefault(negative.kind, []).append(negative.row)
    return {
        kind: {"negatives": len(own), "captions": len({*own}), "without": n - len({*own})} for kind, own in rows.items()
    }


def check_captions(captions: Iterable[str]) -> list[str]:
    """Return captions as a list of str, after checking that none is blank."""
    if isinstance(captions, (str, bytes)):
        raise DtypeError("Got one text for captions; expected a list of texts.", "Pass [text].")
    texts = list(captions)
    if not texts:
        raise ShapeError("No captions.", "Pass a file or column with captions.")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DtypeError(f"Got {text!r} for caption {row}; expected a text.", "Remove it, or convert it to str.")
        if not text.strip():
            raise ShapeError(f"Got a blank caption at row {row}; expected a text.", "Remove this row.")
    return [str(text) for text in texts]


def _others(texts: list[str], groups: Sequence[object] | None) -> list[tuple[str, ...]]:
    if groups is None:
        return [()] * len(texts)
    check_same_rows(len(texts), len(groups), "captions", "groups")
    members: dict[object, list[int]] = {}
    for row, item in enumerate(groups):
        members.setdefault(item, []).append(row)
    return [tuple(texts[k] for k in members[item] if k != row) for row, item in enumerate(groups)]


def _frequencies(texts: Iterable[str]) -> Counter[Words]:
    replacements = lexicon().replacements
    longest = max(map(len, replacements))
    counts: Counter[Words] = Counter()
    for text in texts:
        words = Sentence.parse(text).lower
        spans = (words[k : k + m] for m in range(1, longest + 1) for k in range(len(words) - m + 1))
        counts.update(span for span in spans if span in replacements)
    return counts


def _from_rules(
    parsed: Caption,
    known: tuple[str, ...],
    kind: str,
    limit: int,
    rng: np.random.Generator,
    frequencies: Mapping[Words, int],
) -> list[str]:
    """Draw positions in a random order, and an edit at each, until there are enough negatives."""
    positions = [list(edits) for edits in RULES[kind](parsed) if edits]
    made: list[str] = []
    while positions and len(made) < limit:
        for k in rng.permutation(len(positions)):
            if len(made) == limit:
                break
            weights = np.array([1.0 + frequencies.get(edit[0].words, 0) for edit in positions[k]])
            drawn = int(rng.choice(len(weights), p=weights / weights.sum()))
            text = parsed.sentence.apply(positions[k].pop(drawn))
            if _is_new(text, (*known, *made)):
                made.append(text)
        positions = [edits for edits in positions if edits]
    return made


def _from_generator(
    generator: Generator, known: tuple[str, ...], kind: str, limit: int, rng: np.random.Generator
) -> list[str]:
    """Call a generator until there are enough negatives, it returns None, or it was tried often enough."""
    made: list[str] = []
    for _ in range(limit * _TRIES):
        if len(made) == limit or (text := generator(known[0], kind, rng)) is None:
            break
        if isinstance(text, str) and _is_new(text, (*known, *made)):
            made.append(text)
    return made


def _is_new(text: str, known: Iterable[str]) -> bool:
    """Return whether a text has words, and not those of a known one."""
    return bool(Sentence.parse(text).words) and not any(same_words(text, other) for other in known)


def sibling_negatives(
    names: Sequence[str],
    classes: Sequence[str],
    similarity: ArrayLike | None = None,
    *,
    template: str = "a photo of a {}",
    per_caption: int = 1,
    random_state: int = 0,
) -> list[Negative]:
    """Replace the class in captions such as “a photo of a beaver” by its nearest other classes, or by random ones.

    Parameters
    ----------
    names, classes : sequence of str, length n and c
        Class name of each caption, and the names of all classes. Classes with the same name (ImageNet has two called
        *crane*) count as one.
    similarity : array_like, shape (c, d), optional
        Text embeddings of the classes; the nearest classes are those with the largest cosines. By default classes are
        drawn at random, by ``random_state``.
    template : str, default="a photo of a {}"
        Caption with one ``{}`` for the class name; an article before it is adjusted to the name.
    per_caption : int, default=1
        Number of negatives per caption, which are of the kind ``"sibling"``.

    Examples
    --------
    >>> from congruence_papers.negatives import sibling_negatives
    >>> vectors = [[1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]
    >>> sibling_negatives(["cat"], ["cat", "ocelot", "truck"], vectors)[0].negative
    'a photo of an ocelot'
    """
    labels, known = check_captions(names), check_captions(classes)
    check_number(per_caption, "per_caption", integer=True)
    check_number(random_state, "random_state", zero=True, integer=True)
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ParameterError(argument="template", got=template, expected="a text with {} once")
    first = {name: k for k, name in reversed(list(enumerate(known)))}  # index of the first class with each name
    if missing := next((name for name in labels if name not in first), None):
        raise ParameterError(f"The name {missing!r} is not one of the {len(known)} classes.", "Add it to the classes.")
    if len(first) <= per_caption:
        raise ParameterError(f"Got {len(first)} classes for `per_caption={per_caption}`.", "Pass more.")
    distinct, own = np.array(sorted(first.values())), np.array([first[name] for name in labels])
    if similarity is None:
        rngs = [np.random.default_rng([random_state, row]) for row in range(len(labels))]
        chosen = [
            rng.choice(distinct[distinct != k], per_caption, replace=False) for rng, k in zip(rngs, own, strict=True)
        ]
    else:
        vectors = np.asarray(similarity, np.float64)
        if vectors.ndim != 2:
            raise ShapeError(f"Got similarity of shape {vectors.shape}; expected one row per class.", "Pass a matrix.")
        check_same_rows(len(known), len(vectors), "classes", "rows of similarity")
        check_embedded(vectors, "similarity")
        vectors = normalize_rows(vectors)[distinct]
        asked, place = np.unique(np.searchsorted(distinct, own), return_inverse=True)
        chosen = [*distinct[nearest(vectors[asked], per_caption, vectors, left_out=asked)][place]]
    captions = {name: _fill(template, name) for name in first}
    return [
        Negative(captions[name], wrong, "sibling", changed_words(captions[name], wrong), row)
        for row, name in enumerate(labels)
        for wrong in (captions[known[k]] for k in chosen[row])
    ]


def _fill(template: str, name: str) -> str:
    sentence, words = Sentence.parse(template.replace("{}", "x0x")), tuple(name.split())
    if "x0x" not in sentence.words:  # the placeholder touches other letters, so no article needs adjusting
        return template.replace("{}", name)
    place = sentence.words.index("x0x")
    return sentence.apply([Edit(place, place + 1, words)])


COLUMNS = ("id", "caption", "negative", "kind")


def write_negatives(
    negatives: Sequence[Negative], path: str | Path, ids: Sequence[str] | None = None, *, force: bool = False
) -> None:
    """Write wrong captions, with the columns ``id``, ``caption``, ``negative`` and ``kind``, to a ``.csv``, ``.jsonl``
    or ``.parquet``, atomically.

    ``ids`` are those of the original captions; row numbers by default. Cells of a ``.csv`` that a spreadsheet would
    evaluate as formulas are written unchanged, with a warning.
    """
    suffix = check_choice(Path(path).suffix.lower(), (".csv", ".jsonl", ".parquet"), "suffix of the output")
    if not negatives:
        raise ShapeError("No negatives.", "Pass captions in English, or more `kinds=…`.")
    last = max(negative.row for negative in negatives)
    if ids is not None and last >= len(ids):
        check_same_rows(last + 1, len(ids), "captions", "ids")
    rows = [(str(n.row if ids is None else ids[n.row]), n.caption, n.negative, n.kind) for n in negatives]
    risky = sum(any(cell.lstrip().startswith(("=", "+", "-", "@")) for cell in row) for row in rows)
    if suffix == ".csv" and risky:
        warnings.warn(
            CongruenceWarning(
                f"Got {risky} of {len(rows)} rows with a cell that begins with =, +, - or @; expected words, since a "
                "spreadsheet evaluates such cells as formulas.",
                "Write .jsonl or .parquet, or import the .csv as text.",
            ),
            stacklevel=2,
        )
    with atomic_path(path, force=force) as temporary:
        if suffix == ".parquet":
            pq.write_table(pa.table([*zip(*rows, strict=True)], names=COLUMNS), temporary)
            return
        with open(temporary, "w", newline="", encoding="utf-8") as stream:
            if suffix == ".csv":
                csv.writer(stream).writerows([COLUMNS, *rows])
            else:
                lines = (json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) for row in rows)
                stream.writelines(f"{line}\n" for line in lines)
