"""Wrong captions made by the rules, compared with SugarCrepe's: how many captions have one, how much it changes, and
whether words alone give it away.

"Told blind" is the share of pairs in which a linear classifier on words and word pairs, trained on the pairs of other
images, identifies the wrong caption without seeing an image; the ideal is 0.5. Both sides have the same number of
pairs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import vstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from common import arguments, write_json
from congruence.datasets import load_sugarcrepe
from congruence_papers.negatives import KINDS, generate
from congruence_papers.negatives.words import Sentence


def distance(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Return the number of words to insert, delete or replace."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


def kept(first: tuple[str, ...], second: tuple[str, ...]) -> float:
    """Return the share of a caption's words that also occur in the other one, counted with multiplicity."""
    return sum(min(first.count(word), second.count(word)) for word in set(first)) / len(first)


def told_blind(captions: list[str], negatives: list[str], groups: list[str]) -> float:
    """Return the accuracy of a classifier that sees only words, over five folds of images."""
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b").fit([*captions, *negatives])
    change = (counts.transform(negatives) - counts.transform(captions)).astype(float).tocsr()
    right = np.empty(len(captions), dtype=bool)
    for train, test in GroupKFold(5).split(captions, groups=groups):
        both = vstack([change[train], -change[train]])
        model = LogisticRegression(C=1.0, fit_intercept=False, max_iter=500)
        model.fit(both, np.repeat([1, 0], len(train)))
        right[test] = model.decision_function(change[test]) > 0
    return float(right.mean())


def measure(captions: list[str], negatives: list[str], images: list[str], most: int) -> list[str]:
    """Return the cells of a table row; the classifier of words is trained on at most ``most`` pairs."""
    words = [(Sentence.parse(a).lower, Sentence.parse(b).lower) for a, b in zip(captions, negatives, strict=True)]
    quartiles = np.percentile([distance(a, b) for a, b in words], [25, 50, 75])
    drawn = np.random.default_rng(0).permutation(len(captions))[:most]
    sides = ([side[k] for k in drawn] for side in (captions, negatives, images))
    blind = f"{told_blind(*sides):.2f}"
    return ["/".join(f"{q:.0f}" for q in quartiles), f"{np.mean([kept(a, b) for a, b in words]):.2f}", blind]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data/sugarcrepe", help="folder of SugarCrepe's files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--read", type=int, default=0, help="print this number of random negatives instead, alternating between kinds"
    )
    options = parser.parse_args()
    data = load_sugarcrepe(Path(options.data))
    image = dict(zip((text.strip() for text in data.captions.tolist()), data.filenames.tolist(), strict=True))
    texts = sorted(image)
    made = generate(texts, random_state=options.seed)
    if options.read:
        rng = np.random.default_rng(options.seed)
        for number in range(options.read):
            ours = [one for one in made if one.kind == KINDS[number % len(KINDS)]]
            one = ours[rng.integers(len(ours))]
            print(f"{number + 1}. {one.kind}\n   {one.caption}\n   {one.negative}")
        return
    print(
        "| kind | of all | of its own | edit, SugarCrepe | edit, rules | kept, SugarCrepe | kept, rules | blind, "
        "SugarCrepe | blind, rules |"
    )
    print("|" + " --- |" * 9)
    lines = {}
    for kind in KINDS:
        ours = [one for one in made if one.kind == kind]
        theirs = data.take(data.categories == kind)
        own = {text.strip() for text in theirs.captions.tolist()}
        have = {one.caption for one in ours}
        a = measure(theirs.captions.tolist(), theirs.negative_captions.tolist(), theirs.filenames.tolist(), len(ours))
        b = measure(
            [o.caption for o in ours], [o.negative for o in ours], [image[o.caption] for o in ours], len(theirs)
        )
        cells = [f"{len(have) / len(texts):.3f}", f"{len(own & have) / len(own):.3f}"]
        cells += [cell for pair in zip(a, b, strict=True) for cell in pair]
        print(f"| `{kind}` | " + " | ".join(cells) + " |")
        lines[kind] = cells
    write_json(options, {"captions": len(texts), "lines": lines})


if __name__ == "__main__":
    main()
