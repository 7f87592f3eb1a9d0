"""SOTAlign: semi-supervised alignment of unimodal encoders from few pairs and many unpaired rows."""

from congruence_papers.sotalign.baselines import BASELINES, Baseline, choose, combinations, fit_baseline
from congruence_papers.sotalign.data import Heldout, Parts, SOTAlignData
from congruence_papers.sotalign.metrics import METRICS, encoder_agreement, measure_heads
from congruence_papers.sotalign.sample_data import SAMPLE_DATA, open_sample
from congruence_papers.sotalign.study import STUDY, SOTAlignStudy

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
