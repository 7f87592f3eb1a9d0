"""JAM: autoencoders on unimodal encoders, trained to distinguish correct captions from hard negatives."""

from congruence_papers.jam.data import JAMData, JAMParts, open_features, open_sample
from congruence_papers.jam.experiments import PAPER
from congruence_papers.jam.methods import Fitted, fit_method

__all__ = ["PAPER", "Fitted", "JAMData", "JAMParts", "fit_method", "open_features", "open_sample"]
