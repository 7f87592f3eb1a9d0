import json

import pytest

from congruence._utils.records import digest_of, from_record, to_record

FACTS = {"name": "é\ud800", "rows": 3, "sample": [1, "a", None], "inner": {"b": 1.5, "a": True}}


def test_a_record_is_read_as_it_was_written():
    for indent in (None, 1):
        assert from_record(to_record(FACTS, indent=indent)) == FACTS
    turned = dict(reversed(FACTS.items()))
    assert digest_of(turned) == digest_of(FACTS) != digest_of({**FACTS, "rows": 4})


def test_damage_of_any_kind_is_a_value_error():
    raw = to_record(FACTS)
    content = json.loads(raw)
    bad = [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, raw[:-3], raw + b"x", raw.replace(b"3", b"4")]
    bad += [json.dumps(FACTS).encode(), json.dumps({**content, "digest": 1}).encode()]
    bad += [raw.replace(b"1.5", b"NaN"), json.dumps({**content, "more": 0}).encode()]
    for one in bad:
        with pytest.raises(ValueError, match=r"no record|wrong digest"):
            from_record(one)
    with pytest.raises(ValueError, match="JSON"):
        to_record({"share": float("nan")})
