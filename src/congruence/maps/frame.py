"""Many models in one coordinate frame by generalized Procrustes analysis, and the maps between models through it."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts
from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.embeddings import MODALITIES, Embeddings, Space, as_embeddings
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
from congruence.linalg.generalized import generalized_procrustes
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size, total_cross, total_size
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.linalg.shrinkage import choose_gains, means_correspond
from congruence.maps._base import Map, NotFittedMapError, refuse_damage
from congruence.maps.card import card_table, front_matter
from congruence.maps.orthogonal import OrthogonalMap
from congruence.persist import TOLERANCE, count

#: Shrinkage settings of ``OrthogonalMap`` that do not need a second pass over the rows.
SHRINKAGES = ("auto", "wiener", "covered", "full")

#: The example on a frame's card.
_EXAMPLE = (
    "```python",
    "from congruence import CanonicalFrame",
    "",
    'frame = CanonicalFrame.load("path/to/this/folder")',
    "mapping = frame.map(source, target)",
    "```",
)

#: Vectors of one model by modality; the key is "" if the modality is unknown.
ModelRows: TypeAlias = dict[str, Embeddings]


@dataclass(eq=False, repr=False)
class CanonicalFrame:
    """One coordinate frame for many models, and a map between any two of them through it.

    Each model has one rotation into the frame, and one mean per modality. A map is the first model's rotation and the
    transpose of the second's, so A → B → C equals A → C. Models need not share all items, widths or modalities.

    Minimizes Σ_i 1/c_i Σ_{m<j} ‖(x_mi − t_mj) R_m − (x_ji − t_jm) R_j‖² over rotations R and translations t, where c_i
    is the number of models that have item i: for complete data generalized Procrustes analysis without scaling (Gower
    1975), for two models their ``OrthogonalMap``. See docs/reference/frames.md.

    Parameters
    ----------
    center, shrinkage, shrinkage_strength
        As for ``OrthogonalMap``, with "auto", "wiener", "covered" or "full". A map between two models multiplies the
        square roots of both models' gains.
    max_iter, tol
        Stop after so many sweeps over the models, or after one that improves the objective by less than this share.

    Attributes
    ----------
    models_ : dict of str to FrameModel
    consensus_ : dict of str to Consensus
        The items in the frame, by modality. Models added later are fitted to them.
    axes_ : list of str
        Modalities whose means have an axis of their own (``congruence.linalg.shrinkage.mean_isometry``), stored as the
        last columns of the models' rotations. Only with ``"wiener"``.
    objective_ : ndarray, shape (n_iter_ + 1,)
        Alignment over all pairs of models, Σ tr(R_mᵀ C_mj R_j) / Σ √(Σ‖x‖² Σ‖y‖²), which never decreases; 1 if exact.

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
    get_params: ClassVar[Any] = Map.get_params
    set_params: ClassVar[Any] = Map.set_params
    __repr__ = Map.__repr__

    center: bool = True
    shrinkage: str = "auto"
    shrinkage_strength: float | None = None
    max_iter: int = 200
    tol: float = 1e-8

    def fit(self, models: Mapping[str, object], *, modality: str | None = None) -> Self:
        """Fit the frame on vectors by model name, or by model and modality, matched by id; ``modality`` is that of rows
        that do not declare theirs. If no model has ids, all must have the same rows.
        """
        self._check_parameters()
        if not isinstance(models, Mapping) or len(models) < 2:
            raise InputError("A frame is of at least two models, by name.", "Pass {'name': vectors, …}.")
        sides = _name_modalities({name: _read_rows(data, name, modality) for name, data in models.items()})
        names, rows = list(sides), list(sides.values())
        items = {q: SharedItems.of(sides, q) for q in sorted({q for side in rows for q in side})}
        moments, bases = _gather(rows, items)
        groups = _connected(len(rows), moments)
        if unreached := [repr(name) for name, group in zip(names, groups, strict=True) if group]:
            problem = f"No chain of shared items leads from {names[0]!r} to {', '.join(unreached[:3])}."
            raise IdError(problem, "Pass `ids=…` that name the same items alike.")
        pooled: dict[tuple[int, int], list[CrossMoments]] = {}
        for (m, j, _), pair in moments.items():
            pooled.setdefault((m, j), []).append(pair)
        sizes = np.zeros(len(rows))  # largest possible sums of the singular values of each model's evidence
        for (m, j), pairs in pooled.items():
            sizes[[m, j]] += total_size(pairs, center=self.center)
        widths = [_width_of(side) for side in rows]
        solution = generalized_procrustes(
            {key: total_cross(pairs, center=self.center) for key, pairs in pooled.items()},
            {key: float(sum(pair.weight for pair in pairs)) for key, pairs in pooled.items()},
            [d if basis is None else basis.shape[1] for d, basis in zip(widths, bases, strict=True)],
            max(widths),
            max_iter=self.max_iter,
            tol=self.tol,
        )
        rotations, used = [], []
        for m, (name, basis, evidence) in enumerate(zip(names, bases, solution.evidence, strict=True)):
            used.append([int(matched.shared(m).sum()) for matched in items.values()])
            evidence = evidence if basis is None else basis @ evidence
            rotations.append(self._rotation(name, evidence, sizes[m], used[m], max(widths[:m] + widths[m + 1 :])))
        self.models_: dict[str, FrameModel] = {}
        self.consensus_: dict[str, Consensus] = {}
        self.axes_ = list(items) if self._shrinkage() == "wiener" and self.center else []
        means: list[dict[str, tuple[np.ndarray, str]]] = [{} for _ in rows]
        for q, matched in items.items():
            of_models = self._means_of(rows, matched, q, moments, bases, rotations)
            for m, mean in of_models.items():
                means[m][q] = mean
            center = np.mean([mean @ rotations[m].isometry for m, (mean, _) in of_models.items()], axis=0)
            vectors = _consensus(rows, matched, q, of_models, rotations)
            self.consensus_[q] = Consensus(matched.ids, vectors, matched.has_ids, center)
        for m, name in enumerate(names):
            others = {}
            for q in means[m]:
                of_others = [own[q][0] @ rotations[j].isometry for j, own in enumerate(means) if j != m and q in own]
                if of_others:
                    others[q] = np.mean(of_others, axis=0)
            self.models_[name] = _make_model(rows[m], rotations[m], means[m], others, self.axes_, sum(used[m]))
        self._infer_means()
        self.objective_ = solution.objective / (sizes.sum() / 2)
        self.n_iter_, self.converged_ = len(solution.objective) - 1, solution.converged
        if not self.converged_:
            growth = self.objective_[-1] - self.objective_[-2]
            problem = f"After `max_iter={self.max_iter}` sweeps the alignment still grew by {growth:.1e}, above tol."
            warnings.warn(ConvergenceWarning(problem, "Pass a larger `max_iter=…`, or `tol=…`."), stacklevel=2)
        return self

    def add(self, name: str, vectors: object, *, modality: str | None = None) -> Self:
        """Add a model to the frame by its rotation onto the mean of the models already in it, whose maps do not change,
        to the bit. Its items that the frame does not have become part of it, for models added later.
        """
        self.check_fitted()
        if name in self.models_:
            raise ParameterError(f"Got a model {name!r}, which the frame has.", "Pass another name.")
        rows = _name_modalities({name: _read_rows(vectors, name, modality)}, self.consensus_)[name]
        moments = {}
        for q, side in rows.items():
            if q in self.consensus_:
                position = self.consensus_[q].rows_of(side, name)
                shared = np.flatnonzero((position >= 0) & side.vectors.any(axis=1))
                if len(shared):
                    moments[q] = CrossMoments.of(side.vectors[shared], self.consensus_[q].vectors[position[shared]])
        if not moments:
            raise IdError(f"No item of {name!r} is one that the frame has.", "Pass `ids=…` that the frame has.")
        groups = list(moments.values())
        used, widest = [group.rows for group in groups], max(len(model.rotation) for model in self.models_.values())
        cross, size = pooled_cross(groups, center=self.center), pooled_size(groups, center=self.center)
        rotation = self._rotation(name, cross, size, used, widest)
        means = {}
        for q, side in rows.items():
            if not self.center:
                means[q] = np.zeros(side.dim), "items"
            elif q in moments:
                means[q] = moments[q].source_mean - rotation.isometry @ moments[q].target_mean, "items"
            else:
                means[q] = side.vectors[side.vectors.any(axis=1)].mean(axis=0, dtype=np.float64), "rows"
        known = {q: self.consensus_[q].center for q in rows if q in self.consensus_}
        model = self.models_[name] = _make_model(rows, rotation, means, known, self.axes_, sum(used))
        self._add_items(rows, model.means, rotation.isometry, name)
        self._infer_means()
        return self

    def extend(self, name: str, vectors: object, *, modality: str | None = None) -> Self:
        """Add items of a model in the frame, as new anchors for models added later (arguments as for ``add``). Neither
        maps nor items already in the frame change.
        """
        self.check_fitted()
        model = self.models_[check_choice(name, self.models_, "model")]
        rows = _name_modalities({name: _read_rows(vectors, name, modality)}, self.consensus_)[name]
        check_width(_width_of(rows), len(model.rotation), f"the frame's {name!r}")
        if unknown := sorted(set(rows) - set(model.means)):
            problem = f"The frame has no mean of {unknown[0] or 'unnamed'} rows of {name!r}."
            raise ModalityError(problem, "Pass another `modality=…`.")
        self._add_items(rows, model.means, model.isometry, name)
        return self

    def map(self, source: str, target: str, *, modality: str | None = None) -> OrthogonalMap:
        """Return the map from one model to another, with the means of every modality that both know, ``modality`` being
        the one in use. It has no moments, so it cannot be updated with ``partial_fit``.
        """
        self.check_fitted()
        a, b = (self.models_[check_choice(name, self.models_, "model")] for name in (source, target))
        if source == target:
            raise ParameterError(f"Got {source!r} twice; expected two models.", "Pass another one as `target=…`.")
        table = {q: (a.means[q], b.means[q]) for q in a.means if q in b.means}
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
        if not table or (modality is not None and modality not in table and "" not in table):
            known = f"{source!r} ({a.modalities}) and {target!r} ({b.modalities})"
            raise ModalityError(f"Got `modality={modality!r}` for {known}.", "Pass one that both have.")
        measured = [q for q in table if "frame" not in (a.means_from[q], b.means_from[q])]
        active = (modality if modality in table else (measured or list(table))[0]) or None
        out = OrthogonalMap._of_parts(
            a.rotation @ b.rotation.T,
            table[active or ""],
            {q: pair for q, pair in table.items() if q and self.center},
            (replace(a.space, modality=active), replace(b.space, modality=active)),
            modality=active,
            told=modality is not None,
            n_pairs=min(a.n_anchors, b.n_anchors),
            center=self.center,
        )
        origins = {q: [a.means_from[q], b.means_from[q]] for q in table}
        out.facts_ |= {"frame": list(self.models_), "means_from": origins}
        return out

    def check_fitted(self) -> None:
        """Refuse a frame that is not fitted. Raises NotFittedMapError."""
        if not hasattr(self, "models_"):
            raise NotFittedMapError("Got an unfitted CanonicalFrame; expected a fitted one.", "Call fit(models) first.")

    def _check_parameters(self) -> None:
        check_choice(self.shrinkage, SHRINKAGES, "shrinkage")
        if self.shrinkage_strength is not None:
            check_positive(self.shrinkage_strength, "shrinkage_strength", zero=True)
        check_positive(self.max_iter, "max_iter", integer=True)
        check_positive(self.tol, "tol", zero=True)

    def _shrinkage(self) -> str:
        return "wiener" if self.shrinkage == "auto" else self.shrinkage

    def _rotation(self, name: str, evidence: np.ndarray, size: float, used: Sequence[int], widest: int) -> Rotation:
        """Return a model's rotation from its cross-covariance (d, k) with the others in the frame, and its bounds."""
        most = sum(used) - sum(n > 0 for n in used) * self.center
        if sum(used) < 2 or most < 1:
            raise TooFewAnchorsError(f"Too few items of {name!r}, {sum(used)}, are in other models.", "Pass more.")
        shrinkage = self._shrinkage()
        svd = cross_svd(evidence, max_rank=most, scale=size, complete=shrinkage == "full")
        if not svd.rank:
            raise InputError(f"The rows of {name!r} and of other models do not vary together.", "Pass more items.")
        if shrinkage == "full":  # fill also the directions that narrower models do not have
            isometry = svd.U @ svd.Vt
            return Rotation(isometry, isometry, svd.rank)
        # Two narrow models can cover more directions together than either of them.
        k = len(svd.s) if shrinkage == "covered" else min(len(svd.s), widest)
        svd = CrossSVD(svd.U[:, :k], svd.s[:k], svd.Vt[:k], min(svd.rank, k))
        gains = choose_gains(shrinkage, svd, float(svd.s.sum() / size), self.shrinkage_strength)[1]
        isometry = svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]
        return Rotation(isometry, (svd.U * np.sqrt(gains[: svd.U.shape[1]])) @ svd.Vt, svd.rank)

    def _means_of(
        self,
        models: Sequence[ModelRows],
        items: SharedItems,
        modality: str,
        moments: Mapping[tuple[int, int, str], CrossMoments],
        bases: Sequence[np.ndarray | None],
        rotations: Sequence[Rotation],
    ) -> dict[int, tuple[np.ndarray, str]]:
        """Return each model's mean (d_m,) of one modality, all at the same point of the frame, and where it comes from.
        As models may lack items, the translations into the frame are least-squares solutions over all pairs of models;
        with complete data the models' own means. Models that share no item are connected by their means.
        """
        present = [m for m, rows in enumerate(models) if modality in rows]
        if not self.center:
            return {m: (np.zeros(len(rotations[m].isometry)), "items") for m in present}
        shared = {(m, j): pair for (m, j, q), pair in moments.items() if q == modality}
        # Rotations from the coordinates of the moments.
        inner = [R.isometry if Q is None else Q.T @ R.isometry for R, Q in zip(rotations, bases, strict=True)]
        laplacian = np.zeros((len(models), len(models)))
        right_hand_side = np.zeros((len(models), rotations[0].isometry.shape[1]))
        for (m, j), pair in shared.items():
            gap = pair.source_mean @ inner[m] - pair.target_mean @ inner[j]
            laplacian[[m, j], [m, j]] += pair.weight
            laplacian[[m, j], [j, m]] -= pair.weight
            right_hand_side[[m, j]] += pair.weight * np.stack([gap, -gap])
        offset = np.linalg.pinv(laplacian, hermitian=True) @ right_hand_side
        weights = 1 / np.maximum(items.count, 1)
        group_of = _connected(len(models), shared)
        out = {}
        for label in sorted({group_of[m] for m in present}):
            group = [m for m in present if group_of[m] == label]
            means, total, center = {}, 0.0, np.zeros(right_hand_side.shape[1])
            for m in group:
                known = np.flatnonzero(items.shared(m) if len(group) > 1 else items.rows[m] >= 0)
                X, rows = models[m][modality].vectors, items.rows[m][known]
                means[m] = _weighted_mean(X, rows, np.ones(len(rows)))
                weight = float(weights[known].sum())
                center += weight * (_weighted_mean(X, rows, weights[known]) @ rotations[m].isometry - offset[m])
                total += weight
            for m in group:
                R = rotations[m].isometry
                shift = means[m] @ R - offset[m] - center / total  # of this model's items from the mean of all items
                out[m] = means[m] - shift @ R.T, "items" if len(group) > 1 else "rows"
        return out

    def _add_items(self, rows: ModelRows, means: Mapping[str, np.ndarray], isometry: np.ndarray, name: str) -> None:
        """Add a model's items that the frame does not have."""
        for q, side in rows.items():
            known, new = self.consensus_.get(q), side.vectors.any(axis=1)
            if known is not None:
                new &= known.rows_of(side, name) < 0
            ids = id_texts(side.ids[new])
            vectors = ((side.vectors[new] - means[q]) @ isometry).astype(np.float32)
            if known is None:
                self.consensus_[q] = Consensus(ids, vectors, side.has_ids, means[q] @ isometry)
            else:
                ids, vectors = np.concatenate([known.ids, ids]), np.concatenate([known.vectors, vectors])
                self.consensus_[q] = replace(known, ids=ids, vectors=vectors)

    def _infer_means(self) -> None:
        """Infer means of modalities that models have no rows of from gaps in other models, each of them once."""
        measured = {
            name: [q for q, origin in model.means_from.items() if origin != "frame"]
            for name, model in self.models_.items()
        }
        for q in self.consensus_ if self.center else ():
            for name, model in self.models_.items():
                for p in [] if q in model.means else measured[name]:
                    both = [other for key, other in self.models_.items() if {p, q} <= set(measured[key])]
                    if both:
                        gap = np.mean([(other.means[q] - other.means[p]) @ other.rotation for other in both], axis=0)
                        model.means[q] = model.means[p] + model.rotation @ gap
                        model.means_from[q] = "frame"
                        break

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

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the frame as a folder; without ``force``, an existing one raises OutputExistsError."""
        self.check_fitted()
        arrays: dict[str, np.ndarray] = {"objective": self.objective_}
        models, items = [], []
        table = [["model", "space", "anchors", "directions that the pairs span"]]
        for m, (name, model) in enumerate(self.models_.items()):
            arrays |= {f"rotation.{m}": model.rotation, **{f"mean.{m}.{q}": mean for q, mean in model.means.items()}}
            facts = {"means_from": model.means_from, "n_anchors": model.n_anchors, "rank": model.rank}
            models.append({"name": name, "space": model.space.to_dict(), **facts})
            table.append([name, str(model.space), str(model.n_anchors), str(model.rank)])
        for q, consensus in self.consensus_.items():
            # The size of the JSON file is limited, so ids are arrays: the concatenated texts, and the end of each.
            texts = [text.encode("utf-8") for text in consensus.ids.tolist()]
            arrays[f"ids.{q}"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
            arrays[f"ends.{q}"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
            arrays |= {f"items.{q}": consensus.vectors, f"center.{q}": consensus.center}
            items.append({"modality": q, "has_ids": consensus.has_ids})
        known = {"axes": self.axes_, "n_iter": self.n_iter_, "converged": self.converged_}
        facts = {"models": models, "items": items, **known}
        config = {"kind": self.kind, "parameters": self.get_params(deep=False), "facts": facts, "scores": {}}
        title = f"{len(self.models_)} models"
        head = [*front_matter(title, ("procrustes",)), f"# CanonicalFrame: {title}", ""]
        card = "\n".join([*head, *_EXAMPLE, "", *card_table(table)]) + "\n"
        return persist.write_folder(path, arrays, config, card, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a frame saved with ``save``. Nothing in the folder is executed."""
        arrays, config = persist.read_folder(path)
        if (kind := config.get("kind")) != cls.kind:
            fix = ("Load it with `congruence.load`.", "Pass a frame.")
            raise CorruptFileError(f"Got a map of kind {kind!r} in {path}, not a frame.", fix)
        with refuse_damage("frame", path):
            persist.check_parameters(cls, config["parameters"])
            frame = cls(**config["parameters"])
            frame._check_parameters()
            frame._restore(dict(arrays), config["facts"])
        return frame

    def _restore(self, arrays: dict[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Set the fitted attributes from a folder's content, after checking it."""
        ids, shapes = {}, {"objective": "s"}
        for at, entry in enumerate(facts["items"]):
            q = entry["modality"]
            ids[q] = _read_ids(arrays.pop(f"ids.{q}"), arrays.pop(f"ends.{q}"))
            shapes |= {f"items.{q}": f"{chr(1000 + at)}k", f"center.{q}": "k"}
        for m, entry in enumerate(facts["models"]):
            width = chr(2000 + m)  # a letter for each length
            shapes |= {f"rotation.{m}": f"{width}r"} | {f"mean.{m}.{q}": width for q in entry["means_from"]}
        persist.check_arrays(arrays, shapes)
        self.axes_, self.converged_, self.n_iter_ = list(facts["axes"]), facts["converged"], count(facts, "n_iter")
        self.objective_ = arrays["objective"]
        self.consensus_ = {
            entry["modality"]: Consensus(ids[q], arrays[f"items.{q}"], entry["has_ids"], arrays[f"center.{q}"])
            for entry, q in zip(facts["items"], ids, strict=True)
        }
        self.models_ = {}
        k = len(arrays[f"center.{next(iter(ids))}"])
        for m, entry in enumerate(facts["models"]):
            rotation, origins = arrays[f"rotation.{m}"], dict(entry["means_from"])
            means = {q: arrays[f"mean.{m}.{q}"] for q in origins}
            rank, anchors = count(entry, "rank", most=min(len(rotation), k)), count(entry, "n_anchors")
            space = Space.from_dict(entry["space"])
            self.models_[entry["name"]] = FrameModel(space, rotation, means, origins, k, anchors, rank)
        if len(self.objective_) != self.n_iter_ + 1 or type(self.converged_) is not bool:
            raise ValueError("sweeps that do not match")
        if not {*self.axes_, *ids} <= {*MODALITIES, ""}:
            raise ValueError("an unknown modality")
        if any(len(one.ids) != len(one.vectors) or type(one.has_ids) is not bool for one in self.consensus_.values()):
            raise ValueError("items that do not fit their ids")
        if not len(self.models_) == len(facts["models"]) >= 2 or not all(type(name) is str for name in self.models_):
            raise ValueError("fewer than two models, or names that are repeated or no strings")
        if not all(model.fits(ids, self.axes_) for model in self.models_.values()):
            raise ValueError("a damaged model")


@dataclass(frozen=True)
class FrameModel:
    """One model of a frame. ``rotation`` (d, k + a) is multiplied by the square roots of the gains; its last columns
    are the axes of the modalities' means. ``means`` (d,) by modality (``""`` if unnamed) are at the same point of the
    frame in every model; ``means_from`` says whether they come from shared "items", from "rows" that no other model
    has, or from the gap between modalities in the "frame". ``width`` is k; ``n_anchors`` rows cover ``rank`` ones.
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

    @property
    def modalities(self) -> str:
        """The modalities whose means are known, for messages."""
        return ", ".join(q or "no modality named" for q in self.means)

    def fits(self, known: Container[str], axes: Sequence[str]) -> bool:
        """Return whether a saved model is one of a frame with these modalities and axes of means."""
        d, k = self.rotation.shape
        origins = all(q in known and origin in ("items", "rows", "frame") for q, origin in self.means_from.items())
        norm = float(np.linalg.norm(self.rotation, 2))
        return origins and k == self.width + len(axes) and self.space.dim in (None, d) and norm <= 1 + TOLERANCE


@dataclass(frozen=True)
class Consensus:
    """The items of one modality in the frame: ``vectors`` (n, k), float32, are means over the models that have the
    item, ``center`` (k,) is the mean of the models' means. Without ids, rows are matched by position.
    """

    ids: np.ndarray
    vectors: np.ndarray
    has_ids: bool
    center: np.ndarray

    def rows_of(self, rows: Embeddings, name: str) -> np.ndarray:
        """Return the position of each row among the items, −1 for rows that are not among them, shape (n,)."""
        if self.has_ids != rows.has_ids:
            with_ids, without = ("the frame", repr(name)) if self.has_ids else (repr(name), "the frame")
            raise IdError(f"Got ids for {with_ids} and none for {without}.", "Pass `ids=…` for every model.")
        if rows.has_ids:
            return id_rows(self.ids, rows.ids)
        if len(rows) != len(self.ids):
            raise ShapeError(f"Got {len(rows)} rows of {name!r}, not {len(self.ids)}.", "Pass `ids=…` for every model.")
        return np.arange(len(rows))


@dataclass(frozen=True)
class SharedItems:
    """The items of one modality over all models, in the order in which they first occur; ``rows`` (M, n) has the row
    number of each item in each model, −1 if the model does not have it. Without ids, items are row numbers.
    """

    ids: np.ndarray
    has_ids: bool
    rows: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Number of models that have each item, shape (n,)."""
        return np.asarray(np.count_nonzero(self.rows >= 0, axis=0))

    def shared(self, m: int) -> np.ndarray:
        """Return whether model ``m`` and another one have each item, shape (n,)."""
        return np.asarray((self.rows[m] >= 0) & (self.count > 1))

    @classmethod
    def of(cls, models: Mapping[str, ModelRows], modality: str) -> SharedItems:
        """Match the rows of one modality."""
        sides = {name: rows[modality] for name, rows in models.items() if modality in rows}
        named = [name for name, side in sides.items() if side.has_ids]
        if (named and len(named) < len(sides)) or (not named and len({len(side) for side in sides.values()}) > 1):
            sizes = ", ".join(
                f"{len(side)} rows of {name!r} with{'' if side.has_ids else 'out'} ids" for name, side in sides.items()
            )
            problem = f"Got {sizes}; expected as many rows of each, or ids to match them by."
            raise (IdError if named else ShapeError)(problem, "Pass `ids=…` for every model.")
        ids = id_texts(next(iter(sides.values())).ids)
        for side in list(sides.values())[1:]:
            texts = id_texts(side.ids)
            ids = np.concatenate([ids, texts[id_rows(ids, texts) < 0]])
        rows = np.full((len(models), len(ids)), -1)
        for m, name in enumerate(models):
            if name in sides:
                side, nonzero = sides[name], np.asarray(sides[name].vectors.any(axis=1))
                positions = id_rows(side.ids, ids) if named else np.arange(len(ids))
                # A zero row is a failed encoding.
                rows[m] = np.where((positions >= 0) & nonzero[positions], positions, -1)
        return cls(ids, bool(named), rows)


class Rotation(NamedTuple):
    """One model's rotation into the frame (d, k): the partial isometry of the ``rank`` directions that its anchors
    cover (of all with ``shrinkage="full"``), and the same multiplied by the square roots of the gains.
    """

    isometry: np.ndarray
    shrunk: np.ndarray
    rank: int


def _read_rows(data: Any, name: object, modality: str | None = None) -> ModelRows:
    """Return one model's vectors by modality, ``""`` if it is unknown; ``modality`` is that of rows without a key."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"Got a model named {name!r}.", "Pass a name for every model.")
    given = data if isinstance(data, Mapping) else {None: data}
    if not given:
        raise InputError(f"Got no rows of {name!r}.", "Leave this model out.")
    by_modality = {}
    for key, value in given.items():
        if key is not None:
            check_choice(key, MODALITIES, f"the modality of {name!r}")
        rows = as_embeddings(value, f"the {key or ''} rows of {name!r}".replace("  ", " "))
        declared, stated = rows.space.modality, modality if key is None else key
        if None not in (declared, stated) and declared != stated:
            raise ModalityError(f"Got {declared} vectors of {name!r} as {stated}.", "Correct the modality.")
        if not rows.vectors.any():
            raise ZeroRowError(f"Got only rows of zeros of {name!r}.", "Encode them again, or leave them out.")
        by_modality[declared or stated or ""] = rows
    if len(widths := sorted({rows.dim for rows in by_modality.values()})) > 1:
        raise ShapeError(f"Got vectors of {name!r} of widths {widths}.", "Pass them as two models.")
    return by_modality


def _name_modalities(models: Mapping[str, ModelRows], known: Iterable[str] = ()) -> dict[str, ModelRows]:
    """Return the models with rows of unknown modality under the one modality that other rows have."""
    modalities = {q for rows in models.values() for q in rows} | set(known)
    named = sorted(modalities - {""})
    if "" not in modalities or not named:
        return dict(models)
    if len(named) > 1:
        raise ModalityError(f"Got {' and '.join(named)} rows, and some of no modality.", "Pass `modality=…`.")
    return {name: {named[0]: rows[""]} if "" in rows else rows for name, rows in models.items()}


def _width_of(rows: ModelRows) -> int:
    return next(iter(rows.values())).dim


def _gather(
    models: Sequence[ModelRows], items: Mapping[str, SharedItems]
) -> tuple[dict[tuple[int, int, str], CrossMoments], list[np.ndarray | None]]:
    """Compute the moments of every pair of models on the items both have, each weighted by 1 / (models that have it).
    Models with fewer shared rows than dimensions are described in a basis (d_m, r) of these rows, returned too.
    """
    bases: list[np.ndarray | None] = []
    reduced: list[dict[str, np.ndarray]] = []
    place: list[dict[str, np.ndarray]] = []  # of each item among the reduced rows
    for m, rows in enumerate(models):
        used = {q: np.flatnonzero(items[q].shared(m)) for q in rows}
        vectors, basis = {q: rows[q].vectors for q in rows}, None
        place.append({q: items[q].rows[m] for q in rows})
        if sum(map(len, used.values())) < _width_of(rows):
            vectors = {q: vectors[q][items[q].rows[m][used[q]]].astype(np.float64) for q in rows}
            basis = np.linalg.qr(np.concatenate([*vectors.values()]).T)[0]
            vectors = {q: vectors[q] @ basis for q in rows}
            for q in rows:
                place[m][q] = np.full(len(items[q].ids), -1)
                place[m][q][used[q]] = np.arange(len(used[q]))
        bases.append(basis)
        reduced.append(vectors)
    moments = {}
    for q, matched in items.items():
        weights = 1 / np.maximum(matched.count, 1)
        for m, j in combinations(range(len(models)), 2):
            both = np.flatnonzero((matched.rows[m] >= 0) & (matched.rows[j] >= 0))
            if len(both):
                X, Y = (reduced[side][q][place[side][q][both]] for side in (m, j))
                moments[m, j, q] = CrossMoments.of(X, Y, weights[both])
    return moments, bases


def _connected(n: int, pairs: Iterable[tuple[Any, ...]]) -> list[int]:
    """Return the number of each model's group: models that pairs (m, j, …) connect; that of the first model is 0."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array([pair[:2] for pair in pairs], dtype=int).reshape(-1, 2).T
    graph = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(n, n))
    return connected_components(graph, directed=False)[1].tolist()


def _weighted_mean(X: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(X.shape[1])
    for part in blocks(len(rows), 8 * X.shape[1]):
        total += weights[part] @ X[rows[part]].astype(np.float64)
    return np.asarray(total / weights.sum())


def _consensus(
    models: Sequence[ModelRows],
    items: SharedItems,
    modality: str,
    means: Mapping[int, tuple[np.ndarray, str]],
    rotations: Sequence[Rotation],
) -> np.ndarray:
    """Return each item's mean over the models that have it, in the frame: float32, shape (n, k)."""
    k = rotations[0].isometry.shape[1]
    out = np.zeros((len(items.ids), k), dtype=np.float32)
    for part in blocks(len(items.ids), 24 * k):
        total = np.zeros((part.stop - part.start, k))
        for m, (mean, _) in means.items():
            rows = items.rows[m][part]
            present = np.flatnonzero(rows >= 0)
            total[present] += (models[m][modality].vectors[rows[present]] - mean) @ rotations[m].isometry
        out[part] = total / np.maximum(items.count[part], 1)[:, None]
    return out


def _make_model(
    rows: ModelRows,
    rotation: Rotation,
    means: Mapping[str, tuple[np.ndarray, str]],
    others: Mapping[str, np.ndarray],
    axes: Sequence[str],
    anchors: int,
) -> FrameModel:
    """Build a model of a frame, with one more column for each modality in ``axes``; ``others`` (k,) are the means of
    the other models' means in the frame. As in ``congruence.linalg.shrinkage.mean_isometry``: if the covered part of a
    model's mean corresponds to that of the others, the uncovered part is assumed to correspond as well.
    """
    columns = np.zeros((len(rotation.isometry), len(axes)))
    residuals, used = [], []
    for axis, q in enumerate(axes):
        if q in means and q in others:
            mean = means[q][0]
            covered = mean @ rotation.isometry
            residual = mean - rotation.isometry @ covered
            size = np.linalg.norm(residual)
            if means_correspond(covered, others[q], rotation.rank) and size > 1e-6 * np.linalg.norm(mean):
                residuals.append(residual / size)
                used.append(axis)
    if residuals:  # the nearest orthonormal directions
        svd = cross_svd(np.array(residuals).T)
        columns[:, used] = svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]
    spaces = [side.space for side in rows.values()]
    space = replace(spaces[0], modality=None, normalized=all(one.normalized for one in spaces))
    own, origins = {q: mean for q, (mean, _) in means.items()}, {q: origin for q, (_, origin) in means.items()}
    k = rotation.isometry.shape[1]
    return FrameModel(space, np.hstack([rotation.shrunk, columns]), own, origins, k, anchors, rotation.rank)


def _read_ids(text: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the ids from their concatenated texts and the end of each, as saved."""
    if text.dtype != np.uint8 or ends.dtype != np.int64 or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("damaged ids")
    raw, ids = text.tobytes(), np.empty(len(ends), dtype=object)
    ids[:] = [raw[a:b].decode("utf-8") for a, b in pairwise([0, *ends.tolist()])]
    if len(set(ids.tolist())) < len(ids) or (len(ends) and ends[-1] != len(text)):
        raise ValueError("repeated ids, or ids that do not fit their texts")
    return ids
