"""Model cards: what they say of fine-tuned and pretrained models, and that equal models have equal cards."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from small_models import TASKS, write_finetuned, write_pretrained, write_tokenizer

from bertworks.models.card import card_text

METADATA = {
    "task": "classify",
    "base": "en-small",
    "languages": ["en", "other (Latin)"],
    "scores": {"dev": {"accuracy": 0.91666}},
    "data": {"train": {"file": "train.tsv", "sha256": "ab12", "examples": 1200}},
}


def front_matter(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_of_a_fine_tuned_model_has_base_scores_and_data(tmp_path: Path):
    config = {"model_type": "bert", "num_hidden_layers": 2, "id2label": {"0": "bad", "1": "good"}}
    card = card_text(config, METADATA, write_tokenizer(tmp_path))
    assert front_matter(card) == {
        "library_name": "bertworks",
        "tags": ["bertworks", "bert"],
        "pipeline_tag": "text-classification",
        "language": ["en"],
    }
    for line in (
        "# BERT, fine-tuned for classify",
        "- hidden layers: 2",
        "- base model: en-small",
        "- labels: bad, good",
        "- dev accuracy: 0.9167",
        "- train: 1,200 examples, sha256 ab12",
    ):
        assert f"\n{line}\n" in card
    assert 'model.predict("a text")' in card


@pytest.mark.parametrize("task", TASKS)
def test_every_saved_model_has_a_card(task: str, tmp_path: Path):
    one, other = (write_finetuned(tmp_path / name, TASKS[task]) for name in ("one", "other"))
    card = (one / "README.md").read_text(encoding="utf-8")
    assert f"# BERT, fine-tuned for {task}" in card
    assert "pipeline_tag" in front_matter(card)
    assert card == (other / "README.md").read_text(encoding="utf-8")


def test_the_card_of_a_pretrained_model_fills_masks(tmp_path: Path):
    card = (write_pretrained(tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert "# BERT, pretrained (mlm-nsp)" in card
    assert front_matter(card)["pipeline_tag"] == "fill-mask"
    assert "model.fill_mask(" in card
