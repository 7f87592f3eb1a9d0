"""The Canonical paper: maps between dual encoders, fitted on one modality and evaluated on both."""

from congruence_papers.canonical.data import CaptionBank, Collection, Model, edit_caption
from congruence_papers.canonical.experiments import PAPER
from congruence_papers.canonical.maps import BASELINES, METRICS
from congruence_papers.canonical.models import MODELS, open_models, resolve_models
from congruence_papers.canonical.samples import SAMPLE_DATA, VARIANTS, Heads, contrastive_heads, open_sample

__all__ = [
    "BASELINES",
    "METRICS",
    "MODELS",
    "PAPER",
    "SAMPLE_DATA",
    "VARIANTS",
    "CaptionBank",
    "Collection",
    "Heads",
    "Model",
    "contrastive_heads",
    "edit_caption",
    "open_models",
    "open_sample",
    "resolve_models",
]
