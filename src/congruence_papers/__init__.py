"""Tables and figures of papers as configurations that can be run; each paper is a folder and an entry of :data:`STUDIES`."""

from __future__ import annotations

from congruence_papers.canonical import Collection, Model
from congruence_papers.claims import check_claim, check_rule
from congruence_papers.config import config_names, load_config, parse_config
from congruence_papers.data import Data
from congruence_papers.experiment_list import NOT_RUN, count_experiments, listing
from congruence_papers.jam import JAMData
from congruence_papers.job import Config, Job
from congruence_papers.panel_data import panels
from congruence_papers.registry import STUDIES
from congruence_papers.results import Results
from congruence_papers.runner import Outcome, run
from congruence_papers.schema import describe_schema, experiment_schema, kind_named
from congruence_papers.sotalign import SOTAlignData
from congruence_papers.study import Kind, Request, Study
from congruence_papers.summary import claim_lines, data_lines

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
