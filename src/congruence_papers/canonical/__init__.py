"""The Canonical paper: maps between dual encoders, fitted on one modality and evaluated on both."""

from congruence_papers.canonical.data import (
    CaptionBank,
    Collection,
    Model,
    contrastive_heads,
    edit_caption,
    open_sample,
)
from congruence_papers.canonical.experiments import PAPER
from congruence_papers.canonical.models import open_models, resolve_models

__all__ = [
    "PAPER",
    "CaptionBank",
    "Collection",
    "Model",
    "contrastive_heads",
    "edit_caption",
    "open_models",
    "open_sample",
    "resolve_models",
]
