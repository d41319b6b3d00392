"""Prompts and Matryoshka dimensions of a model folder, and vectors that are truncated to such a size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.embeddings.sentence_settings import normalize_vectors, read_dimensions, read_prompts, truncate_vectors
from bertworks.errors import FolderError, InputError

CARD = """---
tags:
- sentence-transformers
- loss:MatryoshkaLoss
---
* Loss: MatryoshkaLoss with these parameters:
  ```json
  {
      "loss": "MultipleNegativesRankingLoss",
      "matryoshka_dims": [
          16,
          8
      ],
      "n_dims_per_step": -1
  }
  ```
"""


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_a_folder_that_states_nothing_has_no_prompts_and_dimensions(tmp_path):
    assert read_prompts(tmp_path) == {}
    write(tmp_path, "config.json", {"hidden_size": 16})
    write(tmp_path, "config_sentence_transformers.json", {"prompts": None, "truncate_dim": None})
    write(tmp_path, "README.md", "# A model\n\nIts vectors have 16 dimensions.\n")
    assert read_prompts(tmp_path) == {}
    assert read_dimensions(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "value", "dimensions"),
    [
        ("config.json", {"matryoshka_dimensions": [4, 16, 8, 8, True, "2", 0]}, (16, 8, 4)),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, (8,)),
        ("README.md", CARD, (16, 8)),
        ("README.md", "{'loss': 'CoSENTLoss', 'matryoshka_dims': [12, 6], 'matryoshka_weights': [1, 1]}", (12, 6)),
    ],
)
def test_matryoshka_dimensions_are_stated_in_three_places(name, value, dimensions, tmp_path):
    write(tmp_path, name, value)
    assert read_dimensions(tmp_path) == dimensions


def test_prompts_are_read_by_name(tmp_path):
    settings = {"prompts": {"query": "query: ", "document": "", "broken": 3}, "default_prompt_name": None}
    write(tmp_path, "config_sentence_transformers.json", settings)
    assert read_prompts(tmp_path) == {"query": "query: ", "document": ""}


def test_a_settings_file_that_is_no_object_is_named(tmp_path):
    write(tmp_path, "config_sentence_transformers.json", [1])
    with pytest.raises(FolderError, match=r"config_sentence_transformers.json must contain a JSON object"):
        read_prompts(tmp_path)


def test_truncated_vectors_are_the_first_components_with_length_1_again():
    vectors = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], dtype=np.float32)
    np.testing.assert_array_equal(truncate_vectors(vectors, 2, (3, 2), normalize=False), [[3.0, 4.0], [0.0, 0.0]])
    truncated = truncate_vectors(vectors, 2, (3, 2), normalize=True)
    np.testing.assert_allclose(truncated, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    for size in (None, 3):
        assert truncate_vectors(vectors, size, (), normalize=True) is vectors


def test_a_size_that_the_model_does_not_offer_is_refused():
    vectors = np.ones((1, 4), dtype=np.float32)
    with pytest.raises(InputError, match="have 4 dimensions, not 3; choose one of its sizes: 4, 2"):
        truncate_vectors(vectors, 3, (4, 2), normalize=True)
    with pytest.raises(InputError, match="not 2; its folder states no Matryoshka dimensions"):
        truncate_vectors(vectors, 2, (), normalize=True)
    with pytest.raises(InputError, match="not 8"):
        truncate_vectors(vectors, 8, (8, 2), normalize=True)


def test_vectors_are_normalized():
    np.testing.assert_allclose(normalize_vectors(np.array([[3.0, 4.0]], dtype=np.float32)), [[0.6, 0.8]], rtol=1e-6)
