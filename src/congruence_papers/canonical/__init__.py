"""The Canonical paper: maps between dual encoders, fitted on one modality and evaluated on both."""

from congruence_papers.canonical.baselines import BASELINES, ModalityMap, fit_modality_map
from congruence_papers.canonical.captions import CaptionBank, edit_caption
from congruence_papers.canonical.data import Collection, Model
from congruence_papers.canonical.heads import Heads, contrastive_heads
from congruence_papers.canonical.metrics import METRICS
from congruence_papers.canonical.models import MODELS, open_models, resolve_models
from congruence_papers.canonical.sample_data import SAMPLE_DATA, VARIANTS, open_sample
from congruence_papers.canonical.study import STUDY, CanonicalStudy

__all__ = [
    "BASELINES",
    "METRICS",
    "MODELS",
    "SAMPLE_DATA",
    "STUDY",
    "VARIANTS",
    "CanonicalStudy",
    "CaptionBank",
    "Collection",
    "Heads",
    "ModalityMap",
    "Model",
    "contrastive_heads",
    "edit_caption",
    "fit_modality_map",
    "open_models",
    "open_sample",
    "resolve_models",
]
