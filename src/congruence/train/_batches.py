"""Validation of the inputs of a loss: two batches of rows, and a temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def batches(X: Tensor, Y: Tensor, names: tuple[str, str] = ("X", "Y")) -> tuple[Tensor, Tensor]:
    """Return two batches of the same width as tensors of the same type, float32 or float64. Raises ShapeError."""
    import torch

    sides = [torch.as_tensor(side) for side in (X, Y)]
    for side, name in zip(sides, names, strict=True):
        if side.ndim != 2 or not len(side):
            raise ShapeError(
                f"Got {name} of shape {tuple(side.shape)}; expected rows of vectors, at least one.",
                "Pass an array of shape (n, d).",
            )
    if sides[0].shape[1] != sides[1].shape[1]:
        raise ShapeError(
            f"Got {names[0]} with {sides[0].shape[1]} columns and {names[1]} with {sides[1].shape[1]}; "
            "expected one space.",
            "Map both into one space first.",
        )
    dtype = torch.float64 if torch.float64 in (sides[0].dtype, sides[1].dtype) else torch.float32
    return sides[0].to(dtype), sides[1].to(dtype)


def check_temperature(temperature: float | Tensor, like: Tensor) -> Tensor:
    """Return a temperature as a scalar tensor of the type and on the device of ``like``.

    Raises ParameterError if it is not positive.
    """
    import torch

    tau = torch.as_tensor(temperature, dtype=like.dtype, device=like.device)
    if tau.numel() != 1 or not float(tau.detach()) > 0:
        raise ParameterError(
            argument="temperature",
            got=temperature,
            expected="a positive number",
            fix="Pass `temperature=0.07`, for example.",
        )
    return tau.reshape(())
