"""Data to begin with: the bundled sample, and the file format that ``congruence report`` reads."""

from congruence.datasets.bundle import KINDS, Bundle, read_bundle, write_bundle
from congruence.datasets.sample import SAMPLE_PATH, SAMPLE_SHA256, load_sample

__all__ = ["KINDS", "SAMPLE_PATH", "SAMPLE_SHA256", "Bundle", "load_sample", "read_bundle", "write_bundle"]
