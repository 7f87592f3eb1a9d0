"""The table of formats: each entry agrees with its reader and writer."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from written import WRITTEN

from congruence import OrthogonalMap
from congruence.embeddings import Embeddings
from congruence.errors import OutputExistsError, ParameterError
from congruence.io import (
    contents,
    find_format,
    find_sink,
    formats,
    matrices,
    open_sink,
    open_source,
    parse_spec,
    suffixes,
)
from congruence.io.tables import MemoryTable
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(5)


def written(folder: Path, suffix: str, n: int = 30) -> Path:
    """Write a store of this format, with ids if it can hold them."""
    path = folder / f"v{suffix}"
    rows = Embeddings(RNG.standard_normal((n, 4)).astype(np.float32), ids=[f"i{k}" for k in range(n)])
    with open_sink(path, n=n, dim=4, has_ids=True) as sink:
        sink.write(pa.array(list(rows.ids)), rows.vectors)
    return path


@pytest.mark.parametrize("suffix", WRITTEN)
def test_what_a_format_says_of_itself_is_true(suffix, tmp_path):
    path = written(tmp_path, suffix)
    one = find_format(path)
    assert one.sink is find_sink(path)
    assert one.sink.directory == path.is_dir()
    source = open_source(path)
    assert source.has_ids == one.sink.keeps_ids
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
    elif one.read_column is not None and one.sink.keeps_ids:
        assert open_source(path, ids="ids").has_ids
    # A reader that does not stream holds its rows.
    assert isinstance(vars(source).get("table"), MemoryTable) == (not one.streams)


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITTEN if suffix])
def test_inspect_lists_what_a_file_holds(suffix, tmp_path, here):
    path = written(tmp_path, suffix)
    key = find_format(path).key if find_format(path).shapes else None
    held = json.loads(here("inspect", str(path), "--json").ends(0).out)
    assert "30 × 4" in held.values()
    assert "30 × 4" in here("inspect", str(path)).ends(0).out
    if key is not None:  # an exact name, or the beginning of several; a wrong one lists all
        name = next(name for name, shape in held.items() if shape == "30 × 4")
        assert contents(f"{path}:{name}") == {name: "30 × 4"} == contents(f"{path}:{name[:3]}")
        assert name in here("inspect", f"{path}:nonsense").ends(2).err


def test_an_exact_name_comes_before_the_names_that_begin_with_it(tmp_path):
    np.savez(tmp_path / "a.npz", layer=np.eye(3), layer_1=np.eye(4))
    assert contents(f"{tmp_path}/a.npz:layer") == {"layer": "3 × 3"}
    assert [*contents(f"{tmp_path}/a.npz:lay")] == ["layer", "layer_1"]
    assert open_source(f"{tmp_path}/a.npz:layer").n == 3


@pytest.mark.parametrize("suffix", WRITTEN)
def test_an_output_without_named_columns_is_refused_in_words_of_the_table(suffix, tmp_path):
    kwargs = {"n": 1, "dim": 2, "column_out": "new"}
    if find_sink(f"x{suffix}").keeps_columns:
        open_sink(tmp_path / f"v{suffix}", **kwargs)
    else:
        with pytest.raises(ParameterError, match=r"Choose \.parquet, \.arrow, \.csv, \.jsonl, \.lance or \.vdf\."):
            open_sink(tmp_path / f"v{suffix}", **kwargs)


def test_no_two_formats_share_a_suffix_and_unknown_ones_are_listed():
    listed = suffixes(lambda _: True)
    assert len(set(listed)) == len(listed)
    assert all(suffix == suffix.lower() for suffix in listed)
    with pytest.raises(
        ParameterError,
        match=r"'x\.odd' for output; expected one of \.npy, .*\.lance, \.vdf, a folder of parts, \.txt\. Pass",
    ):
        find_format("x.odd", "output")
    with pytest.raises(ParameterError, match="for vectors"):
        find_format("x.odd")
    # Labels may stand in a file of any known suffix, before it exists.
    assert parse_spec("later.txt:a/b") == ("later.txt", "a/b")


@pytest.fixture
def fbin(tmp_path, monkeypatch):
    """Install a package whose entry point adds ``.fbin``."""
    info = tmp_path / "site" / "fbin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fbin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[congruence.formats]\n.fbin = fbin:FbinSource\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    formats._installed.cache_clear()
    yield
    formats._installed.cache_clear()


@pytest.mark.usefixtures("fbin")
def test_another_package_adds_a_format_by_an_entry_point(tmp_path):
    assert ".fbin" in suffixes()
    X, Y = RNG.standard_normal((2, 5000, 6)).astype(np.float32)
    with open_sink(tmp_path / "v.fbin", n=5000, dim=6) as sink:
        sink.write(None, X)
    np.testing.assert_array_equal(open_source(tmp_path / "v.fbin").read().vectors, X)
    np.testing.assert_array_equal(open_source(tmp_path / "v.fbin").take([4999, 3])[1], X[[4999, 3]])
    mapping = OrthogonalMap().fit(X, Y)
    transform_file(mapping, open_source(tmp_path / "v.fbin"), tmp_path / "out.fbin", normalize=False)
    np.testing.assert_allclose(open_source(tmp_path / "out.fbin").read().vectors, mapping.transform(X), atol=1e-5)
    assert [*matrices(tmp_path)] == ["out", "v"]
    with pytest.raises(ParameterError, match="expected none"):
        open_source(f"{tmp_path}/v.fbin:key")
    with pytest.raises(OutputExistsError):
        open_sink(tmp_path / "v.fbin", n=1, dim=6).__enter__()


def test_each_cell_of_the_table_of_the_page_is_true():
    page = (Path(__file__).parents[2] / "docs/files.md").read_text().split("| file | `PATH` |", 1)[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()[2:]]
    table = {suffix: cells for name, *cells in rows for suffix in re.findall(r"`(\.\w+)`|folder", name)}
    assert {*table} == {*suffixes()}
    runs = json.loads((Path(__file__).parents[2] / "benchmarks/records/hostile.json").read_text())["runs"]
    for name, *_, tried in rows:
        kinds = re.findall(r"`(\.\w+)`", name) or ["folder", "folders of other tools"]
        lines = [run["results"]["lines"].get(kind, [0]) for run in runs for kind in kinds]
        assert int(tried.replace(",", "")) == sum(line[0] for line in lines), name
    for suffix, (_, writes, streamed, ids, _) in table.items():
        one = find_format(f"x{suffix}") if suffix else find_format(Path(__file__).parent)
        assert (writes == "yes") == (one.sink is not None), suffix
        assert (streamed == "yes") == one.streams, suffix
        assert one.sink is None or (ids == "yes") == one.sink.keeps_ids, suffix
