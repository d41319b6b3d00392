"""Model folders with random weights, pretrained, fine-tuned for each task and of sentence-transformers, with inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

WORDS = "the film was good bad john lives in paris who a b c 我 喜 欢 足 球 。 .".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    initializer_range=0.3,
)


@dataclass(frozen=True)
class TaskInputs:
    """A task and inputs for `Model.predict`; the first text is longer than a window."""

    task: Task
    texts: list[Any] = field(default_factory=list)


LONG_TEXT = "john lives in paris . " * 12
TASK_INPUTS = {
    "classify": TaskInputs(
        Classify(labels=("no", "yes", "perhaps")), [LONG_TEXT, "the film was good", ("the film", "was bad")]
    ),
    "regress": TaskInputs(Regress(), [LONG_TEXT, "a b c"]),
    "choose": TaskInputs(Choose(), [{"prompt": "the film was", "choices": [LONG_TEXT, "good", "bad"]}]),
    "tag": TaskInputs(Tag(labels=("O", "B-PER", "I-PER")), [LONG_TEXT, "john lives in paris", "我喜欢足球。"]),
    "answer": TaskInputs(Answer(), [{"question": "who lives in paris", "context": LONG_TEXT}]),
}


def tokenizer() -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))


def encoder(seed: int = 0) -> Bert:
    return Bert(CONFIG, torch.Generator().manual_seed(seed)).eval()


def finetuned(folder: Path, task: Task, recurrent: RecurrentSettings | None = None) -> Path:
    """A model folder as `bertworks finetune` writes it."""
    generator = torch.Generator().manual_seed(1)
    module = TaskModule(encoder(), task, generator, recurrent=recurrent)
    save_finetuned(folder, Predictor(module, tokenizer(), WindowRule(32, 8)), {})
    return folder


def pretrained(folder: Path) -> Path:
    """A model folder as `bertworks pretrain` writes it."""
    generator = torch.Generator().manual_seed(0)
    module = MlmModule(Bert(CONFIG, generator), generator)
    names = combine_name_tables({"encoder": tensor_names(CONFIG), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]})
    tensors = to_hf_names(module.state_dict(), names)
    write_folder(folder, config_to_dict(CONFIG, ["BertForPreTraining"]), tensors, tokenizer(), {"objective": "mlm-nsp"})
    return folder


def sentence_model(folder: Path) -> Path:
    """A folder of sentence-transformers without a pooler: the normalized vector of the first token."""
    tensors = to_hf_names(encoder().state_dict(), tensor_names(CONFIG))
    tensors = {name: values for name, values in tensors.items() if ".pooler." not in name}
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    files = {"modules.json": modules, "1_Pooling/config.json": {"pooling_mode_cls_token": True}}
    others = {name: json.dumps(content).encode() for name, content in files.items()}
    write_folder(folder, config_to_dict(CONFIG, ["BertModel"]), tensors, tokenizer(), {}, others)
    return folder


def assert_close(expected: Any, actual: Any) -> None:
    """Assert that two predictions are equal, numbers within 1e-4."""
    if isinstance(expected, dict):
        assert expected.keys() == actual.keys()
        for key in expected:
            assert_close(expected[key], actual[key])
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual)
        for one_expected, one_actual in zip(expected, actual, strict=True):
            assert_close(one_expected, one_actual)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=1e-4)
    else:
        assert actual == expected
