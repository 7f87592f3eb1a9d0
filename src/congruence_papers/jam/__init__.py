"""JAM: autoencoders on unimodal encoders, trained to distinguish correct captions from hard negatives."""

from congruence_papers.jam.data import JAMData, JAMParts, open_features
from congruence_papers.jam.experiments import PAPER
from congruence_papers.jam.methods import (
    BASELINES,
    CONTROLS,
    METRICS,
    Fitted,
    control_data,
    dual_as_encoders,
    fit_baseline,
    fit_method,
    fit_text_only,
    measure_recall,
    measure_text_only,
    measure_transfer,
    noise_like,
)
from congruence_papers.jam.samples import SAMPLE_DATA, caption_features, open_sample

__all__ = [
    "BASELINES",
    "CONTROLS",
    "METRICS",
    "PAPER",
    "SAMPLE_DATA",
    "Fitted",
    "JAMData",
    "JAMParts",
    "caption_features",
    "control_data",
    "dual_as_encoders",
    "fit_baseline",
    "fit_method",
    "fit_text_only",
    "measure_recall",
    "measure_text_only",
    "measure_transfer",
    "noise_like",
    "open_features",
    "open_sample",
]
