"""What someone does who changes a model: fit a map, transform stored vectors, certify whether to."""

__all__ = ["certify", "fit", "transform"]
