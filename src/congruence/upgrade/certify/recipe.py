"""How the certified map is chosen and fitted, as by ``congruence.fit``, with a reverse map for queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.errors import ModalityError, ParameterError
from congruence.maps import METHODS, AffineMap, LinearMap, OrthogonalMap
from congruence.upgrade.certify.design import PairedTables
from congruence.upgrade.choose import OFFSET, Choice, Other, choose_map


class TwoWay:
    """A fitted map and its reverse: the inverse or, if there is none, the same method fitted the other way.

    ``backward`` fits that map on first use; ``anchors`` returns the source rows, for ``covered_share``.
    """

    def __init__(
        self,
        forward: OrthogonalMap | LinearMap,
        backward: Callable[[], LinearMap] | None = None,
        anchors: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.forward = forward
        self._backward, self._anchors = backward, anchors
        self._fitted_backward: LinearMap | None = None
        self._inverses: dict[str | None, AffineMap] = {}

    def to_target(self, modality: str | None) -> AffineMap:
        """Return the map for stored vectors of a modality."""
        found = self.forward.for_modality(modality)
        assert isinstance(found, AffineMap)
        return found

    def to_source(self, modality: str | None) -> AffineMap:
        """Return the map for the target model's queries of a modality."""
        if isinstance(self.forward, OrthogonalMap):
            if modality not in self._inverses:
                self._inverses[modality] = self.forward.for_modality(modality).inverse()
            return self._inverses[modality]
        if self._fitted_backward is None:
            assert self._backward is not None
            self._fitted_backward = self._backward()
        return self._fitted_backward

    def recentered(self, source: np.ndarray, target: np.ndarray, modality: str) -> TwoWay:
        """Return the map with the means of a further modality; the same map if it keeps no means."""
        if isinstance(self.forward, OrthogonalMap):
            return TwoWay(self.forward.recenter(source.mean(axis=0), target.mean(axis=0), modality=modality))
        return self

    def covered_share(self, modality: str | None, rows: np.ndarray) -> np.ndarray:
        """Return the share of each row's variance (norm²) in directions the anchors cover, shape (m,)."""
        if isinstance(self.forward, OrthogonalMap):
            return self.forward.for_modality(modality).covered_share(rows)
        assert self._anchors is not None
        anchors = self._anchors() - self.forward.source_mean_
        _, s, basis = np.linalg.svd(anchors, full_matrices=False)
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis[s > 1e-8 * s[0]].T).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))


#: Methods that can be certified: maps of one model's vectors into the other's space, of which there is one for queries
#: too.
CERTIFIED = ("auto", "orthogonal", "linear")


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
                fix="Pass `method='auto'`, or compare other maps on held-out pairs with congruence.evaluate.",
            )
        if self.single_modality and (self.method != "auto" or tables.store_modality != tables.query_modality):
            got = (
                f"method={self.method!r}"
                if self.method != "auto"
                else f"{tables.store_modality} and {tables.query_modality} rows"
            )
            raise ModalityError(f"Got `single_modality=True` and {got}; expected one modality.", "Leave it out.")
        if self.method == "linear" and len(self.fitted) > 1:
            raise ModalityError(
                f"A linear map takes one modality: {' and '.join(self.fitted)}.", f"Pass `fitted={self.fitted[0]!r}`."
            )

    def choose(self, tables: PairedTables, train: np.ndarray) -> Choice:
        """Choose the map from the given rows (t,) of the fitted modality only, as ``congruence.fit`` would.

        The other modality's rows of the same items are its ``means``. Several modalities together are fitted by a
        rotation; it is chosen on the pairs of the first, with the others' rows as further evidence.
        """
        if self.method != "auto":
            given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
            kind, default = {
                "orthogonal": ("rotation", " about the means"),
                "linear": ("linear map", ", ridge regression"),
            }[self.method]
            name = kind + (f" with {given}" if given else default)
            evidence = f"method={self.method!r} was given, so nothing was compared"
            return Choice(name, self.method, dict(self.parameters), evidence)
        first = self.fitted[0]
        others = []
        for name in tables.source if not tables.by_class else ():
            if name != first:
                known = tables.target.get(name)
                mean = None if known is None else known[train].mean(axis=0, dtype=np.float64)
                others.append(Other(name, np.arange(len(train)), tables.source[name][train], mean))
        return choose_map(
            tables.source[first][train],
            tables.target[first][train],
            others=others,
            fixed=self.parameters,
            single_modality=self.single_modality,
            rotations_only=len(self.fitted) > 1,
            random_state=self.random_state,
        )

    def fit(self, tables: PairedTables, train: np.ndarray, choice: Choice | None = None) -> TwoWay:
        """Fit on the given rows. A rotation also gets the means of the other modality, of the same items."""
        choice = self.choose(tables, train) if choice is None else choice
        if choice.method == "linear":
            first = self.fitted[0]
            source, target = tables.source[first], tables.target[first]
            return TwoWay(
                LinearMap(**choice.parameters).fit(source[train], target[train]),
                lambda: LinearMap(**choice.parameters).fit(target[train], source[train]),
                lambda: source[train],
            )
        model = OrthogonalMap(**choice.parameters)
        X = np.concatenate([tables.source[name][train] for name in self.fitted])
        Y = np.concatenate([tables.target[name][train] for name in self.fitted])
        several = len(self.fitted) > 1
        model.fit(X, Y, modality=np.repeat(list(self.fitted), len(train)) if several else self.fitted[0])
        offset = OFFSET if self.method == "auto" else 1.0
        for name, rows in tables.source.items():
            if name not in self.fitted:
                seen = slice(None) if tables.by_class else train
                known = tables.target.get(name)
                mean = None if known is None else known[seen].mean(axis=0)
                model = model.recenter(rows[seen].mean(axis=0), mean, modality=name, offset=offset)
        return TwoWay(model)

    def in_words(self, tables: PairedTables, choice: Choice) -> str:
        """Return how to fit this map: a command, or a Python call if no command can."""
        given = ", ".join(f"{name}={value!r}" for name, value in choice.parameters.items())
        if len(self.fitted) > 1:
            return (
                f"OrthogonalMap({given}).fit(X, Y, modality=[…]) in Python, on {' and '.join(self.fitted)} rows "
                "together"
            )
        words = "congruence fit" + ("" if self.method == "auto" else f" --method {self.method}")
        words += " --single-modality" if self.single_modality else ""
        words += f" on the {self.fitted[0]} anchors"
        words += f", with {given}" if self.parameters else ""
        other = next((name for name in tables.source if name != self.fitted[0]), None)
        if other is not None and self.method != "linear":
            words += f", with --means {other}=…"
        return words + (", and for queries with source and target exchanged" if choice.method == "linear" else "")

    def about_means(self, tables: PairedTables, train: np.ndarray, certified: TwoWay) -> OrthogonalMap:
        """Return the certified map if it is a rotation about the means, else such a rotation of the same rows."""
        if isinstance(certified.forward, OrthogonalMap) and certified.forward.center:
            return certified.forward
        found = MapRecipe(self.fitted, "orthogonal").fit(tables, train).forward
        assert isinstance(found, OrthogonalMap)
        return found
