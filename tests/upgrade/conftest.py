"""Two models' rows and a first map between them, with which progressive migrations begin."""

import pytest

from congruence import OrthogonalMap
from congruence.synthetic import upgrade_problem


@pytest.fixture(scope="session")
def problem():
    return upgrade_problem(400, 16, source_noise=0.8, target_noise=0.3, shared=0.3, shear=0.4, random_state=0)


@pytest.fixture(scope="session")
def mapping(problem):
    first = OrthogonalMap().fit(problem.source_texts[:40], problem.target_texts[:40], modality="text")
    return first.recenter(problem.source_images, None, modality="image", offset=0.5)
