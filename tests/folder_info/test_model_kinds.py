"""What is told of a model folder: sizes by any family's keys, parameters, maximum length, task and labels."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file
from small_models import CONFIG, TASKS, TOKENS, write_finetuned

from bertworks.folder_info.model_kinds import describe_finetuned, describe_transformers


def write_model(folder: Path, **config: object) -> Path:
    import torch

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, folder / "model.safetensors")
    return folder


def test_a_finetuned_model_tells_task_labels_sizes_and_length(tmp_path: Path):
    metadata = {"scores": {"dev": {"accuracy": 0.75}}, "languages": ["en"]}
    info = describe_finetuned(write_finetuned(tmp_path / "model", TASKS["classify"], metadata=metadata))
    expected = {
        "task": "classify",
        "labels": ["bad", "good"],
        "scores": {"dev": {"accuracy": 0.75}},
        "base": "pretrained",
        "languages": ["en"],
        "family": "bert",
        "layers": 2,
        "hidden size": 24,
        "attention heads": 3,
        "vocabulary size": len(TOKENS),
        "max length": 32,
    }
    assert {name: info.facts[name] for name in expected} == expected
    # Two layers of 4 D² + 4 D + 2 D I + I + D and two norms of 2 D; embeddings with a norm; pooler; two classes.
    size, inner = CONFIG.hidden_size, CONFIG.intermediate_size
    layer = 4 * size * size + 4 * size + 2 * size * inner + inner + size + 4 * size
    embeddings = (len(TOKENS) + 32 + 2) * size + 2 * size
    assert info.facts["parameters"] == 2 * layer + embeddings + size * size + size + 2 * size + 2
    assert info.next_command == f"bertworks predict {tmp_path / 'model'} TEXTS"


def test_sizes_are_read_under_the_keys_of_each_family(tmp_path: Path):
    config = {"model_type": "distilbert", "dim": 6, "n_layers": 3, "n_heads": 2, "vocab_size": 9}
    facts = describe_transformers(write_model(tmp_path, max_position_embeddings=64, **config)).facts
    names = ("hidden size", "layers", "attention heads", "vocabulary size", "max length", "parameters")
    assert [facts[name] for name in names] == [6, 3, 2, 9, 64, 17]


def test_positions_of_a_roberta_begin_after_its_padding(tmp_path: Path):
    folder = write_model(tmp_path, model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert describe_transformers(folder).facts["max length"] == 512


@pytest.mark.parametrize(
    ("architecture", "command"),
    [
        ("BertForMaskedLM", 'fill-mask {folder} "… [MASK] …"'),
        ("BertForTokenClassification", "predict {folder} TEXTS"),
        ("BertModel", "embed {folder} TEXTS --output vectors.npy"),
    ],
)
def test_the_next_command_follows_from_the_architecture(tmp_path: Path, architecture: str, command: str):
    folder = write_model(tmp_path, model_type="bert", architectures=[architecture])
    assert describe_transformers(folder).next_command == f"bertworks {command.format(folder=folder)}"
