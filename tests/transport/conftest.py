import pytest

from congruence.transport import _kernel


@pytest.fixture
def small_strips(monkeypatch):
    monkeypatch.setattr(_kernel, "HELD_BYTES", 16 * 30 * 8)
    monkeypatch.setattr(_kernel, "COMPUTED_BYTES", 16 * 30 * 8)
