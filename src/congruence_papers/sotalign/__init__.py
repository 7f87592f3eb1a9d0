"""SOTAlign: semi-supervised alignment of unimodal encoders from few pairs and many unpaired rows."""

from congruence_papers.sotalign.data import Heldout, Parts, SOTAlignData, open_features
from congruence_papers.sotalign.experiments import PAPER
from congruence_papers.sotalign.methods import BASELINES, encoder_agreement, fit_baseline, measure_heads
from congruence_papers.sotalign.samples import open_sample

__all__ = ["BASELINES", "PAPER", "Heldout", "Parts", "SOTAlignData"]
__all__ += ["encoder_agreement", "fit_baseline", "measure_heads", "open_features", "open_sample"]
