"""Tiny models of every kind, their weights drawn wide enough that texts and classes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.objectives.mlm import MlmObjective
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag
from bertworks.vocabulary.tokenizer import Tokenizer

WORDS = "the a cat dog film it was is good bad dull charming in paris john sat on mat who where and or not very".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ing", ".", "?", ",", *"我喜欢看电影很好。"]
SIZES = BertConfig(
    len(PIECES),
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=32,
    initializer_range=0.3,
)
RULE = WindowRule(32, 8)

TASKS: dict[str, Task] = {
    "classify": Classify(("bad", "good")),
    "regress": Regress(),
    "choose": Choose(),
    "tag": Tag(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), context=False),
    "answer": Answer(),
}


def tokenizer_in(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return Tokenizer.load(folder / "vocab.txt")


def write_tuned(folder: Path, task: Task, seed: int = 0, told: Mapping[str, object] | None = None) -> Path:
    """Write a model that is fine-tuned for a task, as far as its folder tells."""
    generator = torch.Generator().manual_seed(seed)
    module = TaskModule(Bert(SIZES, generator), task, generator)
    tokenizer = tokenizer_in(folder.parent / f"{folder.name}-vocabulary")
    save_finetuned(folder, Predictor(module, tokenizer, RULE), {"base": "pretrained", **(told or {})})
    return folder


def write_pretrained(folder: Path, seed: int = 0, told: Mapping[str, object] | None = None) -> Path:
    """Write a model as `bertworks pretrain` does."""
    generator = torch.Generator().manual_seed(seed)
    module = MlmObjective(Bert(SIZES, generator), generator)
    names = combine_name_tables({"encoder": tensor_names(SIZES), "masked": HEADS["masked"], "pair": HEADS["pair"]})
    tokenizer = tokenizer_in(folder.parent / f"{folder.name}-vocabulary")
    config = config_to_dict(SIZES, ["BertForPreTraining"])
    tensors = to_hf_names(module.state_dict(), names)
    write_folder(folder, config, tensors, tokenizer, {"objective": "masked-next", **(told or {})})
    return folder


def write_sentences(folder: Path) -> Path:
    """Write a model of sentence vectors, as sentence-transformers lays it out."""
    write_pretrained(folder, seed=3)
    (folder / "bertworks.json").unlink()
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    return folder


def write_all(folder: Path) -> dict[str, Path]:
    """Write a model for each task, a pretrained one and one of sentence vectors; return their folders by name."""
    found = {name: write_tuned(folder / name, task, number) for number, (name, task) in enumerate(TASKS.items())}
    found["pretrained"] = write_pretrained(folder / "pretrained")
    found["sentences"] = write_sentences(folder / "sentences")
    return found
