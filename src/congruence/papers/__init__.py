"""Tables and figures of papers as configurations that can be run; each paper is a folder and an entry of :data:`STUDIES`."""

from __future__ import annotations

from congruence.papers.canonical import Collection, Model
from congruence.papers.claims import check_claim, check_rule
from congruence.papers.config import config_names, load_config, parse_config
from congruence.papers.data import Data
from congruence.papers.experiment_list import NOT_RUN, count_experiments, listing
from congruence.papers.jam import JAMData
from congruence.papers.job import Config, Job
from congruence.papers.panel_data import panels
from congruence.papers.registry import STUDIES
from congruence.papers.results import Results
from congruence.papers.runner import Outcome, run
from congruence.papers.schema import describe_schema, experiment_schema, kind_named
from congruence.papers.sotalign import SOTAlignData
from congruence.papers.study import Kind, Request, Study
from congruence.papers.summary import claim_lines, data_lines

__all__ = [
    "NOT_RUN",
    "STUDIES",
    "Collection",
    "Config",
    "Data",
    "JAMData",
    "Job",
    "Kind",
    "Model",
    "Outcome",
    "Request",
    "Results",
    "SOTAlignData",
    "Study",
    "check_claim",
    "check_rule",
    "claim_lines",
    "config_names",
    "count_experiments",
    "data_lines",
    "describe_schema",
    "experiment_schema",
    "kind_named",
    "listing",
    "load_config",
    "panels",
    "parse_config",
    "run",
]
