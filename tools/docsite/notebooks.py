"""Notebooks (``docs/notebooks/*.py``, percent format) as pages with what their cells printed and drew, and as ``.ipynb`` to download."""

from __future__ import annotations

from pathlib import Path


def write(source: Path, folder: Path, *, run: bool) -> None:
    """Write ``NAME.md``, its pictures in ``NAME_files`` and ``NAME.ipynb`` without outputs.

    Parameters
    ----------
    source : Path
        In jupytext's percent format.
    folder : Path
    run : bool
        Run the cells; an error in one fails the build.
    """
    import jupytext
    import nbformat
    from nbconvert import MarkdownExporter

    folder.mkdir(parents=True, exist_ok=True)
    book = jupytext.read(source)
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"  # random otherwise, so that each build would differ
    nbformat.write(book, folder / f"{source.stem}.ipynb")
    if run:
        from nbclient import NotebookClient

        NotebookClient(book, timeout=600, kernel_name="python3").execute()
    name = f"{source.stem}_files"
    text, made = MarkdownExporter().from_notebook_node(book, {"output_files_dir": name})
    for place, data in made["outputs"].items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    title, rest = text.lstrip().split("\n", 1)
    note = f"*A notebook: [{source.stem}.ipynb]({source.stem}.ipynb), or `docs/notebooks/{source.name}` in the repository. What it shows was made with this page.*"
    (folder / f"{source.stem}.md").write_text(f"{title}\n\n{note}\n{rest}", encoding="utf-8")
