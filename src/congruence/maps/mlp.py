"""The nonlinear map: a residual perceptron added to a linear map, trained with early stopping (extra ``train``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from congruence._utils.optional import require
from congruence._utils.progress import progress_bar
from congruence._utils.typing import Array, Layer, RowsLike
from congruence._utils.validation import check_positive, check_seed
from congruence.errors import ParameterError
from congruence.maps._base import Map
from congruence.maps._layers import cast, forward, in_blocks
from congruence.maps.linear import LinearMap
from congruence.persist import check_arrays, count
from congruence.splits import duplicate_groups

#: Shapes of the arrays of a saved map: i and o the widths of the models, h of the hidden layer.
_WEIGHTS = {"matrix": "io", "source_mean": "i", "target_mean": "o", "w1": "ih", "b1": "h", "w2": "ho", "b2": "o"}
_MEANS = ("source_mean", "target_mean")
_CURVES = {"loss_curve": "e", "validation_curve": "v"}


@dataclass(eq=False, repr=False)
class MLPMap(Map):
    """Residual MLP ``z ↦ L(z) + W₂ gelu(W₁ (z − μ_A) + b₁) + b₂`` on top of a ridge map ``L`` (paper §E.9).

    The correction starts at zero: training starts from the best linear map, and early stopping replaces it only by
    weights with a smaller error on held-out pairs. AdamW on the mean squared error, on the CPU; the same
    ``random_state`` gives the same weights on the same machine and version of PyTorch.

    Parameters
    ----------
    hidden : int, default=512
        Width of the hidden layer.
    patience : int, default=30
        Epochs without a better held-out loss after which training stops; the best weights are kept.
    validation_share : float, default=0.1
        Share of the pairs held out for early stopping.

    Attributes
    ----------
    n_epochs_, best_epoch_ : int
        Epochs run, and the epoch whose weights were kept; 0 if none was better than the linear map.
    loss_curve_, validation_curve_ : list of float
        Mean squared error per coordinate, by epoch; the first validation value is that of the linear map.
    """

    kind: ClassVar[str] = "mlp"

    hidden: int = 512
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    batch_size: int = 256
    max_epochs: int = 200
    patience: int = 30
    validation_share: float = 0.1
    random_state: int = 0
    verbose: bool = False

    def fit(self, X: RowsLike, Y: RowsLike) -> Self:
        """Train on rows paired by position, shapes (n, d_source) and (n, d_target)."""
        for name in ("hidden", "batch_size", "max_epochs", "patience"):
            check_positive(getattr(self, name), name, integer=True)
        check_positive(self.learning_rate, "learning_rate")
        check_seed(self.random_state)
        check_positive(self.weight_decay, "weight_decay", zero=True)
        if not 0 < (share := self.validation_share) < 1:
            raise ParameterError(argument="validation_share", got=share, expected="a number between 0 and 1")
        A, B, _ = self._check_pairs(X, Y)
        require("torch", extra="train")
        self._remember(A, B)
        heldout = self._hold_out(duplicate_groups(A, B))
        train = ~heldout
        linear = LinearMap().solve(A[train], B[train])
        # Inputs and residuals are standardized so that one learning rate fits every model; float32 is accurate enough
        # for an MLP.
        source = (A - linear.source_mean_).astype(np.float32)
        residual = (B - source @ linear.coef_ - linear.target_mean_).astype(np.float32)
        in_scale, out_scale = (
            max(float(np.sqrt(np.mean(rows[train] ** 2))), float(np.finfo(np.float32).tiny))
            for rows in (source, residual)
        )
        best, curves = self._train(source / in_scale, residual / out_scale, train, heldout)
        self.loss_curve_ = [value * out_scale**2 for value in curves[0]]
        self.validation_curve_ = [value * out_scale**2 for value in curves[1]]
        self.n_epochs_ = len(self.loss_curve_)
        self.best_epoch_ = int(np.argmin(curves[1]))
        self.weights_ = {"matrix": linear.coef_, **{name: getattr(linear, f"{name}_") for name in _MEANS}}
        self.weights_ |= {"w1": best["w1"].T / in_scale, "b1": best["b1"]}
        self.weights_ |= {"w2": best["w2"].T * out_scale, "b2": best["b2"] * out_scale}
        self.n_pairs_ = len(A)
        self.facts_ = {
            "n_pairs": self.n_pairs_,
            "n_epochs": self.n_epochs_,
            "best_epoch": self.best_epoch_,
            "held_out_pairs": int(heldout.sum()),
            "linear_ridge": linear.ridge_,
        }
        return self

    def _hold_out(self, groups: np.ndarray) -> np.ndarray:
        """Return a mask of held-out pairs; identical pairs stay together, and two different ones are left."""
        n = int(groups.max()) + 1
        count = max(min(max(1, round(n * self.validation_share)), n - 2), 0)
        heldout = np.zeros(n, dtype=bool)
        heldout[np.random.default_rng(self.random_state).permutation(n)[:count]] = True
        return heldout[groups]

    def _train(
        self, source: np.ndarray, residual: np.ndarray, train: np.ndarray, heldout: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[list[float], list[float]]]:
        import torch

        generator = torch.Generator().manual_seed(self.random_state)
        d_source, d_target = source.shape[1], residual.shape[1]
        w1 = torch.randn(self.hidden, d_source, generator=generator) / math.sqrt(d_source)
        b1, w2, b2 = torch.zeros(self.hidden), torch.zeros(d_target, self.hidden), torch.zeros(d_target)
        parameters = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
        for tensor in parameters.values():
            tensor.requires_grad_(True)
        groups = [{"params": [w1, w2], "weight_decay": self.weight_decay}, {"params": [b1, b2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate)

        def error(rows: torch.Tensor) -> torch.Tensor:
            hidden = torch.nn.functional.gelu(x[rows] @ w1.T + b1)
            return (hidden @ w2.T + b2 - r[rows]).square().mean()

        x, r = torch.from_numpy(source), torch.from_numpy(residual)
        train_rows = torch.from_numpy(np.flatnonzero(train))
        held_rows = torch.from_numpy(np.flatnonzero(heldout)) if heldout.any() else train_rows
        losses: list[float] = []
        with torch.no_grad():
            validation = [float(error(held_rows))]
        best = {name: tensor.detach().clone() for name, tensor in parameters.items()}
        with progress_bar("training", self.max_epochs, quiet=not self.verbose) as bar:
            for _ in range(self.max_epochs):
                order = train_rows[torch.randperm(len(train_rows), generator=generator)]
                total = 0.0
                for rows in order.split(self.batch_size):
                    optimizer.zero_grad()
                    loss = error(rows)
                    loss.backward()
                    optimizer.step()
                    total += float(loss.detach()) * len(rows)
                losses.append(total / len(order))
                with torch.no_grad():
                    validation.append(float(error(held_rows)))
                if validation[-1] <= min(validation):
                    best = {name: tensor.detach().clone() for name, tensor in parameters.items()}
                if len(validation) - 1 - int(np.argmin(validation)) >= self.patience:
                    break
                if bar is not None:
                    bar.advance(1)
        return {name: tensor.numpy() for name, tensor in best.items()}, (losses, validation)

    def _map(self, rows: Array) -> Array:
        line, rest = (cast(branch, rows) for branch in self._layers_of("source")[0]["branches"])
        width, hidden = self._n_features_out, len(self.weights_["b1"])
        return in_blocks(lambda part: forward(line, part) + forward(rest, part), rows, width, 4 * hidden)

    def _layers_of(self, side: str) -> list[Layer]:
        self.check_fitted()
        w = self.weights_
        center: Layer = {"kind": "center", "mean": w["source_mean"]}
        names = (("matrix", "target_mean"), ("w1", "b1"), ("w2", "b2"))
        line, first, last = ({"kind": "linear", "weight": w[matrix], "bias": w[bias]} for matrix, bias in names)
        return [{"kind": "sum", "branches": [[center, line], [center, first, {"kind": "gelu"}, last]]}]

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_["target_mean"])

    def state(self) -> dict[str, np.ndarray]:
        """Return all weights as arrays."""
        self.check_fitted()
        curves = {"loss_curve": np.array(self.loss_curve_), "validation_curve": np.array(self.validation_curve_)}
        return {**self.weights_, **curves}

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        check_arrays(arrays, _WEIGHTS | _CURVES, free=tuple(_CURVES))
        self.weights_ = {name: arrays[name] for name in _WEIGHTS}
        self.loss_curve_, self.validation_curve_ = (arrays[name].tolist() for name in _CURVES)
        self.n_epochs_, self.best_epoch_ = count(facts, "n_epochs"), count(facts, "best_epoch")
        self.n_pairs_, self.n_features_in_ = count(facts, "n_pairs"), len(self.weights_["matrix"])
        self.facts_ = dict(facts)
