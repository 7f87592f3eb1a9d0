"""Reports: HTML pages about a map, its training, a certificate or a migration, with data separate from markup.

A ``render_…`` function returns one self-contained page: HTML without scripts and without references to anything outside
it, in which all text is escaped. A ``write_…`` function writes it to a file, atomically; only with ``force`` does it
replace an existing one, instead of raising OutputExistsError. Both need matplotlib, of the extra ``plot``.
"""

from congruence.report.certificate import render_certificate, write_certificate
from congruence.report.migration import read_migration, read_reembedding, render_migration, write_migration
from congruence.report.pictures import write_layers, write_similarities
from congruence.report.story import render_story, write_story
from congruence.report.summary import render, summarize, write_report
from congruence.report.training import render_training, summarize_training, write_training

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
