"""The kernel map: kernel ridge regression, linear or Gaussian, whose kernel and penalty leave-one-out errors choose."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from congruence._utils.arrays import blocks, cast_like, is_tensor, namespace, normalize_rows
from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.errors import InputError, ModalityError
from congruence.maps._base import Map
from congruence.maps._layers import in_blocks
from congruence.maps.orthogonal import Modalities, _split_modalities
from congruence.maps.readout import Folded, basis, inside, is_cone, to_sphere
from congruence.persist import check_arrays, count, number
from congruence.splits import equal_rows

KERNELS = ("auto", "linear", "rbf")
WIDTHS = (0.5, 1.0, 2.0, 4.0)  # of Gaussian kernels, as multiples of the median squared distance between rows
RIDGES = tuple(np.logspace(-3, 2, 11).tolist())
COMPARED = 1000  # most rows on which kernel and penalty are chosen: the time grows with their cube
PROJECTED = 64  # directions of the target, drawn at random, on which they are compared


class KernelRidge(NamedTuple):
    """A fitted kernel ridge regression with an intercept."""

    kernel: str  # "linear" or "rbf"
    width: float  # ⟨x, z⟩ / width, or exp(−‖x − z‖² / width), of centered rows
    ridge: float
    mean: np.ndarray  # (i,)
    landmarks: np.ndarray  # (l, i), centered
    coef: np.ndarray  # (l, o)
    offset: np.ndarray  # (o,)

    def predict(self, rows: Array) -> Array:
        """Return the regression of rows (n, i), in their precision and array library, shape (n, o)."""
        mean, landmarks, coef, offset = (cast_like(part, rows) for part in self[3:])
        return _products(rows - mean, landmarks, self.kernel, self.width) @ coef + offset

    @classmethod
    def fit(
        cls,
        X: np.ndarray,
        Y: np.ndarray,
        *,
        start: np.ndarray | float = 0.0,
        axes: np.ndarray | None = None,
        kernel: str = "auto",
        width: float | None = None,
        ridge: float | None = None,
        landmarks: int = 2000,
        random_state: int = 0,
    ) -> KernelFit:
        """Fit on rows (n, i) and (n, o). What is None is chosen by the mean cosine of left-out predictions with the
        truth, without ``axes`` (k, o), once ``start`` (n, o) is added to both. Equal rows of X count once, with the
        mean of their Y.
        """
        rng = np.random.default_rng(random_state)
        first, place = np.unique(equal_rows(X), return_inverse=True)
        if len(first) < len(X):
            total = np.zeros((len(first), Y.shape[1]))
            np.add.at(total, place, Y)
            Y = total / np.bincount(place)[:, None]
        X, n = X[first], len(first)
        order = np.arange(n) if n <= landmarks else np.sort(rng.choice(n, landmarks, replace=False))
        some = order if len(order) <= COMPARED else np.sort(rng.choice(order, COMPARED, replace=False))
        mean = X.mean(axis=0, dtype=np.float64)
        A, D = X[some] - mean, Y[some].astype(np.float64)
        level = D.mean(axis=0)
        view = np.eye(D.shape[1]) if D.shape[1] <= PROJECTED else rng.standard_normal((D.shape[1], PROJECTED))
        view = view if axes is None else view - axes.T @ (axes @ view)
        seen, whole = (D - level) @ view, (D + np.broadcast_to(start, (len(place), D.shape[1]))[first[some]]) @ view
        truth, size = normalize_rows(whole), float(np.square(A).sum(axis=1).mean()) or 1.0
        usual = float(np.median(_apart(A, A)[np.triu_indices(len(A), 1)]))
        usual = usual if usual > 1e-9 * size else size
        tried = [("linear", size)] * (kernel != "rbf")
        tried += [("rbf", one * usual) for one in (WIDTHS if width is None else (width,)) if kernel != "linear"]
        best: tuple[float, Any] = -np.inf, None
        for name, scale in tried:
            gram = _products(A, A, name, scale)
            level_of = gram.mean(axis=0)
            values, U = np.linalg.eigh(gram - level_of - level_of[:, None] + level_of.mean())
            values, inner = np.maximum(values, 0.0), U.T @ seen
            for penalty in RIDGES if ridge is None else (ridge,):
                kept = values / (values + penalty)
                # A row's residual without it is its residual divided by 1 − its leverage (Allen 1974, PRESS).
                rest = 1 - 1 / len(A) - np.square(U) @ kept
                guess = whole - (seen - U @ (kept[:, None] * inner)) / np.maximum(rest, 1e-9)[:, None]
                score = float(np.einsum("ij,ij->i", normalize_rows(guess), truth).mean())
                if score > best[0]:
                    best = score, (name, scale, penalty, values, U, kept, rest, level_of)
        score, (name, scale, penalty, values, U, kept, rest, level_of) = best
        residual = D - level - U @ (kept[:, None] * (U.T @ (D - level)))
        left_out = D - residual / np.maximum(rest, 1e-9)[:, None]
        if n == len(some):
            coef = U @ (U.T @ (D - level) / (values + penalty)[:, None])
            found = cls(name, scale, penalty, mean, A, coef, level - level_of @ coef)
            return KernelFit(found, Y, first, left_out, score)
        # Nyström features of the landmarks (Williams and Seeger 2001).
        marks = X[order] - mean
        gram = _products(marks, marks, name, scale)
        gram[np.diag_indices(len(gram))] += 1e-8 * len(gram) * gram.diagonal().max()
        whiten = np.linalg.inv(np.linalg.cholesky(gram)).T
        moment, cross, sums = np.zeros_like(gram), np.zeros((len(gram), Y.shape[1])), np.zeros(len(gram))
        middle = Y.mean(axis=0, dtype=np.float64)
        for part in blocks(n, 8 * (X.shape[1] + 2 * len(gram) + Y.shape[1])):
            features = _products(X[part] - mean, marks, name, scale) @ whiten
            moment += features.T @ features
            cross += features.T @ (Y[part] - middle)
            sums += features.sum(axis=0)
        moment -= np.outer(sums, sums / n)
        moment[np.diag_indices(len(moment))] += penalty
        weights = np.linalg.solve(moment, cross)
        found = cls(name, scale, penalty, mean, marks, whiten @ weights, middle - sums / n @ weights)
        return KernelFit(found, Y[order], first[some], left_out, score)


class KernelFit(NamedTuple):
    """A kernel ridge regression, and what it was chosen by."""

    regression: KernelRidge
    targets: np.ndarray  # (l, o), of the landmarks
    rows: np.ndarray  # (c,), on which kernel and penalty were chosen
    left_out: np.ndarray  # (c, o), predictions of these rows without themselves
    cosine: float


def _apart(rows: Array, landmarks: Array) -> Array:
    """Return squared distances (n, l) between rows (n, i) and landmarks (l, i)."""
    xp = namespace(rows)
    squares = xp.sum(rows * rows, axis=1)[:, None] + xp.sum(landmarks * landmarks, axis=1)
    return xp.clip(squares - 2 * (rows @ landmarks.T), min=0)


def _products(rows: Array, landmarks: Array, kernel: str, width: float) -> Array:
    """Return the kernel (n, l) between centered rows (n, i) and landmarks (l, i)."""
    if kernel == "linear":
        return rows @ landmarks.T / width
    return namespace(rows).exp(-_apart(rows, landmarks) / width)


def on_cone(deviations: Array, mean: np.ndarray) -> Array:
    """Return unit rows from their deviations (n, o) from the mean (o,): the part along the mean stays as it is, and the
    direction of the rest leads from there to the unit sphere.
    """
    if not is_cone(mean):
        return normalize_rows(deviations + cast_like(mean, deviations))
    axis = mean / np.linalg.norm(mean)
    return to_sphere(deviations, Folded(np.eye(0), np.zeros(1), inside(mean), axis, 1.0, axis))


@dataclass(eq=False, repr=False)
class KernelMap(Map):
    """Kernel ridge regression between two spaces, whose rows are put back on the cone of the target's unit rows.

    The regression (Saunders, Gammerman and Vovk 1998) gives a row's deviation from its mean. Of unit rows, the part
    along the mean is kept, and of the rest only the direction: a shrunk prediction would stand too near to the mean.
    For other rows, the map is the regression itself. It is not linear: it has no inverse, and cannot be merged or
    exported.

    Parameters
    ----------
    kernel : {"auto", "linear", "rbf"}, default="auto"
        exp(−‖x − z‖² / width) or ⟨x, z⟩ / scale, of rows about their means.
    width : float, optional
        Of the Gaussian kernel, as a multiple of the median squared distance between rows.
    ridge : float, optional
        Penalty λ, added to the diagonal of the kernel matrix. What is not given is chosen by the mean cosine of
        left-out rows, in closed form, on at most 1,000 rows and 64 random directions.
    landmarks : int, default=2000
        Most rows that span the map; of more pairs, random ones (Nyström), so that time grows linearly.

    Attributes
    ----------
    regression_ : KernelRidge
    loo_cosine_ : float
        Mean cosine, without the means, of left-out rows with the target's.
    target_rows_ : ndarray, shape (l, d_target)
        The target's rows of the landmarks, about their means.
    modality_means_ : dict of str to (ndarray, ndarray)
        Source and target mean of each modality of the pairs; "" if it was not named.
    """

    kind: ClassVar[str] = "kernel"

    kernel: str = "auto"
    width: float | None = None
    ridge: float | None = None
    landmarks: int = 2000
    random_state: int = 0

    def fit(self, X: RowsLike, Y: RowsLike, modality: Modalities = None) -> Self:
        """Fit on rows paired by position; ``modality`` is one name or one per row, each with its own means."""
        check_choice(self.kernel, KERNELS, "kernel")
        check_positive(self.landmarks, "landmarks", integer=True)
        check_seed(self.random_state)
        for name in ("width", "ridge"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        A, B, _ = self._check_pairs(X, Y)
        self._remember(A, B)
        self.modality_means_: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        A, B = A.astype(np.float64), B.astype(np.float64)
        for name, rows in _split_modalities(modality, len(A)):
            which = slice(None) if rows is None else rows
            self.modality_means_[name] = A[which].mean(axis=0), B[which].mean(axis=0)
            A[which], B[which] = (
                side[which] - mean for side, mean in zip((A, B), self.modality_means_[name], strict=True)
            )
        sizes = (max(np.abs(mean).max() for mean in side) for side in zip(*self.modality_means_.values(), strict=True))
        if any(
            np.abs(side).max() <= 1e-12 * size for side, size in zip((A, B), sizes, strict=True)
        ):  # the rest is rounding
            raise InputError(f"Got {len(A)} pairs that do not vary.", "Pass other pairs.")
        self._use(next(iter(self.modality_means_)))
        axes = basis(b for _, b in self.modality_means_.values()) if self.target_space_.normalized else None
        options = {name: getattr(self, name) for name in ("kernel", "width", "ridge", "landmarks", "random_state")}
        self.regression_, self.target_rows_, _, _, self.loo_cosine_ = KernelRidge.fit(A, B, axes=axes, **options)
        self.n_pairs_, unit = len(A), bool(self.target_space_.normalized)
        self.facts_ = {"n_pairs": len(A), "modality": self.modality_, "unit_rows": unit, "loo_cosine": self.loo_cosine_}
        self.facts_ |= {f"{name}_used": getattr(self.regression_, name) for name in ("kernel", "width", "ridge")}
        return self

    def _use(self, modality: str) -> None:
        self.modality_ = modality
        self.source_mean_, self.target_mean_ = self.modality_means_[modality]

    def for_modality(self, modality: str | None, *, ask: bool = False) -> Self:
        """Return the map with the means of one of its modalities; of ``None``, the map itself."""
        super().for_modality(modality)
        self.check_fitted()
        if modality is None or modality == self.modality_ or list(self.modality_means_) == [""]:
            return self
        if modality not in self.modality_means_:
            known = ", ".join(self.modality_means_)
            raise ModalityError(f"Got {modality} rows; the map has means for {known}.", "Fit it with pairs of both.")
        new = copy(self)
        new._use(modality)
        for name in ("source_space_", "target_space_"):
            setattr(new, name, replace(getattr(self, name), modality=modality))
        return new

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs that span the map, about the means in use, shapes (l, d_source) and (l, d_target)."""
        rows = self.regression_.landmarks + self.regression_.mean
        return rows + self.source_mean_, self.target_rows_ + self.target_mean_

    def _map(self, rows: Array) -> Array:
        means = self.source_mean_, self.target_mean_

        def block(part: Array) -> Array:
            xp = namespace(part)
            # Coefficients of both signs cancel, so single precision is too coarse; Apple's GPUs have no other.
            wide = part if is_tensor(part) and part.device.type == "mps" else xp.astype(part, xp.float64)
            out = self.regression_.predict(wide - cast_like(means[0], wide))
            out = on_cone(out, means[1]) if self.facts_["unit_rows"] else out + cast_like(means[1], out)
            return xp.astype(out, part.dtype)

        return in_blocks(block, rows, self._n_features_out, 3 * len(self.regression_.landmarks))

    @property
    def _n_features_out(self) -> int:
        return len(self.target_mean_)

    def state(self) -> dict[str, np.ndarray]:
        """Return landmarks, coefficients and means as arrays."""
        self.check_fitted()
        kept = dict(zip(KernelRidge._fields[3:], self.regression_[3:], strict=True))
        for name, means in self.modality_means_.items():
            kept |= {f"means.{name}.source": means[0], f"means.{name}.target": means[1]}
        return {**kept, "target_rows": self.target_rows_}

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        names = [name.split(".")[1] for name in arrays if name.startswith("means.") and name.endswith(".source")]
        shapes = {f"means.{name}.{side}": axis for name in names for side, axis in (("source", "i"), ("target", "o"))}
        shapes |= {"mean": "i", "landmarks": "li", "coef": "lo", "offset": "o", "target_rows": "lo"}
        check_arrays(arrays, shapes)
        kernel, width = check_choice(facts["kernel_used"], KERNELS[1:], "kernel"), number(facts, "width_used")
        if not width > 0:
            raise ValueError(f"a kernel of width {width}")
        parts = (arrays[name] for name in KernelRidge._fields[3:])
        self.regression_ = KernelRidge(kernel, width, number(facts, "ridge_used"), *parts)
        self.target_rows_, self.loo_cosine_ = arrays["target_rows"], number(facts, "loo_cosine")
        self.modality_means_ = {n: (arrays[f"means.{n}.source"], arrays[f"means.{n}.target"]) for n in names}
        self._use(facts["modality"])
        self.n_pairs_, self.n_features_in_ = count(facts, "n_pairs"), len(self.regression_.mean)
        self.facts_ = {**facts, "unit_rows": facts["unit_rows"] is True}
