"""Linear algebra and statistics below the maps: Procrustes, moments, kernels, shrinkage of singular values."""

__all__ = ["kernels", "moments", "procrustes", "shrinkage"]
