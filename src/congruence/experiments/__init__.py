"""Every table and figure of the Canonical paper, as a configuration that runs."""

from __future__ import annotations

from congruence.experiments.config import (
    CONFIGS,
    PARAMETERS,
    STAND_INS,
    Config,
    config_names,
    load_config,
    parse_config,
)
from congruence.experiments.data import Collection, Model
from congruence.experiments.encoding import MODELS, open_models, resolve_models
from congruence.experiments.heads import Heads, contrastive_heads
from congruence.experiments.kinds import KINDS
from congruence.experiments.measure import METHODS, METRICS
from congruence.experiments.run import Outcome, listing, run
from congruence.experiments.stand_ins import VARIANTS, open_stand_in

__all__ = [
    "CONFIGS",
    "KINDS",
    "METHODS",
    "METRICS",
    "MODELS",
    "PARAMETERS",
    "STAND_INS",
    "VARIANTS",
    "Collection",
    "Config",
    "Heads",
    "Model",
    "Outcome",
    "config_names",
    "contrastive_heads",
    "listing",
    "load_config",
    "open_models",
    "open_stand_in",
    "parse_config",
    "resolve_models",
    "run",
]
