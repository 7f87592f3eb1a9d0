"""The table of formats: each entry agrees with its reader and writer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from congruence.embeddings import Embeddings
from congruence.errors import ParameterError
from congruence.stores import FORMATS, find_format, matrices, open_sink, open_source, parse_spec, suffixes

WITH_VECTORS = [one for one in FORMATS if one.source is not None]
RNG = np.random.default_rng(5)


def written(folder: Path, suffix: str, n: int = 30) -> Path:
    """Write a store of this format, with ids if it can hold them."""
    path = folder / f"v{suffix}"
    rows = Embeddings(RNG.standard_normal((n, 4)).astype(np.float32), ids=[f"i{k}" for k in range(n)])
    with open_sink(path, n=n, dim=4, has_ids=True) as sink:
        sink.write(pa.array(list(rows.ids)), rows.vectors)
    return path


@pytest.mark.parametrize("suffix", suffixes())
def test_what_a_format_says_of_itself_is_true(suffix, tmp_path):
    path = written(tmp_path, suffix)
    one = find_format(path)
    assert suffix in one.suffixes
    assert one.directory == path.is_dir()
    source = open_source(path)
    assert source.has_ids == one.keeps_ids
    # The key of a file with several arrays, and none where there is one.
    if one.shapes is not None:
        assert list(matrices(path)) == [next(key for key, shape in one.shapes(str(path)).items() if len(shape) == 2)]
    if one.key is None:
        with pytest.raises(ParameterError, match="expected none"):
            open_source(f"{path}:key")
    # Where the reader takes the name of a column, it reads that column with the vectors.
    if one.names_ids:
        with pytest.raises(ParameterError, match="nonsense"):
            open_source(path, ids="nonsense")
    elif one.read_column is not None and one.keeps_ids:
        assert open_source(path, ids="ids").has_ids
    # A reader that does not stream holds its rows as one array.
    held = any(isinstance(value, np.ndarray) and value.shape == (30, 4) for value in vars(source).values())
    assert held == (not one.streams)


@pytest.mark.parametrize("suffix", suffixes())
def test_an_output_without_named_columns_is_refused_in_words_of_the_table(suffix, tmp_path):
    kwargs = {"n": 1, "dim": 2, "column_out": "new"}
    if find_format(f"x{suffix}").keeps_columns:
        open_sink(tmp_path / f"v{suffix}", **kwargs)
    else:
        with pytest.raises(ParameterError, match=r"Choose \.parquet, \.arrow, \.csv, \.jsonl or \.lance\."):
            open_sink(tmp_path / f"v{suffix}", **kwargs)


def test_no_two_formats_share_a_suffix_and_unknown_ones_are_listed():
    listed = suffixes(lambda _: True)
    assert len(set(listed)) == len(listed)
    assert all(suffix == suffix.lower() for suffix in listed)
    with pytest.raises(
        ParameterError, match=r"'x\.odd' for output; expected one of \.npy, .*\.lance, a folder of parts\. Pass"
    ):
        find_format("x.odd", "output")
    with pytest.raises(ParameterError, match="for vectors"):
        find_format("names.txt")  # which holds labels alone
    # Labels may stand in a file of any known suffix, before it exists.
    assert parse_spec("later.txt:a/b") == ("later.txt", "a/b")
