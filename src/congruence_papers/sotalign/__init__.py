"""SOTAlign: semi-supervised alignment of unimodal encoders from few pairs and many unpaired rows."""

from congruence_papers.sotalign.data import Heldout, Parts, SOTAlignData, open_features
from congruence_papers.sotalign.experiments import PAPER
from congruence_papers.sotalign.methods import BASELINES, METRICS, encoder_agreement, fit_baseline, measure_heads
from congruence_papers.sotalign.samples import SAMPLE_DATA, open_sample

__all__ = [
    "BASELINES",
    "METRICS",
    "PAPER",
    "SAMPLE_DATA",
    "Heldout",
    "Parts",
    "SOTAlignData",
    "encoder_agreement",
    "fit_baseline",
    "measure_heads",
    "open_features",
    "open_sample",
]
