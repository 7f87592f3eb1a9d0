"""JAM: autoencoders on unimodal encoders, trained to tell right captions from nearly right ones."""

from congruence.papers.jam.baselines import BASELINES, fit_baseline, fit_text_only
from congruence.papers.jam.caption_features import caption_features
from congruence.papers.jam.data import JAMData, JAMParts
from congruence.papers.jam.features import open_features
from congruence.papers.jam.metrics import METRICS, measure_recall, measure_text_only
from congruence.papers.jam.sample_data import SAMPLE_DATA, open_sample
from congruence.papers.jam.study import STUDY, JAMStudy

__all__ = [
    "BASELINES",
    "METRICS",
    "SAMPLE_DATA",
    "STUDY",
    "JAMData",
    "JAMParts",
    "JAMStudy",
    "caption_features",
    "fit_baseline",
    "fit_text_only",
    "measure_recall",
    "measure_text_only",
    "open_features",
    "open_sample",
]
