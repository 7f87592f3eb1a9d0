"""Reports: HTML pages about a map, its training or a certificate, with data separate from markup."""

from congruence.report.certificate import render_certificate, write_certificate
from congruence.report.layers import write_layers, write_similarities
from congruence.report.migration import read_migration, read_reembedding, render_migration, write_migration
from congruence.report.rendering import render, write_report
from congruence.report.story import render_story, write_story
from congruence.report.summary import summarize
from congruence.report.training import summarize_training
from congruence.report.training_page import render_training, write_training

__all__ = [
    "read_migration",
    "read_reembedding",
    "render",
    "render_certificate",
    "render_migration",
    "render_story",
    "render_training",
    "summarize",
    "summarize_training",
    "write_certificate",
    "write_layers",
    "write_migration",
    "write_report",
    "write_similarities",
    "write_story",
    "write_training",
]
