"""JAM: autoencoders on unimodal encoders, trained to distinguish correct captions from hard negatives."""

from congruence_papers.jam.baselines import BASELINES, fit_baseline, fit_text_only
from congruence_papers.jam.controls import CONTROLS, control_data, dual_as_encoders, noise_like
from congruence_papers.jam.data import JAMData, JAMParts
from congruence_papers.jam.features import open_features
from congruence_papers.jam.fitted import Fitted, fit_method, fit_towers
from congruence_papers.jam.hashed_captions import caption_features
from congruence_papers.jam.metrics import METRICS, measure_recall, measure_text_only
from congruence_papers.jam.sample_data import SAMPLE_DATA, open_sample
from congruence_papers.jam.study import STUDY, JAMStudy
from congruence_papers.jam.transfer import Transferred, measure_transfer

__all__ = [
    "BASELINES",
    "CONTROLS",
    "METRICS",
    "SAMPLE_DATA",
    "STUDY",
    "Fitted",
    "JAMData",
    "JAMParts",
    "JAMStudy",
    "Transferred",
    "caption_features",
    "control_data",
    "dual_as_encoders",
    "fit_baseline",
    "fit_method",
    "fit_text_only",
    "fit_towers",
    "measure_recall",
    "measure_text_only",
    "measure_transfer",
    "noise_like",
    "open_features",
    "open_sample",
]
