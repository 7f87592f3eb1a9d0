"""Internal helpers for all packages: arrays, validation, atomic writes, optional imports."""
