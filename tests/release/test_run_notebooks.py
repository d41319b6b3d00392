"""The tutorials: what differs between machines is not kept."""

from types import SimpleNamespace

from run_notebooks import clean


def test_progress_and_metadata_are_removed():
    outputs = [{"name": "stderr", "text": "50 %"}, {"name": "stdout", "text": "1"}]
    cell = SimpleNamespace(cell_type="code", id="x7", metadata={"time": 1}, outputs=outputs)
    text = SimpleNamespace(cell_type="markdown", id="x8", metadata={"zh": "文本", "tags": []})
    notebook = SimpleNamespace(metadata={"kernelspec": {"name": "python3"}, "host": "a"}, cells=[cell, text])
    clean(notebook)
    assert notebook.metadata == {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
    assert (cell.id, cell.metadata, cell.outputs) == ("cell-0", {}, [{"name": "stdout", "text": "1"}])
    assert text.metadata == {"zh": "文本"}
