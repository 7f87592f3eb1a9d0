"""Mutators, which damage the bytes of a valid file; a reader must refuse the result, or return valid values."""

import copy
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

#: Integers at the limits of sizes, signs and conversions.
NUMBERS = (0, 1, -1, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)

#: Replacements for a value in JSON or YAML.
VALUES: tuple[Any, ...] = (
    *(*NUMBERS, 10**400, 0.5, -0.0, 1e308, -1e-320, float("nan"), float("inf"), None, True, False),
    *("", "x", "NaN", "1e999", "../../x", "\x00", "\x1b[31m", "a" * 5000, "é" * 9, "\ud800"),
    *([], {}, [[]], [None], [1, [2]], {"": {}}, {"a": {"b": [1]}}),
)

#: Replacements for a word, number or bracket in a text.
TOKENS = tuple(
    token.encode("utf-8", "surrogatepass")
    for token in (
        *map(str, NUMBERS),
        *("nan", "inf", "1e999", "-0", "1_0", "0x1F", "True", "null", "", " ", '"', "'", "''", ",", ",,", ";", "\t"),
        *("\n", "\r", "\r\n", "\n\n", "\x00", "\x1a", "\ufeff", "\u2028", "\ud800", "é", "[", "]", "{", "}", ":", "- "),
        *("[" * 3000, "{" * 300, '{"a":' * 2000, "9" * 5000, "&a [*a]", "<<: *a", "!!python/name:os.system", "|", "# "),
    )
)

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def flip_bits(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Flip one to eight bits; half of them near the ends, where formats have their structure."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = _place(rng, len(out))
        out[place] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Set a few bytes to a boundary value."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place, width = _place(rng, len(out)), rng.choice((1, 1, 2, 4, 8))
        value = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01"))
        out[place : place + width] = value * min(width, len(out) - place)
    return bytes(out)


def truncate(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Cut off the end or, now and then, the beginning."""
    place = _place(rng, len(raw))
    return raw[place:] if rng.random() < 0.2 else raw[:place]


def splice(rng: random.Random, raw: bytes, donors: Sequence[bytes] = ()) -> bytes:
    """Remove or repeat a piece, or replace it by one of another valid file or of this one."""
    donor = rng.choice(donors) if donors else raw
    start, stop = sorted((_place(rng, len(raw)), _place(rng, len(raw))))
    if rng.random() < 0.5:
        stop = min(stop, start + rng.choice((1, 4, 8, 64, 4096)))
    begin = rng.randrange(len(donor)) if donor else 0
    piece = rng.choice((b"", raw[start:stop] * 2, donor[begin : begin + rng.choice((1, 8, 64, 4096))]))
    return raw[:start] + piece + raw[stop:]


def edit_length(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Change a field that looks like a length or an offset: a number of 2 to 8 bytes, below twice the file's size."""
    for _ in range(200):
        form = rng.choice(("<H", "<I", "<Q", ">H", ">I", ">Q"))
        width = struct.calcsize(form)
        if len(raw) < width:
            break
        place = min(_place(rng, len(raw)), len(raw) - width)
        (value,) = struct.unpack_from(form, raw, place)
        if 0 < value <= 2 * len(raw):
            new = rng.choice((*NUMBERS, value - 1, value + 1, 2 * value, len(raw), len(raw) + 1)) % 2 ** (8 * width)
            return raw[:place] + struct.pack(form, new) + raw[place + width :]
    return flip_bits(rng, raw)


def edit_text(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Replace or insert a token."""
    starts = [k for k in range(len(raw)) if raw[k : k + 1] in b' ,:[]{}"\n\t-']
    start = rng.choice(starts) if starts else _place(rng, len(raw))
    stop = start + rng.choice((0, 1, 1, 3))
    if rng.random() < 0.5:
        stop = next((k for k in starts if k > start), stop)
        start += 1
    return raw[:start] + rng.choice(TOKENS) * rng.choice((1, 1, 1, 3)) + raw[stop:]


BYTES: tuple[Mutator, ...] = (flip_bits, set_bytes, truncate, splice, edit_length)
TEXT: tuple[Mutator, ...] = (*BYTES, edit_text, edit_text, edit_text, edit_text)


def mutate(rng: random.Random, raw: bytes, mutators: Sequence[Mutator], donors: Sequence[bytes] = ()) -> bytes:
    """Damage bytes with one to three of the mutators."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        raw = rng.choice(mutators)(rng, raw, donors) if raw else rng.choice(TOKENS)
    return raw


def mutate_data(rng: random.Random, data: Any) -> Any:
    """Return plain data with one to three values, keys or lists changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_containers(data))
        if not places:
            return rng.choice(VALUES)
        container = rng.choice(places)
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if not keys:
            continue
        key = rng.choice(keys)
        what = rng.random()
        if what < 0.6:
            container[key] = copy.deepcopy(rng.choice(VALUES))
        elif what < 0.75:
            del container[key]
        elif what < 0.85 and isinstance(container, dict):
            container[rng.choice(("", "x", "\x00", "a" * 300))] = container.pop(key)
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = [container[key]]
    return data


def mutate_json(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Change values of a valid JSON, which stays valid."""
    return json.dumps(mutate_data(rng, json.loads(raw))).encode()


def mutate_lines(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Change a value in one line of a valid JSONL."""
    lines = raw.splitlines()
    row = rng.randrange(len(lines))
    lines[row] = mutate_json(rng, lines[row])
    return b"\n".join(lines) + b"\n"


def mutate_zip(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Damage one member of a zip archive and write the archive again, so that every checksum is valid."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = rng.choice(list(members))
    members[chosen] = mutate(rng, members[chosen], BYTES)
    if rng.random() < 0.1:
        members[rng.choice(("", "../x.npy", "/x.npy", "ids.npy", "vectors.npy/x"))] = members.pop(chosen)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def mutate_safetensors(rng: random.Random, raw: bytes, _: Sequence[bytes] = ()) -> bytes:
    """Change the header of a safetensors file, and update its length."""
    size = int.from_bytes(raw[:8], "little")
    header = mutate_json(rng, raw[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + raw[8 + size :]


def _containers(data: Any) -> Any:
    if isinstance(data, (dict, list)):
        yield data
        for value in data.values() if isinstance(data, dict) else data:
            yield from _containers(value)


def _place(rng: random.Random, size: int) -> int:
    """Return a random position, half of the time near the beginning or the end."""
    if size <= 1:
        return 0
    which = rng.random()
    if which < 0.25:
        return rng.randrange(min(size, 200))
    if which < 0.5:
        return size - 1 - rng.randrange(min(size, 300))
    return rng.randrange(size)
