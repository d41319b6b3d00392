"""The tutorials: notebooks in, the same notebooks with the outputs of a fresh run out.

`make tutorials` runs it: python release/run_notebooks.py docs/tutorials. Only what a cell prints or shows is kept: no
progress, warnings, times or paths of this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_MAX_BYTES = 200_000  # of a notebook with its outputs


def main(folder: Path, names: list[str]) -> int:
    """Execute the notebooks of a folder, or those named; return the exit code."""
    import nbformat
    from nbclient import NotebookClient

    paths = [folder / name for name in names] or sorted(folder.glob("*.ipynb"))
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=1_200, resources=resources, coalesce_streams=True).execute()
        clean(notebook)
        text = nbformat.writes(notebook) + "\n"
        if len(text.encode()) > _MAX_BYTES:
            print(f"tutorials: {path} has {len(text):,} bytes with its outputs; show less", file=sys.stderr)
            return 1
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def clean(notebook: Any) -> None:
    """Remove what differs between machines and runs; what stays of a cell's metadata is its text in Chinese."""
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {"zh": cell.metadata["zh"]} if "zh" in cell.metadata else {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]


def _is_progress(output: Any) -> bool:
    return output.get("name") == "stderr" or "<progress" in output.get("data", {}).get("text/html", "")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
