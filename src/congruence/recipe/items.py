"""The items of a recipe: pairs with their groups and wrong captions, split so that each group is in one part only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from congruence._utils.ids import id_rows
from congruence._utils.validation import check_same_rows
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import InputError, ParameterError
from congruence.io import open_rows, open_source, read_column, read_embeddings
from congruence.recipe.plan import Recipe
from congruence.splits import Split, duplicate_groups, unpaired_pools
from congruence.train.captions import Captions, read_captions
from congruence.train.rows import Rows

#: Size in bytes above which a file of unpaired rows is streamed instead of read into memory.
MEMORY = 2**30

#: Unpaired rows of one side, one entry per file.
Unpaired: TypeAlias = list[Embeddings | Rows] | None


@dataclass(frozen=True)
class LabeledPairs:
    """Pairs with their groups, wrong captions and tasks.

    Pairs of equal ``groups`` (n,) stay in the same part of a split, and count as hits for each other; ``negatives`` (n,
    k, d_target) are the wrong captions, of the kinds ``tasks`` (n,); ``by_id``: paired by the ids of both files, not by
    position.
    """

    pairs: Pairs
    groups: np.ndarray
    negatives: np.ndarray | None = None
    tasks: np.ndarray | None = None
    by_id: bool = True

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, which: np.ndarray) -> LabeledPairs:
        """Return some of the items, selected by a mask or by row numbers."""
        negatives, tasks = (None if part is None else part[which] for part in (self.negatives, self.tasks))
        return LabeledPairs(self.pairs.take(which), self.groups[which], negatives, tasks, self.by_id)

    def sides(self) -> tuple[Embeddings, Embeddings]:
        """Return both sides, without ids if the rows were paired by position."""
        if self.by_id:
            return self.pairs.source, self.pairs.target
        source, target = (Embeddings(side.vectors, space=side.space) for side in (self.pairs.source, self.pairs.target))
        return source, target

    def captions(self) -> Captions:
        """Return the vectors as float32, without ids."""
        X, Y = (np.asarray(side, np.float32) for side in self.pairs)
        return Captions(X, Y, self.negatives, self.groups)


def read_items(recipe: Recipe, spaces: tuple[Space, Space]) -> LabeledPairs:
    """Read the pairs of a recipe, their groups, tasks and wrong captions."""
    sides, by_id = _read_sides(recipe.pairs, spaces)
    pairs = Pairs.join(*sides)
    order = id_rows(sides[1].ids, pairs.target.ids)
    columns = []
    for name in ("groups", "tasks"):
        spec, column = getattr(recipe, name), None
        if spec not in (None, "identical", "none"):
            column = read_column(spec)
            check_same_rows(len(sides[1]), len(column), f"the captions ({recipe.pairs[1]})", name)
            column = column[order]
        columns.append(column)
    negatives = None
    if recipe.negatives is not None:
        wrong = read_embeddings(recipe.negatives)
        negatives = read_captions(sides[0], sides[1], wrong if by_id else wrong.vectors).negatives
    groups = columns[0] if columns[0] is not None else group(recipe, pairs)
    return LabeledPairs(pairs, groups, negatives, columns[1], by_id)


def group(recipe: Recipe, pairs: Pairs) -> np.ndarray:
    """Return a label for each pair, the same for pairs with identical vectors unless ``groups="none"``."""
    return np.arange(len(pairs)) if recipe.groups == "none" else duplicate_groups(pairs.source, pairs.target)


def hold_out(
    recipe: Recipe, name: str, items: LabeledPairs, total: int, seed: int
) -> tuple[LabeledPairs | None, LabeledPairs, Split | None]:
    """Return the items held out for validation or test, the remaining items, and the split, None if the recipe names
    other files; a share refers to ``total`` pairs.
    """
    amount = getattr(recipe, name)
    if isinstance(amount, tuple):
        pairs = Pairs.join(*_read_sides(amount, (items.pairs.source.space, items.pairs.target.space))[0])
        return LabeledPairs(pairs, group(recipe, pairs)), items, None
    count = round(amount * total) if amount < 1 else amount
    if not count:
        return None, items, None
    split = Split.choose(items.pairs.ids, count, seed, items.groups)
    held_out = split.held_out(items.pairs.ids)
    return items.take(held_out), items.take(~held_out), split


def keep_some(
    items: LabeledPairs, keep: int, unpaired: list[Unpaired], seed: int, overlap: float = 0.0
) -> tuple[LabeledPairs, list[Unpaired]]:
    """Keep some pairs, and remove the partners of the others, with each side in its own random order; ``overlap`` is
    the share of the items of each pool that are in the other too.
    """
    if keep > len(items):
        raise ParameterError(
            f"Got `keep_pairs={keep}` with {len(items)} pairs left to train on.",
            f"Pass `keep_pairs={len(items) // 2}`.",
        )
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(len(items))
    sides = items.pairs.source, items.pairs.target
    left = order[keep:]
    pools = [left, left]
    if overlap < 1 and len(left):
        # Split by group, because every caption of an image is its partner.
        pools = [
            left[pool]
            for pool in unpaired_pools(items.groups[left], items.groups[left], overlap, random_state=[seed, 3])
        ]
    added = [side.take(rng.permutation(pool)) for side, pool in zip(sides, pools, strict=True)]
    extended = [[*(rows or []), part] if len(part) else rows for rows, part in zip(unpaired, added, strict=True)]
    return items.take(np.sort(order[:keep])), extended


def read_unpaired(files: Sequence[str]) -> Unpaired:
    """Open files of unpaired rows, or None; those that fit in memory are read with ids, to detect pairs among them."""
    opened: list[Embeddings | Rows] = []
    for file in files:
        source = open_source(file)
        small = source.n * source.dim * source.dtype.itemsize <= MEMORY
        opened.append(source.read() if small else open_rows(file, memory=MEMORY))
    return opened or None


def _read_sides(files: tuple[str, str], spaces: tuple[Space, Space]) -> tuple[list[Embeddings], bool]:
    """Return both sides with ids, and whether the ids come from the files."""
    sides = [read_embeddings(file, space=space) for file, space in zip(files, spaces, strict=True)]
    if all(side.has_ids for side in sides):
        return sides, True
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"Got {len(sides[0])} rows in {files[0]} and {len(sides[1])} in {files[1]}, without ids.",
            "Add a column named id to both files.",
        )
    # Without ids on both sides, rows are paired by position, which also provides the ids that a split needs.
    names = [str(i) for i in range(len(sides[0]))]
    return [Embeddings(side.vectors, ids=names, space=side.space) for side in sides], False
