"""What docs/serve.md and docs/integrations_frameworks.md print runs as printed, and finds what NumPy finds."""

import re
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
    code = example("serve.md", "serve")
    with running(create_app(bridge, Toy(), names=["text-embedding-3-small"])) as server:
        names: dict = {}
        exec(compile(code.replace("http://127.0.0.1:8000", server.url), "serve.md", "exec", dont_inherit=True), names)
    want = bridge.transform(new_model(["a photo of a cat", "an owl at night"]), "text")
    np.testing.assert_allclose(names["queries"], want, atol=1e-6)


def test_the_application_of_the_page():
    names: dict = {}
    exec(compile(example("serve.md", "app"), "serve.md", "exec", dont_inherit=True), names)
    with running(names["app"]) as server:
        row = server.post({"model": "old-model", "input": "two words"}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(row, [-1, 9, 1], atol=1e-4)


@pytest.mark.parametrize("name", ["langchain", "llama-index", "chroma", "lancedb"])
def test_the_frameworks_of_the_page(name, bridge, folder, toy, old_rows, nearest, tmp_path):
    names = {"encode": new_model, "bridge": bridge, "texts": TEXTS, "old": old_rows}
    names |= {"encoder_name": toy, "bridge_folder": str(folder), "folder": tmp_path / "db"}
    # Classes of pydantic look for what their annotations name in the module they say they are of.
    names["__name__"] = __name__
    page = "integrations_frameworks.md"
    exec(compile(example(page, name), page, "exec", dont_inherit=True), names)
    assert [int(one) for one in names["found"]] == nearest(["a cat sleeps in a tree"], 3)[0].tolist()
