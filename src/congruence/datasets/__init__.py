"""Bundled samples, texts for anchors, the file format of reports, and SugarCrepe's captions."""

from congruence.datasets.bundle import KINDS, Bundle, read_bundle, write_bundle
from congruence.datasets.sample import SAMPLES, load_sample, open_bundle
from congruence.datasets.sugarcrepe import CATEGORIES, SugarCrepe, load_sugarcrepe
from congruence.datasets.texts import TEXTS_PATH, anchor_texts

__all__ = [
    "CATEGORIES",
    "KINDS",
    "SAMPLES",
    "TEXTS_PATH",
    "Bundle",
    "SugarCrepe",
    "anchor_texts",
    "load_sample",
    "load_sugarcrepe",
    "open_bundle",
    "read_bundle",
    "write_bundle",
]
