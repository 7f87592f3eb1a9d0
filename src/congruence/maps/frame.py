"""Many models in one coordinate frame: generalized Procrustes analysis, and the maps between models that follow from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.embeddings import MODALITIES
from congruence.errors import (
    ConvergenceWarning,
    IdError,
    InputError,
    ModalityError,
    ParameterError,
)
from congruence.linalg.moments import pooled_cross, pooled_size
from congruence.maps import _frame_solve as solving
from congruence.maps._base import NotFittedMapError
from congruence.maps._frame_items import (
    Items,
    as_rows,
    check_connected,
    check_name,
    most_directions,
    name_modalities,
    width_of,
)
from congruence.maps._frame_model import Consensus, infer_means, known_modalities
from congruence.maps._frame_saved import SavedFrame
from congruence.maps.orthogonal import OrthogonalMap

__all__ = ["CanonicalFrame"]

#: Shrinkage settings that a frame supports: those of :class:`~congruence.OrthogonalMap` that do not need a second pass over the rows.
SHRINKAGES = ("auto", "wiener", "covered", "full")


class CanonicalFrame(SavedFrame):
    """One coordinate frame for many models, and a map between any two of them through it.

    Each model has one rotation into the frame, and one mean per modality. The map from one model to another is the rotation of the first
    followed by the transpose of the second's rotation, so maps are consistent with each other: A → B → C equals A → C, and a
    loop is the identity. Models need not share all items, widths or modalities; items are matched by id.

    Parameters
    ----------
    center : bool, default=True
        Subtract the source mean and add the target mean when mapping; the rotations are fitted on centered rows.
    shrinkage : {"auto", "wiener", "covered", "full"}, default="auto"
        How to weight a model's singular directions, as in :class:`~congruence.OrthogonalMap`; ``"auto"`` is ``"wiener"``. A map between
        two models multiplies the square roots of both models' gains.
    shrinkage_strength : float, optional
        Strength of ``"wiener"``; 0.1 by default.
    max_iter : int, default=200
        Largest number of sweeps over the models.
    tol : float, default=1e-8
        Stop after a sweep that improves the objective by less than this share of it.

    Attributes
    ----------
    models_ : dict of str to FrameModel
        The models, in the order in which they were added.
    consensus_ : dict of str to Consensus
        The items in the frame, by modality. Models added later are fitted to them.
    axes_ : list of str
        Modalities whose means have an axis of their own (:func:`congruence.linalg.shrinkage.mean_isometry`), stored as the last columns of
        the models' rotations. Only with ``"wiener"``.
    objective_ : ndarray, shape (n_iter_ + 1,)
        Alignment over all pairs of models, Σ tr(R_mᵀ C_mj R_j) / Σ √(Σ‖x‖² Σ‖y‖²), from the initial value on. It never decreases, and is 1 for
        noise-free data.
    n_iter_ : int
    converged_ : bool

    Notes
    -----
    Minimizes Σ_i 1/c_i Σ_{m<j} ‖(x_mi − t_mj) R_m − (x_ji − t_jm) R_j‖² over rotations R and translations t, where c_i is the number of models
    that have item i. For complete data this is Gower's generalized Procrustes analysis without scaling; for two models it gives their
    :class:`~congruence.OrthogonalMap`. The solver is :func:`congruence.linalg.generalized.generalized_procrustes`.

    A loop a → b → c → a is the identity, up to rounding, on the directions that all three models have in the frame, under ``"covered"`` and ``"full"``
    or where gains are 1. Directions that a model lacks (because it is narrower, or its anchors do not cover them) are lost in a map through it, as
    in any projection. Gains below 1 shrink the result of a loop but do not rotate it.

    References
    ----------
    Gower (1975), "Generalized Procrustes analysis". Gower and Dijksterhuis (2004), "Procrustes Problems", chapter 9.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import CanonicalFrame, Embeddings
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.standard_normal((60, 8))
    >>> turn = {name: np.linalg.qr(rng.standard_normal((8, 8)))[0] for name in "abc"}
    >>> have = {"a": range(40), "b": range(20, 60), "c": range(30, 60)}
    >>> models = {name: Embeddings(truth[list(rows)] @ turn[name], list(rows)) for name, rows in have.items()}
    >>> frame = CanonicalFrame().fit(models)
    >>> bool(np.allclose(frame.map("a", "c").transform(truth @ turn["a"]), truth @ turn["c"]))
    True
    """

    def __init__(
        self,
        center: bool = True,
        shrinkage: str = "auto",
        shrinkage_strength: float | None = None,
        max_iter: int = 200,
        tol: float = 1e-8,
    ) -> None:
        self.center = center
        self.shrinkage = shrinkage
        self.shrinkage_strength = shrinkage_strength
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, models: Mapping[str, object], *, modality: str | None = None) -> Self:
        """Fit the frame.

        Parameters
        ----------
        models : mapping of str to Embeddings or array_like, shapes (n_m, d_m), or to a mapping of modality to those
            Vectors by model name; :meth:`map` uses these names. Items are matched by id. If no model has ids, all must have the same rows.
        modality : str, optional
            Modality of rows that do not declare theirs.

        Returns
        -------
        Self

        Raises
        ------
        ParameterError
            If a parameter of the frame has an invalid value, or a name or a modality is not valid.
        InputError
            If there are fewer than two models, or the rows of one do not vary together with those of the others.
        ShapeError, DtypeError, NotFiniteError, ZeroRowError
            If vectors have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; if those of one model differ
            in width; or if no model has ids and their numbers of rows differ.
        IdError
            If some models are not connected by any chain of shared items, or only some models have ids.
        ModalityError
            If modalities contradict each other, or that of some rows is unknown.
        TooFewAnchorsError
            If a model shares fewer than two items with the others.

        Warns
        -----
        ConvergenceWarning
            If ``max_iter`` sweeps did not suffice.
        """
        self._check_parameters()
        if not isinstance(models, Mapping) or len(models) < 2:
            got = len(models) if isinstance(models, Mapping) else type(models).__name__
            raise InputError(f"Got {got} for models; expected at least two, by name. Pass {{'name': vectors, …}}.")
        for name in models:
            check_name(name)
        sides = name_modalities({name: as_rows(data, name, modality) for name, data in models.items()})
        names, rows = list(sides), list(sides.values())
        items = {q: Items.of(sides, q) for q in sorted({q for side in rows for q in side})}
        moments, bases = solving.gather(rows, items)
        check_connected(names, moments)
        widths = [width_of(side) for side in rows]
        solution, evidence, sizes = solving.solve(
            moments, bases, widths, center=self.center, max_iter=self.max_iter, tol=self.tol
        )
        rotations, anchors = [], []
        for m, name in enumerate(names):
            used = [int(((matched.rows[m] >= 0) & (matched.count > 1)).sum()) for matched in items.values()]
            anchors.append(sum(used))
            most = most_directions(name, used, center=self.center)
            widest = max(width for j, width in enumerate(widths) if j != m)
            rotations.append(solving.make_rotation(name, evidence[m], sizes[m], most, widest, *self._spectrum()))
        self.models_, self.consensus_ = {}, {}
        self.axes_ = list(items) if self._spectrum()[0] == "wiener" and self.center else []
        means: list[solving.Means] = [{} for _ in rows]
        for q, matched in items.items():
            of_models = solving.means_of(rows, matched, q, moments, bases, rotations, center=self.center)
            for m, mean in of_models.items():
                means[m][q] = mean
            vectors = solving.consensus(rows, matched, q, {m: mean for m, (mean, _) in of_models.items()}, rotations)
            self.consensus_[q] = Consensus(
                matched.ids, vectors, matched.has_ids, solving.mean_in_frame(means, rotations, q)
            )
        for m, name in enumerate(names):
            others = {
                q: solving.mean_in_frame(means, rotations, q, without=m)
                for q in means[m]
                if sum(q in own for own in means) > 1
            }
            self.models_[name] = solving.make_model(rows[m], rotations[m], means[m], others, self.axes_, anchors[m])
        infer_means(self.models_, self.consensus_ if self.center else ())
        self.objective_ = solution.objective / (sum(sizes) / 2)
        self.n_iter_, self.converged_ = len(solution.objective) - 1, solution.converged
        if not self.converged_:
            warnings.warn(
                f"Got max_iter={self.max_iter}, after which the alignment still grew by {self.objective_[-1] - self.objective_[-2]:.1e}; expected "
                "less than tol. Pass max_iter=… with a larger number, or tol=….",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def add(self, name: str, vectors: object, *, modality: str | None = None) -> Self:
        """Add a model to the frame. The maps between models already in it do not change, to the bit.

        Parameters
        ----------
        name : str
        vectors : Embeddings or array_like, shape (n, d), or a mapping of modality to those
            With ids, some of which are in the frame. New items become part of the frame, for models added later.
        modality : str, optional
            Modality of rows that do not declare theirs.

        Returns
        -------
        Self

        Raises
        ------
        ParameterError
            If the frame already has a model of this name.
        IdError, TooFewAnchorsError
            If no item, or only one, is in the frame.
        InputError
            As for :meth:`fit`.
        NotFittedMapError
            If the frame is not fitted.

        Notes
        -----
        The rotation is the Procrustes solution onto the mean of the models already in the frame. Calling :meth:`fit` on all models together
        would fit every model again and change the maps between them.
        """
        self.check_fitted()
        check_name(name)
        if name in self.models_:
            raise ParameterError(f"Got a model {name!r}, which the frame has; expected a new name. Pass another name.")
        rows = name_modalities({name: as_rows(vectors, name, modality)}, self.consensus_)[name]
        positions = {q: self.consensus_[q].rows_of(side, name) for q, side in rows.items() if q in self.consensus_}
        moments = solving.join_frame(rows, self.consensus_, positions)
        if not moments:
            raise IdError(
                f"Got no item of {name!r} that the frame has; expected some in common. Pass ids=… that name the items as the frame does."
            )
        groups = list(moments.values())
        used, widest = [group.rows for group in groups], max(len(model.rotation) for model in self.models_.values())
        cross, size = pooled_cross(groups, center=self.center), pooled_size(groups, center=self.center)
        most = most_directions(name, used, center=self.center)
        rotation = solving.make_rotation(name, cross, size, most, widest, *self._spectrum())
        means = solving.means_to_join(rows, moments, rotation, center=self.center)
        known = {q: self.consensus_[q].center for q in rows if q in self.consensus_}
        self.models_[name] = solving.make_model(rows, rotation, means, known, self.axes_, sum(used))
        model = self.models_[name]
        solving.extend_items(self.consensus_, rows, model.means, rotation.isometry, name)
        infer_means(self.models_, self.consensus_ if self.center else ())
        return self

    def extend(self, name: str, vectors: object, *, modality: str | None = None) -> Self:
        """Add items to a model that is already in the frame, so that a chain of models can continue with new anchors. No map changes.

        Parameters
        ----------
        name : str
        vectors, modality
            As for :meth:`add`. Items already in the frame are left unchanged.

        Returns
        -------
        Self

        Raises
        ------
        ParameterError
            If the frame has no such model.
        ModalityError
            If the frame does not know this model's mean of the modality.
        ShapeError
            If the vectors have another width than the model.
        NotFittedMapError
            If the frame is not fitted.
        """
        self.check_fitted()
        model = self.models_[check_choice(name, self.models_, "model")]
        rows = name_modalities({name: as_rows(vectors, name, modality)}, self.consensus_)[name]
        check_width(width_of(rows), len(model.rotation), f"the frame's {name!r}")
        if unknown := sorted(set(rows) - set(model.means)):
            raise ModalityError(
                f"Got {unknown[0] or 'unnamed'} rows of {name!r}, a modality of which the frame has no mean for this model; expected {known_modalities(model)}. Pass modality=…."
            )
        solving.extend_items(self.consensus_, rows, model.means, model.isometry, name)
        return self

    def map(self, source: str, target: str, *, modality: str | None = None) -> OrthogonalMap:
        """Return the map from one model to another, through the frame.

        Parameters
        ----------
        source, target : str
            Names of models.
        modality : str, optional
            Modality whose means the map uses initially; it has the means of every modality that both models know. By default the first
            modality that both have rows of.

        Returns
        -------
        OrthogonalMap
            Can be saved, composed, inverted and recentered like a map fitted on pairs, but not updated with ``partial_fit``, as it has no moments.

        Raises
        ------
        ParameterError
            If the frame does not have one of the models, or source and target are the same model.
        ModalityError
            If the means of this modality are not known for both models, or no modality is common to both.
        NotFittedMapError
            If the frame is not fitted.
        """
        self.check_fitted()
        for name in (source, target):
            check_choice(name, self.models_, "model")
        if source == target:
            raise ParameterError(f"Got {source!r} twice; expected two models. Pass another one as target=….")
        a, b = self.models_[source], self.models_[target]
        table = {q: (a.means[q], b.means[q]) for q in a.means if q in b.means}
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
        if not table or (modality is not None and modality not in table and "" not in table):
            raise ModalityError(
                f"Got modality={modality!r} for {source!r} ({known_modalities(a)}) and {target!r} ({known_modalities(b)}); expected one whose means are known in "
                "both. Pass another modality=…, or add rows of it with a new frame."
            )
        measured = [q for q in table if "frame" not in (a.means_from[q], b.means_from[q])]
        active = modality if modality in table else (measured or list(table))[0]
        out = OrthogonalMap._of_parts(
            a.rotation @ b.rotation.T,
            table[active],
            {q: pair for q, pair in table.items() if q and self.center},
            (replace(a.space, modality=active or None), replace(b.space, modality=active or None)),
            modality=active or None,
            n_pairs=min(a.n_anchors, b.n_anchors),
            center=self.center,
        )
        out.facts_ |= {
            "frame": list(self.models_),
            "means_from": {q: [a.means_from[q], b.means_from[q]] for q in table},
        }
        return out

    # ------------------------------------------------------------------ private

    def _check_parameters(self) -> None:
        check_choice(self.shrinkage, SHRINKAGES, "shrinkage")
        if self.shrinkage_strength is not None:
            check_positive(self.shrinkage_strength, "shrinkage_strength", zero=True)
        check_positive(self.max_iter, "max_iter", integer=True)
        check_positive(self.tol, "tol", zero=True)

    def check_fitted(self) -> None:
        """Refuse a frame that is not fitted.

        Raises
        ------
        NotFittedMapError
            If :meth:`fit` was not called.
        """
        if not hasattr(self, "models_"):
            raise NotFittedMapError("Got an unfitted CanonicalFrame; expected a fitted one. Call fit(models) first.")

    def _spectrum(self) -> tuple[str, float | None]:
        return "wiener" if self.shrinkage == "auto" else self.shrinkage, self.shrinkage_strength
