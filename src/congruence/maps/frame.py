"""Many models in one coordinate frame: generalized Procrustes analysis, and the maps between models that follow from
it.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from congruence import persist
from congruence._inputs import as_embeddings
from congruence._utils.arrays import blocks
from congruence._utils.display import as_markdown
from congruence._utils.ids import id_rows, id_texts
from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.embeddings import MODALITIES, Embeddings, Space
from congruence.errors import (
    ConvergenceWarning,
    CorruptFileError,
    IdError,
    InputError,
    ModalityError,
    ParameterError,
    ShapeError,
    TooFewAnchorsError,
    ZeroRowError,
)
from congruence.linalg.generalized import GeneralizedProcrustes, generalized_procrustes
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size, total_cross, total_size
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.linalg.shrinkage import choose_gains, means_correspond
from congruence.maps._base import Map, NotFittedMapError
from congruence.maps.orthogonal import OrthogonalMap
from congruence.persist import TOLERANCE, check_parameters, count

#: Shrinkage settings that a frame supports: those of :class:`~congruence.OrthogonalMap` that do not need a second pass
#: over the rows.
SHRINKAGES = ("auto", "wiener", "covered", "full")

#: Vectors of one model by modality; the key is "" if the modality is unknown.
ModelRows: TypeAlias = dict[str, Embeddings]

#: Moments of the items that two models share, by models and modality.
PairMoments: TypeAlias = dict[tuple[int, int, str], CrossMoments]

#: A model's means by modality, each with its origin.
ModelMeans: TypeAlias = dict[str, tuple[np.ndarray, str]]


class CanonicalFrame:
    """One coordinate frame for many models, and a map between any two of them through it.

    Each model has one rotation into the frame, and one mean per modality. The map from one model to another is the
    rotation of the first followed by the transpose of the second's rotation, so maps are consistent with each other: A
    → B → C equals A → C, and a loop is the identity. Models need not share all items, widths or modalities; items are
    matched by id.

    Parameters
    ----------
    center : bool, default=True
        Subtract the source mean and add the target mean when mapping; the rotations are fitted on centered rows.
    shrinkage : {"auto", "wiener", "covered", "full"}, default="auto"
        How to weight a model's singular directions, as in :class:`~congruence.OrthogonalMap`; ``"auto"`` is
        ``"wiener"``. A map between two models multiplies the square roots of both models' gains.
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
        Modalities whose means have an axis of their own (:func:`congruence.linalg.shrinkage.mean_isometry`), stored as
        the last columns of the models' rotations. Only with ``"wiener"``.
    objective_ : ndarray, shape (n_iter_ + 1,)
        Alignment over all pairs of models, Σ tr(R_mᵀ C_mj R_j) / Σ √(Σ‖x‖² Σ‖y‖²), from the initial value on. It never
        decreases, and is 1 for noise-free data.
    n_iter_ : int
    converged_ : bool

    Notes
    -----
    Minimizes Σ_i 1/c_i Σ_{m<j} ‖(x_mi − t_mj) R_m − (x_ji − t_jm) R_j‖² over rotations R and translations t, where c_i
    is the number of models that have item i. For complete data this is Gower's generalized Procrustes analysis without
    scaling; for two models it gives their :class:`~congruence.OrthogonalMap`. The solver is
    :func:`congruence.linalg.generalized.generalized_procrustes`.

    A loop a → b → c → a is the identity, up to rounding, on the directions that all three models have in the frame,
    under ``"covered"`` and ``"full"`` or where gains are 1. Directions that a model lacks (because it is narrower, or
    its anchors do not cover them) are lost in a map through it, as in any projection. Gains below 1 shrink the result
    of a loop but do not rotate it.

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

    kind: ClassVar[str] = "frame"
    models_: dict[str, FrameModel]
    consensus_: dict[str, Consensus]
    axes_: list[str]
    objective_: np.ndarray
    n_iter_: int
    converged_: bool

    get_params, set_params, __repr__ = Map.get_params, Map.set_params, Map.__repr__

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
            Vectors by model name; :meth:`map` uses these names. Items are matched by id. If no model has ids, all
            must have the same rows.
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
            If vectors have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; if
            those of one model differ in width; or if no model has ids and their numbers of rows differ.
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
            raise InputError(f"Got {got} for models; expected at least two, by name.", "Pass {'name': vectors, …}.")
        for name in models:
            check_name(name)
        sides = name_modalities({name: as_rows(data, name, modality) for name, data in models.items()})
        names, rows = list(sides), list(sides.values())
        items = {q: SharedItems.of(sides, q) for q in sorted({q for side in rows for q in side})}
        moments, bases = gather(rows, items)
        check_connected(names, moments)
        widths = [width_of(side) for side in rows]
        solution, evidence, sizes = solve(
            moments, bases, widths, center=self.center, max_iter=self.max_iter, tol=self.tol
        )
        rotations, anchors = [], []
        for m, name in enumerate(names):
            used = [int(((matched.rows[m] >= 0) & (matched.count > 1)).sum()) for matched in items.values()]
            anchors.append(sum(used))
            most = most_directions(name, used, center=self.center)
            widest = max(width for j, width in enumerate(widths) if j != m)
            rotations.append(make_rotation(name, evidence[m], sizes[m], most, widest, *self._spectrum()))
        self.models_, self.consensus_ = {}, {}
        self.axes_ = list(items) if self._spectrum()[0] == "wiener" and self.center else []
        means: list[ModelMeans] = [{} for _ in rows]
        for q, matched in items.items():
            of_models = means_of(rows, matched, q, moments, bases, rotations, center=self.center)
            for m, mean in of_models.items():
                means[m][q] = mean
            vectors = consensus(rows, matched, q, {m: mean for m, (mean, _) in of_models.items()}, rotations)
            self.consensus_[q] = Consensus(matched.ids, vectors, matched.has_ids, mean_in_frame(means, rotations, q))
        for m, name in enumerate(names):
            others = {
                q: mean_in_frame(means, rotations, q, without=m) for q in means[m] if sum(q in own for own in means) > 1
            }
            self.models_[name] = make_model(rows[m], rotations[m], means[m], others, self.axes_, anchors[m])
        infer_means(self.models_, self.consensus_ if self.center else ())
        self.objective_ = solution.objective / (sum(sizes) / 2)
        self.n_iter_, self.converged_ = len(solution.objective) - 1, solution.converged
        if not self.converged_:
            warnings.warn(
                ConvergenceWarning(
                    f"Got `max_iter={self.max_iter}`, after which the alignment still grew by "
                    f"{self.objective_[-1] - self.objective_[-2]:.1e}; expected less than tol.",
                    "Pass `max_iter=…` with a larger number, or `tol=…`.",
                ),
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
        The rotation is the Procrustes solution onto the mean of the models already in the frame. Calling :meth:`fit` on
        all models together would fit every model again and change the maps between them.
        """
        self.check_fitted()
        check_name(name)
        if name in self.models_:
            raise ParameterError(
                f"Got a model {name!r}, which the frame has; expected a new name.", "Pass another name."
            )
        rows = name_modalities({name: as_rows(vectors, name, modality)}, self.consensus_)[name]
        positions = {q: self.consensus_[q].rows_of(side, name) for q, side in rows.items() if q in self.consensus_}
        moments = join_frame(rows, self.consensus_, positions)
        if not moments:
            raise IdError(
                f"Got no item of {name!r} that the frame has; expected some in common.",
                "Pass `ids=…` that name the items as the frame does.",
            )
        groups = list(moments.values())
        used, widest = [group.rows for group in groups], max(len(model.rotation) for model in self.models_.values())
        cross, size = pooled_cross(groups, center=self.center), pooled_size(groups, center=self.center)
        most = most_directions(name, used, center=self.center)
        rotation = make_rotation(name, cross, size, most, widest, *self._spectrum())
        means = means_to_join(rows, moments, rotation, center=self.center)
        known = {q: self.consensus_[q].center for q in rows if q in self.consensus_}
        self.models_[name] = make_model(rows, rotation, means, known, self.axes_, sum(used))
        model = self.models_[name]
        extend_items(self.consensus_, rows, model.means, rotation.isometry, name)
        infer_means(self.models_, self.consensus_ if self.center else ())
        return self

    def extend(self, name: str, vectors: object, *, modality: str | None = None) -> Self:
        """Add items to a model that is already in the frame, so that a chain of models can continue with new anchors.

        No map changes.

        Parameters
        ----------
        name : str
        vectors, modality
            As for :meth:`add`. SharedItems already in the frame are left unchanged.

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
                f"Got {unknown[0] or 'unnamed'} rows of {name!r}, a modality of which the frame has no mean "
                f"for this model; expected {known_modalities(model)}.",
                "Pass `modality=…`.",
            )
        extend_items(self.consensus_, rows, model.means, model.isometry, name)
        return self

    def map(self, source: str, target: str, *, modality: str | None = None) -> OrthogonalMap:
        """Return the map from one model to another, through the frame.

        Parameters
        ----------
        source, target : str
            Names of models.
        modality : str, optional
            Modality whose means the map uses initially; it has the means of every modality that both models know. By
            default the first modality that both have rows of.

        Returns
        -------
        OrthogonalMap
            Can be saved, composed, inverted and recentered like a map fitted on pairs, but not updated with
            ``partial_fit``, as it has no moments.

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
            raise ParameterError(f"Got {source!r} twice; expected two models.", "Pass another one as `target=…`.")
        a, b = self.models_[source], self.models_[target]
        table = {q: (a.means[q], b.means[q]) for q in a.means if q in b.means}
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
        if not table or (modality is not None and modality not in table and "" not in table):
            raise ModalityError(
                f"Got `modality={modality!r}` for {source!r} ({known_modalities(a)}) and {target!r} "
                f"({known_modalities(b)}); expected one whose means are known in both.",
                "Pass another `modality=…`, or add rows of it with a new frame.",
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
            raise NotFittedMapError("Got an unfitted CanonicalFrame; expected a fitted one.", "Call fit(models) first.")

    def _spectrum(self) -> tuple[str, float | None]:
        return "wiener" if self.shrinkage == "auto" else self.shrinkage, self.shrinkage_strength

    # ------------------------------------------------------------------ saving

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the frame as a folder: ``model.safetensors``, ``config.json``, ``README.md``.

        Parameters
        ----------
        path : path-like
        force : bool, default=False
            Replace an existing frame or map.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
            If the frame is not fitted, the output already exists, or the output cannot be written.
        """
        self.check_fitted()
        arrays: dict[str, np.ndarray] = {"objective": self.objective_}
        models, items = [], []
        for m, (name, model) in enumerate(self.models_.items()):
            arrays[f"rotation.{m}"] = model.rotation
            arrays |= {f"mean.{m}.{q}": mean for q, mean in model.means.items()}
            models.append(
                {
                    "name": name,
                    "space": model.space.to_dict(),
                    "means_from": model.means_from,
                    "n_anchors": model.n_anchors,
                    "rank": model.rank,
                }
            )
        for q, consensus in self.consensus_.items():
            # Ids are stored as arrays, because the size of the JSON file is limited: the concatenated texts, and the
            # end of each.
            texts = [text.encode("utf-8") for text in consensus.ids.tolist()]
            arrays[f"ids.{q}"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
            arrays[f"ends.{q}"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
            arrays[f"items.{q}"] = consensus.vectors
            arrays[f"center.{q}"] = consensus.center
            items.append({"modality": q, "has_ids": consensus.has_ids})
        facts = {
            "models": models,
            "items": items,
            "axes": self.axes_,
            "n_iter": self.n_iter_,
            "converged": self.converged_,
        }
        config = {"kind": self.kind, "parameters": self.get_params(deep=False), "facts": facts, "scores": {}}
        return persist.write_folder(path, arrays, config, _card(self), force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a frame saved with :meth:`save`. Nothing in the folder is executed.

        Raises
        ------
        FileError, CorruptFileError, VersionError
            If a file cannot be read; a file is damaged; or a file was written by a newer version.
        """
        arrays, config = persist.read_folder(path)
        if config.get("kind") != cls.kind:
            raise CorruptFileError(
                f"Got a map of kind {config.get('kind')!r} in {path}; expected a frame.",
                "Load it with congruence.load.",
            )
        try:
            return cls._restored(arrays, config)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"Got a saved frame in {path} with parts missing or damaged ({error!r}).", "Fit it again."
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return what is known about the frame as plain data."""
        self.check_fitted()
        models = {
            name: {
                "space": model.space.to_dict(),
                "anchors": model.n_anchors,
                "directions_covered": model.rank,
                "means_from": model.means_from,
            }
            for name, model in self.models_.items()
        }
        return {
            "models": models,
            "items": {q: len(consensus.ids) for q, consensus in self.consensus_.items()},
            "alignment": float(self.objective_[-1]),
            "n_iter": self.n_iter_,
            "converged": self.converged_,
        }

    @classmethod
    def _restored(cls, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Self:
        check_parameters(cls, config["parameters"])
        frame, facts = cls(**config["parameters"]), config["facts"]
        frame._check_parameters()
        frame.axes_ = [_modality(q) for q in facts["axes"]]
        frame.objective_, frame.converged_ = arrays["objective"], facts["converged"]
        frame.n_iter_ = count(facts, "n_iter")
        frame.models_, frame.consensus_ = {}, {}
        expected = {"objective"}
        for entry in facts["items"]:
            q = _modality(entry["modality"])
            names = [f"{part}.{q}" for part in ("ids", "ends", "items", "center")]
            text, ends, vectors, center = (arrays[name] for name in names)
            expected |= set(names)
            if (
                text.dtype != np.uint8
                or ends.dtype != np.int64
                or vectors.dtype != np.float32
                or type(entry["has_ids"]) is not bool
            ):
                raise TypeError("items of the wrong type")
            if (
                len(ends) != len(vectors)
                or (np.diff(ends, prepend=0) < 0).any()
                or (len(ends) and ends[-1] != len(text))
            ):
                raise ValueError("ids that do not match the items")
            raw = text.tobytes()
            ids = np.empty(len(ends), dtype=object)
            ids[:] = [raw[a:b].decode("utf-8") for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]
            if len(set(ids.tolist())) < len(ids):
                raise ValueError("repeated ids")
            frame.consensus_[q] = Consensus(ids, vectors, entry["has_ids"], _finite(center, 1))
        consensuses = frame.consensus_.values()
        widths = {consensus.vectors.shape[1] for consensus in consensuses} | {
            len(consensus.center) for consensus in consensuses
        }
        if len(widths) != 1 or not all(np.isfinite(consensus.vectors).all() for consensus in consensuses):
            raise ValueError("items of several widths, or with NaN")
        (k,) = widths
        for m, entry in enumerate(facts["models"]):
            means_from = {_modality(q): origin for q, origin in entry["means_from"].items()}
            if not set(means_from.values()) <= {"items", "rows", "frame"} or not set(means_from) <= set(
                frame.consensus_
            ):
                raise ValueError("means of unknown origin")
            rotation = _finite(arrays[f"rotation.{m}"], 2)
            means = {q: _finite(arrays[f"mean.{m}.{q}"], 1) for q in means_from}
            expected |= {f"rotation.{m}"} | {f"mean.{m}.{q}" for q in means}
            if rotation.shape[1] != k + len(frame.axes_) or any(len(mean) != len(rotation) for mean in means.values()):
                raise ValueError("a rotation and means that do not fit")
            if np.linalg.norm(rotation, 2) > 1 + TOLERANCE:
                raise ValueError("a rotation that increases norms")
            space = Space.from_dict(entry["space"])
            if (
                space.dim not in (None, len(rotation))
                or type(entry["name"]) is not str
                or entry["name"] in frame.models_
            ):
                raise ValueError("a model whose space or name does not fit")
            rank = count(entry, "rank", most=min(len(rotation), k))
            frame.models_[entry["name"]] = FrameModel(
                space, rotation, means, means_from, k, count(entry, "n_anchors"), rank
            )
        if set(arrays) != expected or len(frame.models_) < 2 or type(frame.converged_) is not bool:
            raise ValueError("missing or unexpected arrays, or fewer than two models")
        if len(_finite(frame.objective_, 1)) != frame.n_iter_ + 1:
            raise ValueError("an objective that does not match the number of sweeps")
        return frame


@dataclass(frozen=True)
class FrameModel:
    """One model of a frame.

    ``rotation`` (d, k + a): rotation into the frame, multiplied by the square roots of the gains; the last columns are
    the axes of the modalities' means; ``means`` (d,): ModelMeans that correspond to the same point of the frame in
    every model; ``""`` if no modality was named; ``means_from``: whether a mean comes from shared items, from rows that
    no other model has, or, for a modality without rows, from the gap between modalities in the other models; ``width``:
    k, the width of the frame; ``n_anchors``: number of rows that the rotation was fitted on; ``rank``: number of
    directions that they cover.
    """

    space: Space
    rotation: np.ndarray
    means: dict[str, np.ndarray]
    means_from: dict[str, str]
    width: int
    n_anchors: int
    rank: int

    @property
    def isometry(self) -> np.ndarray:
        """The rotation without its gains and without axes of means, shape (d, k)."""
        U, s, Vt = np.linalg.svd(self.rotation[:, : self.width], full_matrices=False)
        kept = s > 1e-8
        return np.asarray(U[:, kept] @ Vt[kept])


@dataclass(frozen=True)
class Consensus:
    """The items of one modality in the frame.

    ``ids`` (n,); ``vectors`` (n, k): mean over the models that have the item; ``has_ids``: if False, rows are matched
    by position; ``center`` (k,): mean of the models' means in the frame.
    """

    ids: np.ndarray
    vectors: np.ndarray
    has_ids: bool
    center: np.ndarray

    def rows_of(self, rows: Embeddings, name: str) -> np.ndarray:
        """Return the position of each row among the items, −1 for rows that are not among them, shape (n,)."""
        if self.has_ids != rows.has_ids:
            with_ids, without = ("the frame", repr(name)) if self.has_ids else (repr(name), "the frame")
            raise IdError(
                f"Got ids for {with_ids} and none for {without}; expected ids for both, or for none.",
                "Pass `ids=…` for every model.",
            )
        if rows.has_ids:
            return id_rows(self.ids, rows.ids)
        if len(rows) != len(self.ids):
            raise ShapeError(
                f"Got {len(rows)} rows of {name!r}, without ids; expected {len(self.ids)}, the frame's.",
                "Pass `ids=…` for every model.",
            )
        return np.arange(len(rows))

    def extended(self, ids: np.ndarray, vectors: np.ndarray) -> Consensus:
        """Return a copy with more items."""
        more = np.concatenate([self.vectors, vectors.astype(np.float32)])
        return Consensus(np.concatenate([self.ids, ids]), more, self.has_ids, self.center)


def infer_means(models: Mapping[str, FrameModel], modalities: Iterable[str]) -> None:
    """Infer the mean of a modality for models without rows of it, from its gap to a modality that they have, measured
    in other models.

    An inferred mean is never inferred again, so that models added later do not change it.
    """
    measured = {
        name: [q for q, origin in model.means_from.items() if origin != "frame"] for name, model in models.items()
    }
    for q in modalities:
        for name, model in models.items():
            for p in [] if q in model.means else measured[name]:
                with_both = [other for key, other in models.items() if {p, q} <= set(measured[key])]
                if with_both:
                    gap = np.mean([(other.means[q] - other.means[p]) @ other.rotation for other in with_both], axis=0)
                    model.means[q] = model.means[p] + model.rotation @ gap
                    model.means_from[q] = "frame"
                    break


def known_modalities(model: FrameModel) -> str:
    """Return the modalities whose means a model has, for messages."""
    return ", ".join(q or "no modality named" for q in model.means)


def as_rows(data: Any, name: str, modality: str | None = None) -> ModelRows:
    """Return one model's vectors by modality.

    ``name``: name of the model, for error messages; ``modality``: modality of rows that do not declare theirs. Returns:
    under ``""`` if the modality is unknown.
    """
    if not isinstance(data, Mapping):
        rows = as_embeddings(data, f"the rows of {name!r}")
        declared = rows.space.modality
        if None not in (declared, modality) and declared != modality:
            raise ModalityError(
                f"Got {declared} vectors of {name!r} with `modality={modality!r}`; expected them to agree.",
                "Leave modality out.",
            )
        by_modality = {declared or modality or "": rows}
    else:
        if not data:
            raise InputError(
                f"Got no rows of {name!r}; expected vectors of at least one modality.", "Leave this model out."
            )
        by_modality = {}
        for key, value in data.items():
            check_choice(key, MODALITIES, f"the modality of {name!r}")
            rows = as_embeddings(value, f"the {key} rows of {name!r}")
            if rows.space.modality not in (None, key):
                raise ModalityError(
                    f"Got {rows.space.modality} vectors of {name!r} under {key!r}; expected them to agree.",
                    "Correct the key.",
                )
            by_modality[key] = rows
    for key, rows in by_modality.items():
        if not rows.vectors.any():
            raise ZeroRowError(
                f"Got only rows of zeros of {name!r}{f' ({key})' * bool(key)}; expected vectors.",
                "Encode them again, or leave them out.",
            )
    widths = {rows.dim for rows in by_modality.values()}
    if len(widths) > 1:
        raise ShapeError(
            f"Got vectors of widths {', '.join(map(str, sorted(widths)))} of {name!r}; expected one width per model.",
            "Pass them as two models.",
        )
    return by_modality


def name_modalities(models: Mapping[str, ModelRows], known: Iterable[str] = ()) -> dict[str, ModelRows]:
    """Return the models with rows of unknown modality under the one modality that other rows have."""
    modalities = sorted({q for rows in models.values() for q in rows} | set(known))
    named = [q for q in modalities if q]
    if "" not in modalities or not named:
        return dict(models)
    if len(named) > 1:
        unnamed = next((name for name, rows in models.items() if "" in rows), None)
        raise ModalityError(
            f"Got rows of {unnamed!r} without a modality, and {' and '.join(named)} rows; expected rows of a "
            "known modality.",
            "Pass `modality=…`, or a mapping of modality to rows.",
        )
    return {name: {named[0]: rows[""]} if "" in rows else rows for name, rows in models.items()}


@dataclass(frozen=True)
class SharedItems:
    """The items of one modality over all models.

    ``ids`` (n,): ids of all items, in the order in which they first occur in the models; row numbers if no model has
    ids; ``rows`` (M, n): row number of each item in each model, −1 if the model does not have it.
    """

    ids: np.ndarray
    has_ids: bool
    rows: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Number of models that have each item, shape (n,)."""
        return np.asarray(np.count_nonzero(self.rows >= 0, axis=0))

    @classmethod
    def of(cls, models: Mapping[str, ModelRows], modality: str) -> SharedItems:
        """Match the rows of one modality."""
        sides = {name: rows[modality] for name, rows in models.items() if modality in rows}
        named = [name for name, side in sides.items() if side.has_ids]
        if named and len(named) < len(sides):
            without_ids = next(name for name in sides if name not in named)
            raise IdError(
                f"Got ids for {named[0]!r} and none for {without_ids!r}; expected ids for every model, or for none.",
                "Pass `ids=…` for all of them.",
            )
        if not named:
            lengths = {len(side) for side in sides.values()}
            if len(lengths) > 1:
                raise ShapeError(
                    f"Got {', '.join((f'{len(side)} rows of {name!r}' for name, side in sides.items()))}, and "
                    "no ids; expected as many rows of every model, or ids to match them by.",
                    "Pass `ids=…` for every model.",
                )
            ids = id_texts(np.arange(lengths.pop()))
        else:
            ids = np.empty(0, dtype=object)
            for side in sides.values():
                texts = id_texts(side.ids)
                ids = np.concatenate([ids, texts[id_rows(ids, texts) < 0]]) if len(ids) else texts
        rows = np.full((len(models), len(ids)), -1)
        for m, name in enumerate(models):
            if name in sides:
                side, nonzero = sides[name], np.asarray(sides[name].vectors.any(axis=1))
                positions = id_rows(side.ids, ids) if named else np.arange(len(ids))
                # A zero row is a failed encoding.
                rows[m] = np.where((positions >= 0) & nonzero[positions], positions, -1)
        return cls(ids, bool(named), rows)


def pair_moments(
    X: np.ndarray, Y: np.ndarray, rows: tuple[np.ndarray, np.ndarray], weights: np.ndarray
) -> CrossMoments:
    """Compute the moments of rows that two models share, one block at a time.

    ``rows``: row numbers of the shared items in each; ``weights`` (s,).
    """
    moments = CrossMoments(X.shape[1], Y.shape[1])
    for part in blocks(len(weights), 8 * (X.shape[1] + Y.shape[1]), minimum=256):
        moments.update(X[rows[0][part]], Y[rows[1][part]], weights[part])
    return moments


def width_of(rows: ModelRows) -> int:
    """Return the width of a model's vectors."""
    return next(iter(rows.values())).dim


def space_of(rows: ModelRows) -> Space:
    """Return the space of a model's vectors, of any modality."""
    spaces = [side.space for side in rows.values()]
    unit = all(space.normalized for space in spaces)
    return replace(spaces[0], modality=None, normalized=unit)


def connected_groups(models: Iterable[int], pairs: Container[tuple[int, int]]) -> list[list[int]]:
    """Return the groups of models that are connected by shared items.

    Returns: each ascending; the first group contains the first model.
    """
    remaining, groups = list(models), []
    while remaining:
        group, pending = [], [remaining.pop(0)]
        while pending:
            member = pending.pop()
            group.append(member)
            joined = [m for m in remaining if (min(m, member), max(m, member)) in pairs]
            remaining = [m for m in remaining if m not in joined]
            pending += joined
        groups.append(sorted(group))
    return groups


def check_connected(names: Sequence[str], pairs: Iterable[tuple[int, int, str]]) -> None:
    """Check that all models are connected by shared items."""
    reached = connected_groups(range(len(names)), {(m, j) for m, j, _ in pairs})[0]
    if len(reached) < len(names):
        unreached = [name for m, name in enumerate(names) if m not in reached]
        raise IdError(
            f"Got no chain of shared items from {names[0]!r} to {', '.join(map(repr, unreached[:3]))}; "
            "expected one from every model to every other.",
            "Pass `ids=…` that name the same items alike, or leave models out.",
        )


def most_directions(name: str, used: Sequence[int], *, center: bool) -> int:
    """Return the largest number of directions that a model's anchors can cover.

    ``name``: name of the model, for error messages; ``center``: whether the anchors of each modality are centered,
    which removes one direction.
    """
    most = sum(used) - sum(n > 0 for n in used) * center
    if sum(used) < 2 or most < 1:
        raise TooFewAnchorsError(
            f"Got {sum(used)} item{'s' * (sum(used) != 1)} of {name!r} that other models have; expected at "
            f"least 2{' of one modality' * center}.",
            "Pass more common items.",
        )
    return most


def check_name(name: object) -> None:
    """Check that a model's name is a nonempty string. Raises ParameterError."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"Got a model named {name!r}; expected a nonempty string.", "Pass a name for every model.")


@dataclass(frozen=True)
class FrameRotation:
    """One model's rotation into the frame.

    ``isometry`` (d, k): partial isometry of the directions that its anchors cover (of all directions with
    ``shrinkage="full"``); ``gains`` (min(d, k),): gains of its singular directions; a map between two models multiplies
    the square roots of both; ``shrunk`` (d, k): the isometry multiplied by the square roots of the gains; ``rank``:
    number of directions that the anchors cover.
    """

    isometry: np.ndarray
    gains: np.ndarray
    shrunk: np.ndarray
    rank: int


def gather(
    models: Sequence[ModelRows], items: Mapping[str, SharedItems]
) -> tuple[PairMoments, list[np.ndarray | None]]:
    """Compute the moments of every pair of models on the items both have, each item weighted by 1 / (number of models
    that have it).

    Models with fewer shared rows than dimensions are described in an orthonormal basis of these rows.

    Shapes: ``bases`` (d_m, r).
    """
    bases: list[np.ndarray | None] = []
    reduced: list[dict[str, np.ndarray]] = []
    new_positions: list[dict[str, np.ndarray]] = []
    for m, rows in enumerate(models):
        used = {q: items[q].rows[m][(items[q].rows[m] >= 0) & (items[q].count > 1)] for q in rows}
        width = width_of(rows)
        if sum(map(len, used.values())) < width:
            stacked = np.concatenate([rows[q].vectors[used[q]] for q in rows]).astype(np.float64)
            basis = np.linalg.qr(stacked.T)[0]
            bases.append(basis)
            # Keep only the rows that are used, and a table of the new position of each row.
            reduced.append({q: rows[q].vectors[used[q]].astype(np.float64) @ basis for q in rows})
            positions = {q: np.full(len(rows[q]), -1) for q in rows}
            for q in rows:
                positions[q][used[q]] = np.arange(len(used[q]))
            new_positions.append(positions)
        else:
            bases.append(None)
            reduced.append({q: rows[q].vectors for q in rows})
            new_positions.append({q: np.arange(len(rows[q])) for q in rows})
    moments: PairMoments = {}
    for q, matched in items.items():
        weights = 1 / np.maximum(matched.count, 1)
        for j in range(len(models)):
            for m in range(j):
                both = np.flatnonzero((matched.rows[m] >= 0) & (matched.rows[j] >= 0))
                if len(both):
                    pair = new_positions[m][q][matched.rows[m][both]], new_positions[j][q][matched.rows[j][both]]
                    moments[m, j, q] = pair_moments(reduced[m][q], reduced[j][q], pair, weights[both])
    return moments, bases


def solve(
    moments: PairMoments,
    bases: Sequence[np.ndarray | None],
    widths: Sequence[int],
    *,
    center: bool,
    max_iter: int,
    tol: float,
) -> tuple[GeneralizedProcrustes, list[np.ndarray], list[float]]:
    """Solve for the rotations.

    ``evidence``: cross-covariance of each model with all others in the frame; ``sizes``: largest possible sum of the
    singular values of each cross-covariance.
    """
    cross: dict[tuple[int, int], np.ndarray] = {}
    weight: dict[tuple[int, int], float] = {}
    sizes = [0.0] * len(widths)
    pooled: dict[tuple[int, int], list[CrossMoments]] = {}
    for (m, j, _), part in moments.items():
        pooled.setdefault((m, j), []).append(part)
    for (m, j), parts in pooled.items():
        cross[m, j] = total_cross(parts, center=center)
        weight[m, j] = float(sum(p.weight for p in parts))
        size = total_size(parts, center=center)
        sizes[m] += size
        sizes[j] += size
    inner = [d if basis is None else basis.shape[1] for d, basis in zip(widths, bases, strict=True)]
    solution = generalized_procrustes(cross, weight, inner, max(widths), max_iter=max_iter, tol=tol)
    evidence = [B if Q is None else Q @ B for B, Q in zip(solution.evidence, bases, strict=True)]
    return solution, evidence, sizes


def make_rotation(
    name: str, evidence: np.ndarray, size: float, most: int, width: int, shrinkage: str, strength: float | None
) -> FrameRotation:
    """Compute a model's rotation into the frame from its cross-covariance with the other models.

    ``evidence`` (d, k): cross-covariance of the model with all others in the frame; ``size``: largest possible sum of
    its singular values; ``most``: bound on the number of covered directions; ``width``: width of the widest other
    model, which bounds the number of covered directions.
    """
    complete = cross_svd(evidence, max_rank=most, scale=size, complete=shrinkage == "full")
    if not complete.rank:
        raise InputError(
            f"Got rows of {name!r} that do not vary together with those of other models (constant rows, or one "
            "common item with each); expected anchors that vary.",
            "Pass other anchors, or more common items.",
        )
    k = min(len(complete.s), width)
    svd = CrossSVD(complete.U[:, :k], complete.s[:k], complete.Vt[:k], min(complete.rank, k))
    gains = choose_gains(shrinkage, svd, float(svd.s.sum() / size), strength)[1]
    if shrinkage == "full":  # fill also the directions that narrower models do not have
        svd, gains = complete, np.ones(len(complete.s))
    kept = len(svd.s) if shrinkage == "full" else svd.rank
    isometry = svd.U[:, :kept] @ svd.Vt[:kept]
    return FrameRotation(isometry, gains, (svd.U * np.sqrt(gains[: svd.U.shape[1]])) @ svd.Vt, svd.rank)


def means_of(
    models: Sequence[ModelRows],
    items: SharedItems,
    modality: str,
    moments: PairMoments,
    bases: Sequence[np.ndarray | None],
    rotations: Sequence[FrameRotation],
    *,
    center: bool,
) -> dict[int, tuple[np.ndarray, str]]:
    """Return each model's mean of one modality, all at the same point of the frame, and the rows it was computed from.

    If models lack items, their means are over different items. The translations into the frame are therefore
    least-squares solutions over all pairs of models, in closed form; with complete data they are the models' own means.
    Models that share no item of the modality are connected by their means.

    Returns (d_m,).
    """
    with_modality = [m for m, rows in enumerate(models) if modality in rows]
    if not center:
        return {m: (np.zeros(len(rotations[m].isometry)), "items") for m in with_modality}
    shared = {(m, j): pair for (m, j, q), pair in moments.items() if q == modality}
    laplacian = np.zeros((len(models), len(models)))
    right_hand_side = np.zeros((len(models), rotations[0].isometry.shape[1]))
    for (m, j), pair in shared.items():
        gap = (
            _expand(pair.source_mean, bases[m]) @ rotations[m].isometry
            - _expand(pair.target_mean, bases[j]) @ rotations[j].isometry
        )
        laplacian[[m, j], [m, j]] += pair.weight
        laplacian[[m, j], [j, m]] -= pair.weight
        right_hand_side[m] += pair.weight * gap
        right_hand_side[j] -= pair.weight * gap
    offset = np.linalg.pinv(laplacian, hermitian=True) @ right_hand_side
    weights = 1 / np.maximum(items.count, 1)
    out: dict[int, tuple[np.ndarray, str]] = {}
    for group in connected_groups(with_modality, shared):
        means, total, center_of_items = {}, 0.0, np.zeros(right_hand_side.shape[1])
        for m in group:
            known = np.flatnonzero((items.rows[m] >= 0) & ((items.count > 1) | (len(group) == 1)))
            X, rows = models[m][modality].vectors, items.rows[m][known]
            means[m] = _weighted_mean(X, rows, np.ones(len(rows)))
            weight = float(weights[known].sum())
            center_of_items += weight * (_weighted_mean(X, rows, weights[known]) @ rotations[m].isometry - offset[m])
            total += weight
        center_of_items /= total
        for m in group:
            R = rotations[m].isometry
            shift = means[m] @ R - offset[m] - center_of_items  # mean of this model's items minus the mean of all items
            out[m] = means[m] - shift @ R.T, "items" if len(group) > 1 else "rows"
    return out


def _expand(mean: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    """Return a mean in the model's own coordinates, given in coordinates of a basis."""
    return mean if basis is None else basis @ mean


def _weighted_mean(X: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(X.shape[1])
    for part in blocks(len(rows), 8 * X.shape[1]):
        total += weights[part] @ X[rows[part]].astype(np.float64)
    return np.asarray(total / weights.sum())


def consensus(
    models: Sequence[ModelRows],
    items: SharedItems,
    modality: str,
    means: Mapping[int, np.ndarray],
    rotations: Sequence[FrameRotation],
) -> np.ndarray:
    """Return each item's mean over the models that have it, in the frame: float32, shape (n, k)."""
    k = rotations[0].isometry.shape[1]
    out = np.zeros((len(items.ids), k), dtype=np.float32)
    for part in blocks(len(items.ids), 24 * k):
        total = np.zeros((part.stop - part.start, k))
        for m in means:
            rows = items.rows[m][part]
            present = np.flatnonzero(rows >= 0)
            total[present] += (models[m][modality].vectors[rows[present]] - means[m]) @ rotations[m].isometry
        out[part] = total / np.maximum(items.count[part], 1)[:, None]
    return out


def mean_in_frame(
    means: Sequence[ModelMeans], rotations: Sequence[FrameRotation], modality: str, without: int | None = None
) -> np.ndarray:
    """Return the mean over models, except one if ``without`` is given, of their means of a modality in the frame, shape
    (k,).
    """
    in_frame = [
        own[modality][0] @ rotation.isometry
        for m, (own, rotation) in enumerate(zip(means, rotations, strict=True))
        if modality in own and m != without
    ]
    return np.asarray(np.mean(in_frame, axis=0))


def make_model(
    rows: ModelRows,
    rotation: FrameRotation,
    means: ModelMeans,
    others: Mapping[str, np.ndarray],
    axes: Sequence[str],
    anchors: int,
) -> FrameModel:
    """Build a model of a frame; ``others`` are the means of the other models, in the frame."""
    own = {q: mean for q, (mean, _) in means.items()}
    return FrameModel(
        space_of(rows),
        np.hstack([rotation.shrunk, mean_axes(own, others, rotation, axes)]),
        own,
        {q: origin for q, (_, origin) in means.items()},
        rotation.isometry.shape[1],
        anchors,
        rotation.rank,
    )


def extend_items(
    known: dict[str, Consensus], rows: ModelRows, means: Mapping[str, np.ndarray], isometry: np.ndarray, name: str
) -> None:
    """Add a model's items that a frame does not have."""
    for q, side in rows.items():
        new = side.vectors.any(axis=1)
        if q in known:
            new &= known[q].rows_of(side, name) < 0
        ids, vectors = id_texts(side.ids[new]), (side.vectors[new] - means[q]) @ isometry
        if q in known:
            known[q] = known[q].extended(ids, vectors)
        else:
            known[q] = Consensus(ids, vectors.astype(np.float32), side.has_ids, means[q] @ isometry)


def mean_axes(
    means: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], rotation: FrameRotation, names: Sequence[str]
) -> np.ndarray:
    """Return the columns of a model's rotation for the frame's axes of means, one axis per modality.

    The rule is that of :func:`congruence.linalg.shrinkage.mean_isometry`: if the covered part of a model's mean
    corresponds to that of the other models, the uncovered part is assumed to correspond as well.

    ``means`` (d,); ``others`` (k,): mean of the other models' means in the frame; returns (d, len(names)).
    """
    out = np.zeros((len(rotation.isometry), len(names)))
    residuals, axes = [], []
    for axis, name in enumerate(names):
        if name not in means or name not in others:
            continue
        covered = means[name] @ rotation.isometry
        if not means_correspond(covered, others[name], rotation.rank):
            continue
        residual = means[name] - rotation.isometry @ covered
        if np.linalg.norm(residual) > 1e-6 * np.linalg.norm(means[name]):
            residuals.append(residual / np.linalg.norm(residual))
            axes.append(axis)
    if residuals:  # the nearest orthonormal directions
        svd = cross_svd(np.array(residuals).T)
        out[:, axes] = svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]
    return out


def join_frame(
    rows: ModelRows, known: Mapping[str, Consensus], positions: Mapping[str, np.ndarray]
) -> dict[str, CrossMoments]:
    """Gather the moments of one model's rows and the frame's items, by modality.

    ``positions`` (n,): position of each row among the frame's items, −1 if it is not among them.
    """
    moments = {}
    for q, position in positions.items():
        shared = np.flatnonzero((position >= 0) & rows[q].vectors.any(axis=1))
        if len(shared):
            moments[q] = pair_moments(
                rows[q].vectors, known[q].vectors, (shared, position[shared]), np.ones(len(shared))
            )
    return moments


def means_to_join(
    rows: ModelRows, moments: Mapping[str, CrossMoments], rotation: FrameRotation, *, center: bool
) -> ModelMeans:
    """Return the means of a model that joins a frame, as :func:`means_of` does for the models of the fit."""
    means: ModelMeans = {}
    for q, side in rows.items():
        if not center:
            means[q] = np.zeros(side.dim), "items"
        elif q in moments:
            means[q] = moments[q].source_mean - rotation.isometry @ moments[q].target_mean, "items"
        else:
            means[q] = side.vectors[side.vectors.any(axis=1)].mean(axis=0, dtype=np.float64), "rows"
    return means


def _card(frame: CanonicalFrame) -> str:
    lines = [
        "---",
        "library_name: congruence",
        "tags: [congruence, embeddings, alignment, procrustes]",
        "---",
        f"# CanonicalFrame: {len(frame.models_)} models",
        "",
        "```python",
        "from congruence import CanonicalFrame",
        "",
        'frame = CanonicalFrame.load("path/to/this/folder")',
        "mapping = frame.map(source, target)",
        "```",
        "",
        "| model | space | anchors | directions that the anchors cover |",
        "| --- | --- | --- | --- |",
    ]
    for name, model in frame.models_.items():
        cells = [as_markdown(name), as_markdown(str(model.space)), str(model.n_anchors), str(model.rank)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _modality(name: object) -> str:
    if name != "" and name not in MODALITIES:
        raise ValueError("an unknown modality")
    return str(name)


def _finite(array: np.ndarray, axes: int) -> np.ndarray:
    if array.dtype != np.float64 or array.ndim != axes or not array.size or not np.isfinite(array).all():
        raise ValueError("an array of the wrong type or shape, or with NaN")
    return array
