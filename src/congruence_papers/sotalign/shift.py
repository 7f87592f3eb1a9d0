"""The distribution shift between unpaired rows and pairs (equation 14), as a metric of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence.transport import DistributionShift, distribution_shift
from congruence_papers.job import Job
from congruence_papers.sotalign.data import Parts, SOTAlignData

__all__ = ["SHIFTS", "add_distances", "add_shift", "distance", "shift_of"]

#: Metrics of the shift that a configuration can list.
SHIFTS = ("shift", "image_shift", "text_shift")


def distance(job: Job[SOTAlignData], *clouds: np.ndarray, seed: int = 0) -> DistributionShift:
    """Measure the distance of equation 14 between unpaired and paired images and texts, with one draw of random circles.

    Parameters
    ----------
    job : Job
    *clouds : ndarray, shape (rows, d)
        Unpaired images, paired images, unpaired texts and paired texts, in the order of :func:`congruence.transport.distribution_shift`.
    seed : int, default=0

    Returns
    -------
    DistributionShift
    """
    return distribution_shift(
        *clouds, normalize=True, n_projections=20 if job.quick else 500, repeats=1, random_state=seed
    )


def shift_of(job: Job[SOTAlignData], parts: Parts, seed: int = 0) -> DistributionShift:
    """Measure the distance of a split's unpaired rows from its pairs.

    Parameters
    ----------
    job : Job
    parts : Parts
    seed : int, default=0

    Returns
    -------
    DistributionShift
    """
    return distance(job, parts.unpaired_images, parts.images, parts.unpaired_texts, parts.texts, seed=seed)


def add_distances(job: Job[SOTAlignData], what: Mapping[str, object], shift: DistributionShift) -> None:
    """Add the distances among the configuration's metrics to the results, each with its floor.

    Parameters
    ----------
    job : Job
    what : mapping
        The other columns of the row.
    shift : DistributionShift
    """
    for metric, measured in zip(SHIFTS, (shift.total, shift.image, shift.text), strict=True):
        if metric in job.config.metrics and measured is not None:
            job.results.add({**what, "metric": metric, "quantity": "after"}, measured.value)
            job.results.add({**what, "metric": metric, "quantity": "floor"}, measured.floor)


def add_shift(
    job: Job[SOTAlignData], data: SOTAlignData, parts: Parts, seed: int, what: Mapping[str, object] | None = None
) -> None:
    """Measure a split's shift and add it to the results, if it is among the configuration's metrics.

    Parameters
    ----------
    job : Job
    data : SOTAlignData
    parts : Parts
    seed : int
        Seed of the draw, also used for the circles.
    what : mapping, optional
        The other columns of the row, except the data.
    """
    if set(SHIFTS) & set(job.config.metrics) and len(parts.unpaired_images) and len(parts.unpaired_texts):
        add_distances(job, {"data": data.name, **(what or {})}, shift_of(job, parts, seed))
