"""Notebooks as pages: text, code and outputs in their order."""

import json
from pathlib import Path

from notebook_pages import notebook_page


def test_a_page_has_the_cells_with_their_outputs(tmp_path: Path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words."], "metadata": {"zh": "# 标题"}},
        {
            "cell_type": "code",
            "source": "print(1)",
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"output_type": "execute_result", "data": {"text/html": "<b>2</b>", "text/plain": "2"}},
                {"output_type": "execute_result", "data": {"text/plain": ["3"]}},
            ],
        },
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    code = (
        "```python\nprint(1)\n```\n\n```{.text .output}\n1\n```\n\n<div><b>2</b></div>\n\n```{.text .output}\n3\n```\n"
    )
    assert notebook_page(path) == f"# Title\nWords.\n\n{code}"
    assert notebook_page(path, "zh") == f"# 标题\n\n{code}"
