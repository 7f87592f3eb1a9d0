"""Change the model of a store: fit, transform, bridge, migrate, re-embed progressively, and certify which to do."""

__all__ = ["bridge", "certify", "fit", "lazy", "migrate", "progressive", "transform"]
