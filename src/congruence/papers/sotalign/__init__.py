"""SOTAlign: semi-supervised alignment of unimodal encoders from few pairs and many unpaired rows."""

from congruence.papers.sotalign.baselines import BASELINES, Baseline, choose, combinations, fit_baseline
from congruence.papers.sotalign.data import Heldout, Parts, SOTAlignData
from congruence.papers.sotalign.metrics import METRICS, encoder_agreement, measure_heads
from congruence.papers.sotalign.sample_data import SAMPLE_DATA, open_sample
from congruence.papers.sotalign.study import STUDY, SOTAlignStudy

__all__ = [
    "BASELINES",
    "METRICS",
    "SAMPLE_DATA",
    "STUDY",
    "Baseline",
    "Heldout",
    "Parts",
    "SOTAlignData",
    "SOTAlignStudy",
    "choose",
    "combinations",
    "encoder_agreement",
    "fit_baseline",
    "measure_heads",
    "open_sample",
]
