"""Tiny models of every kind, with weights large enough that the outputs for different texts and classes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.objectives.mlm import MlmModule
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
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ing", ".", "?", ",", *"我喜欢看电影很好。"]
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=32,
    initializer_range=0.3,
)
WINDOW_RULE = WindowRule(32, 8)

TASKS: dict[str, Task] = {
    "classify": Classify(labels=("bad", "good")),
    "regress": Regress(),
    "choose": Choose(),
    "tag": Tag(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), context=False),
    "answer": Answer(),
}


def write_tokenizer(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return Tokenizer.load(folder / "vocab.txt")


def write_finetuned(folder: Path, task: Task, seed: int = 0, metadata: Mapping[str, object] | None = None) -> Path:
    """Write a fine-tuned model folder with random weights."""
    generator = torch.Generator().manual_seed(seed)
    module = TaskModule(Bert(CONFIG, generator), task, generator)
    tokenizer = write_tokenizer(folder.parent / f"{folder.name}-vocabulary")
    save_finetuned(folder, Predictor(module, tokenizer, WINDOW_RULE), {"base": "pretrained", **(metadata or {})})
    return folder


def write_pretrained(folder: Path, seed: int = 0, metadata: Mapping[str, object] | None = None) -> Path:
    """Write a model folder as `bertworks pretrain` does."""
    generator = torch.Generator().manual_seed(seed)
    module = MlmModule(Bert(CONFIG, generator), generator)
    tokenizer = write_tokenizer(folder.parent / f"{folder.name}-vocabulary")
    write_model(folder, module, tokenizer, {"objective": "mlm-nsp", **(metadata or {})})
    return folder


def write_sentence_model(folder: Path) -> Path:
    """Write a sentence embedding model in the layout of sentence-transformers."""
    write_pretrained(folder, seed=3)
    (folder / "bertworks.json").unlink()
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": f"models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    return folder


def write_all(folder: Path) -> dict[str, Path]:
    """Write a model for each task, a pretrained and a sentence embedding model; return their folders by name."""
    folders = {name: write_finetuned(folder / name, task, seed) for seed, (name, task) in enumerate(TASKS.items())}
    folders["pretrained"] = write_pretrained(folder / "pretrained")
    folders["sentences"] = write_sentence_model(folder / "sentences")
    return folders
