"""Whatever JSON a stranger sends: a request is read, or refused without a word of it."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.integrations.server import Limits, RequestError, read_request

LIMITS = Limits(max_batch=3, max_chars=20)
SECRET = "Zq#7"
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=24) | st.just(SECRET)
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner), max_leaves=8
)
BODIES = st.fixed_dictionaries(
    {"model": st.just("m") | ANY, "input": ANY}, optional={"encoding_format": ANY, "dimensions": ANY}
)


def outcome(body: bytes) -> list[str] | RequestError:
    try:
        return read_request(body, limits=LIMITS, names=["m"], dim=8)[0]
    except RequestError as error:
        return error


@settings(settings.get_profile("costly"))
@given(BODIES | ANY)
def test_json_is_read_or_refused(body):
    got = outcome(json.dumps(body).encode())
    if isinstance(got, RequestError):
        assert SECRET not in str(got)
        assert got.status in (400, 404, 413)
    else:
        assert 0 < len(got) <= 3
        assert all(isinstance(text, str) and 0 < len(text) <= 20 for text in got)
        "".join(got).encode()


@given(st.binary(max_size=60))
def test_bytes_are_read_or_refused(body):
    got = outcome(body)
    assert isinstance(got, list) or got.status in (400, 404)  # an object without a model
