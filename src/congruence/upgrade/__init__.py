"""What someone does who changes a model: fit a map, transform stored vectors, bridge queries, migrate a database, certify whether to."""

__all__ = ["bridge", "certify", "fit", "migrate", "progressive", "transform"]
