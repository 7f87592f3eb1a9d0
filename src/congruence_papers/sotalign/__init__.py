"""SOTAlign: semi-supervised alignment of unimodal encoders from few pairs and many unpaired rows."""

from congruence_papers.sotalign.data import Heldout, Parts, SOTAlignData, open_features, open_sample
from congruence_papers.sotalign.experiments import PAPER
from congruence_papers.sotalign.methods import BASELINES, encoder_agreement, fit_baseline, measure_heads

__all__ = ["BASELINES", "PAPER", "Heldout", "Parts", "SOTAlignData"]
__all__ += ["encoder_agreement", "fit_baseline", "measure_heads", "open_features", "open_sample"]
