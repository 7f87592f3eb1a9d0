"""JAM: autoencoders on unimodal encoders, trained to distinguish correct captions from hard negatives."""

from congruence_papers.jam.data import JAMData, JAMParts, open_features, open_sample
from congruence_papers.jam.experiments import PAPER
from congruence_papers.jam.methods import Fitted, fit_method, measure_transfer

__all__ = ["PAPER", "Fitted", "JAMData", "JAMParts", "fit_method", "measure_transfer", "open_features", "open_sample"]
