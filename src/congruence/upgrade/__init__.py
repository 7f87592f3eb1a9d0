"""Change the model of a store: fit a map, transform stored vectors, bridge queries, migrate a database, and certify which of these to do."""

__all__ = ["bridge", "certify", "fit", "migrate", "progressive", "transform"]
