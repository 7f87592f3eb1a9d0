"""Notebooks (``docs/notebooks/*.py``, percent format) as pages with the outputs of their cells, and as ``.ipynb`` to download."""

from __future__ import annotations

from pathlib import Path


def write(source: Path, folder: Path, *, run: bool) -> None:
    """Write ``NAME.md``, its figures in ``NAME_files``, and ``NAME.ipynb`` without outputs.

    Parameters
    ----------
    source : Path
        File in jupytext's percent format.
    folder : Path
    run : bool
        Run the cells; an error in a cell stops the build.
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
    text, resources = MarkdownExporter().from_notebook_node(book, {"output_files_dir": name})
    for file, data in resources["outputs"].items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    title, rest = text.lstrip().split("\n", 1)
    note = f"*A notebook: [{source.stem}.ipynb]({source.stem}.ipynb), or `docs/notebooks/{source.name}` in the repository. Its outputs were computed when this page was built.*"
    (folder / f"{source.stem}.md").write_text(f"{title}\n\n{note}\n{rest}", encoding="utf-8")
