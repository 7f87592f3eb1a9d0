"""The certified map: how it is chosen, and how it is fitted on anchors without some of their folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from congruence.compare.origins import remember_rows
from congruence.embeddings import UNNAMED, Space, has_unit_rows
from congruence.errors import ModalityError, ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.linalg.shrinkage import DEFAULT_STRENGTH
from congruence.maps import METHODS, AffineMap, LinearMap, OrthogonalMap
from congruence.upgrade.certify.design import Others, PairedTables
from congruence.upgrade.choose import OFFSET, Candidate, Choice, choose_map, count_distinct, measure_quality
from congruence.upgrade.readouts import choose_readout

#: Role in which each strategy reads mapped rows.
ROLES = {"stored": "store", "queries": "query"}


@dataclass(eq=False)
class TwoWay:
    """A fitted map, and what a linear map, which has no inverse, needs beside it."""

    forward: OrthogonalMap | LinearMap
    fitted_back: LinearMap | None = None  # of a linear map: the same method with the sides exchanged
    sums: CrossMoments | None = None  # of a linear map's anchors
    others: Others | None = None  # texts whose means it knows

    @cached_property
    def _inverse(self) -> OrthogonalMap:
        return cast("OrthogonalMap", self.forward).inverse()

    def to_target(self, modality: str | None) -> AffineMap:
        """Return the map for stored vectors of a modality."""
        return self.forward.in_use(modality, ROLES["stored"])

    def to_source(self, modality: str | None) -> AffineMap:
        """Return the map for the target model's queries of a modality."""
        return (self.fitted_back or self._inverse).in_use(modality, ROLES["queries"])

    def without(self, fold: int) -> TwoWay:
        """Return the map whose means have not seen one fold of the texts."""
        if self.others is None or fold < 0 or not isinstance(self.forward, OrthogonalMap):
            return self
        model = self.forward.recenter(*self.others.means(fold), modality=self.others.modality, use=False)
        model.readout_, model.role_ = self.forward.readout_, self.forward.role_
        return TwoWay(model)

    def covered_share(self, modality: str | None, rows: np.ndarray) -> np.ndarray:
        """Return the share of each row's variance (norm²) in directions the anchors cover, shape (m,)."""
        if isinstance(self.forward, OrthogonalMap):
            return self.forward.for_modality(modality).covered_share(rows)
        sums = cast("CrossMoments", self.sums)
        values, vectors = np.linalg.eigh(
            cast("np.ndarray", sums.gram if self.forward.center else sums.uncentered_gram())
        )
        basis = vectors[:, values > len(values) * np.finfo(np.float64).eps * values[-1]]
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))


#: Kind of map by method that can be certified, and what it is by default: maps of one model's vectors into the other's
#: space, of which there is one for queries too.
CERTIFIED = {
    "auto": ("", ""),
    "orthogonal": ("rotation", " about the means"),
    "linear": ("linear map", ", ridge regression"),
}


@dataclass(frozen=True)
class MapRecipe:
    """How a map is chosen and fitted on anchors."""

    fitted: Sequence[str]  # modalities
    method: str = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    single_modality: bool = False  # linear maps may be chosen
    random_state: int = 0

    def check(self, tables: PairedTables) -> None:
        """Refuse methods and modalities that cannot be fitted or certified."""
        if self.method not in CERTIFIED:
            known = "a one-sided linear method" if self.method in METHODS else "a method"
            raise ParameterError(
                argument="method",
                got=self.method,
                expected=f"{known} out of {', '.join(CERTIFIED)}",
                fix=("Pass `method='auto'`.", "Compare other maps on held-out pairs: `congruence.evaluate`."),
            )
        if self.single_modality and (self.method != "auto" or tables.store_modality != tables.query_modality):
            got = f"{tables.store_modality} and {tables.query_modality} rows"
            if self.method != "auto":
                got = f"method={self.method!r}"
            raise ModalityError(f"Got `single_modality=True` and {got}; expected one modality.", "Leave it out.")
        if self.method == "linear" and len(self.fitted) > 1:
            raise ModalityError(
                f"A linear map takes one modality: {' and '.join(self.fitted)}.", f"Pass `fitted={self.fitted[0]!r}`."
            )

    def choose(self, tables: PairedTables, train: np.ndarray) -> Choice:
        """Choose the map from the given rows (t,) of the fitted modality only, as ``congruence.fit`` would.

        Several modalities together are fitted by a rotation, which is chosen on the pairs of the first.
        """
        X, Y = (side[self.fitted[0]][train] for side in (tables.source, tables.target))
        if self.method == "auto":
            options: dict[str, Any] = {"fixed": self.parameters, "random_state": self.random_state}
            return choose_map(X, Y, single_modality=self.single_modality, **options)
        kind, default = CERTIFIED[self.method]
        name = kind + (f" with {_listed(self.parameters)}" if self.parameters else default)
        candidate = Candidate(name, self.method, self.parameters)
        quality = measure_quality(X, Y, candidate)
        evidence = f"method={self.method!r} was given, so nothing was compared"
        return candidate.chosen(evidence, quality)

    def fit(
        self, tables: PairedTables, train: np.ndarray, choice: Choice | None = None, others: Others | None = None
    ) -> TwoWay:
        """Fit on the given rows. A rotation also gets the means of the other modality, of the same items."""
        choice = self.choose(tables, train) if choice is None else choice
        fold = np.full(len(tables.ids[self.fitted[0]]), -1)
        fold[train] = 0
        return AnchorFolds(self, tables, fold, others).fit([0], choice)

    def finish(
        self,
        fitted: TwoWay,
        tables: PairedTables,
        choice: Choice,
        spaces: tuple[Space, Space],
        others: Others | None,
        *,
        back: bool = False,
    ) -> OrthogonalMap | LinearMap:
        """Return the map fitted on all rows, with what it is fitted on and why; or what maps queries ``back``."""
        first, model = self.fitted[0], fitted.forward
        modality = None if len(self.fitted) > 1 or first == UNNAMED else first
        sides = [dict(side) for side in (tables.source, tables.target)]
        if others is not None:
            for side, rows in zip(sides, others.means(None), strict=True):
                side[others.modality] = rows
        if back and fitted.fitted_back is not None:
            model, spaces, sides = fitted.fitted_back, spaces[::-1], sides[::-1]
        model.source_space_, model.target_space_ = (
            replace(space, modality=modality, dim=own.dim, normalized=own.normalized)
            for space, own in zip(spaces, (model.source_space_, model.target_space_), strict=True)
        )
        pairs = sum(len(tables.source[name]) for name in self.fitted)
        distinct = count_distinct(sides[0][first])  # the rows on which the map is chosen
        if isinstance(model, LinearMap) and not back:  # its read-out has the name of its modality
            model.readout_ = choose_readout(model, choice.quality, (), ({}, {}))
        model.scores_ = {"n_pairs": pairs, "distinct": distinct, "choice": choice.to_dict()}
        known = self.fitted if isinstance(model, LinearMap) else {*sides[0], *sides[1]}
        source, target = (
            {None if name == UNNAMED else name: rows for name, rows in side.items() if name in known} for side in sides
        )
        remember_rows(model, source, target)
        return model.inverse() if back and isinstance(model, OrthogonalMap) else model

    def in_words(self, tables: PairedTables, choice: Choice) -> str:
        """Return how to fit this map: a command, or a Python call if no command can."""
        given, together = _listed(choice.parameters), " and ".join(self.fitted)
        if len(self.fitted) > 1:
            return f"OrthogonalMap({given}).fit(X, Y, modality=[…]) in Python, on {together} rows together"
        words = "congruence fit" + ("" if self.method == "auto" else f" --method {self.method}")
        words += " --single-modality" if self.single_modality else ""
        words += f" on the {together} anchors" + (f", with {given}" if self.parameters else "")
        other = next((name for name in tables.source if name != together), None)
        if other is not None and self.method != "linear":
            words += f", with --means {other}=…"
        return words + (", and for queries with source and target exchanged" if choice.method == "linear" else "")


def _listed(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in parameters.items())


class AnchorFolds:
    """Sums over the anchors of each fold, from which maps without some folds are fitted; fold (n,) is −1 for none."""

    def __init__(
        self,
        recipe: MapRecipe,
        tables: PairedTables,
        fold: np.ndarray,
        others: Others | None = None,
        *,
        widths: tuple[int, int] | None = None,
        half: bool = False,
    ) -> None:
        self._recipe, self._tables, self._fold, self._others = recipe, tables, fold, others
        self._half = half  # rotations with half of the digits, to compare them
        self._widths = widths  # of the models, if the tables are in coordinates of their span
        self._sums: dict[tuple[str, bool, bool], list[CrossMoments]] = {}

    @cached_property
    def _unit(self) -> tuple[bool, bool]:
        """Whether the rows of each model are unit rows."""
        sides = self._tables.source, self._tables.target
        old, new = (all(has_unit_rows(side[name]) for name in self._recipe.fitted) for side in sides)
        return old, new

    def fit(self, kept: Sequence[int], choice: Choice) -> TwoWay:
        """Fit on the anchors of these folds."""
        fitted, method, parameters = self._recipe.fitted, self._recipe.method, choice.parameters
        seen, sides = np.isin(self._fold, kept), (self._tables.source, self._tables.target)
        old, new = self._unit
        own = (
            seen if not self._tables.by_class else slice(None)
        )  # stored rows and descriptions of all classes are known
        means: list[dict[str, np.ndarray]] = [
            {name: rows[own] for name, rows in side.items() if name not in fitted} for side in sides
        ]
        if self._others is not None:
            for side, rows in zip(means, self._others.means(None), strict=True):
                side[self._others.modality] = rows
        model: OrthogonalMap | LinearMap
        if choice.method == "linear":
            sums, swapped = (self._total(fitted[0], kept, gram=True, exchanged=side) for side in (False, True))
            model = LinearMap.from_moments(sums, **parameters, normalized=(old, new))
            model.readout_, model.role_ = choose_readout(model, choice.quality, (), means), "store"
            back = LinearMap.from_moments(swapped, **parameters, normalized=(new, old))
            back.readout_ = model.readout_.inverse()
            return TwoWay(model, back, sums)
        if parameters.get("shrinkage") == "cv":  # needs the rows
            X, Y = (np.concatenate([side[name][seen] for name in fitted]) for side in sides)
            names = np.repeat(fitted, np.count_nonzero(seen)) if len(fitted) > 1 else fitted[0]
            model = OrthogonalMap(**parameters).fit(X, Y, modality=names)
        else:
            sums_of = {name: self._total(name, kept) for name in fitted}
            if self._widths is not None:  # the strength is a multiple of the mean over all dimensions
                here = min(next(iter(sums_of.values())).cross.shape)
                parameters = {"shrinkage_strength": DEFAULT_STRENGTH["wiener"] * here / min(self._widths)}
            model = OrthogonalMap.from_moments(sums_of, normalized=(old, new), half=self._half, **parameters)
        offset = OFFSET if method == "auto" else 1.0
        for name, rows in means[0].items():
            model = model.recenter(rows, means[1].get(name), modality=name, offset=offset, use=False)
        model.readout_, model.role_ = choose_readout(model, choice.quality, (), means), "store"
        return TwoWay(model, others=self._others)

    def _total(self, name: str, kept: Sequence[int], *, gram: bool = False, exchanged: bool = False) -> CrossMoments:
        key = name, gram, exchanged
        if key not in self._sums:
            X, Y = self._tables.source[name], self._tables.target[name]
            if exchanged:
                X, Y = Y, X
            each = [self._fold == part for part in range(int(self._fold.max()) + 1)]
            if len(each) == 1 and len(X) <= min(X.shape[1], Y.shape[1]):
                X, Y = X.astype(np.float64), Y.astype(np.float64)  # else rounding hides the low rank, which saves time
            self._sums[key] = [CrossMoments.of(X[rows], Y[rows], gram=gram) for rows in each]
        return CrossMoments.total([self._sums[key][part] for part in kept])
