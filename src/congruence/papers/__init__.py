"""Every table and figure of the Canonical paper, of JAM and of SOTAlign, as a configuration that runs."""

from __future__ import annotations

from congruence.experiments.alignment import ALIGNMENT_METRICS, Held, Parts, UnimodalData, measure_heads
from congruence.experiments.captions import CaptionBank, edit_caption
from congruence.experiments.claims import check_claim, check_rule
from congruence.experiments.config import (
    ALIGNMENT_STAND_INS,
    CONFIGS,
    JOINT_STAND_INS,
    PARAMETERS,
    STAND_INS,
    Config,
    config_names,
    load_config,
    parse_config,
)
from congruence.experiments.contenders import CONTENDERS, Contender, fit_contender
from congruence.experiments.data import Collection, Model
from congruence.experiments.encoding import MODELS, open_models, resolve_models
from congruence.experiments.heads import Heads, contrastive_heads
from congruence.experiments.joint import JOINT_METRICS, JointData, JointParts, fit_joint, measure_joint
from congruence.experiments.joint_data import open_joint
from congruence.experiments.joint_files import open_features
from congruence.experiments.kinds import KINDS
from congruence.experiments.listing import NOT_RUN, count_experiments, listing
from congruence.experiments.measure import METHODS, METRICS
from congruence.experiments.run import Outcome, run
from congruence.experiments.stand_ins import VARIANTS, open_stand_in
from congruence.experiments.unimodal import open_unimodal
from congruence.experiments.word_images import word_images
from congruence.experiments.words import claim_lines, data_lines

__all__ = [
    "ALIGNMENT_METRICS",
    "ALIGNMENT_STAND_INS",
    "CONFIGS",
    "CONTENDERS",
    "JOINT_METRICS",
    "JOINT_STAND_INS",
    "KINDS",
    "METHODS",
    "METRICS",
    "MODELS",
    "NOT_RUN",
    "PARAMETERS",
    "STAND_INS",
    "VARIANTS",
    "CaptionBank",
    "Collection",
    "Config",
    "Contender",
    "Heads",
    "Held",
    "JointData",
    "JointParts",
    "Model",
    "Outcome",
    "Parts",
    "UnimodalData",
    "check_claim",
    "check_rule",
    "claim_lines",
    "config_names",
    "contrastive_heads",
    "count_experiments",
    "data_lines",
    "edit_caption",
    "fit_contender",
    "fit_joint",
    "listing",
    "load_config",
    "measure_heads",
    "measure_joint",
    "open_features",
    "open_joint",
    "open_models",
    "open_stand_in",
    "open_unimodal",
    "parse_config",
    "resolve_models",
    "run",
    "word_images",
]
