"""Tiny fine-tuned and pretrained model folders of every encoder family, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from small_models import WINDOW_RULE, WORDS

from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import ENCODERS, family_of
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.objectives.registry import OBJECTIVES
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train


@dataclass(frozen=True)
class Pretraining:
    """The vocabulary and the objective that a family was published with."""

    vocabulary_kind: str = "wordpiece"
    objective: str = "mlm"
    vocab_size: int = 60


PRETRAINING = {
    "bert": Pretraining(objective="mlm-nsp"),
    "roberta": Pretraining("byte-bpe", vocab_size=300),
    "xlm-roberta": Pretraining("unigram"),
    "camembert": Pretraining("unigram"),
    "ernie": Pretraining(objective="mlm-nsp"),
    "distilbert": Pretraining(),
    "mpnet": Pretraining("byte-bpe", vocab_size=300),
    "electra": Pretraining(objective="rtd"),
    "deberta-v2": Pretraining("unigram"),
    "modernbert": Pretraining("byte-bpe", vocab_size=300),
    "albert": Pretraining("unigram", "mlm-sop"),
    "openai-gpt": Pretraining("bpe", "causal"),
    "xlnet": Pretraining("unigram", "permutation"),
    "elmo": Pretraining("words", "bilm"),
    "awd-lstm": Pretraining(objective="causal-stream"),
}
FAMILIES = [family for family in ENCODERS if family in PRETRAINING]
# Settings without which a part of a family would not be tested.
SETTINGS: dict[str, dict[str, int]] = {"ernie": {"use_task_id": True}, "modernbert": {"local_attention": 6}}
LSTM_FAMILIES = ("elmo", "awd-lstm")


def train_tokenizer(family: str) -> Tokenizer:
    lines = [" ".join(WORDS[start:] + WORDS[:start]) + "." for start in range(len(WORDS))]
    pretraining = PRETRAINING[family]
    settings = VocabularySettings(kind=pretraining.vocabulary_kind, vocab_size=pretraining.vocab_size)
    return Tokenizer.from_backend(train(lines, settings))


def random_encoder(family_name: str, tokenizer: Tokenizer) -> Encoder:
    """Return an encoder of two layers; biases and norms are random too, so that each affects the output."""
    family = family_of(family_name)
    sizes = {"hidden_size": 24, "intermediate_size": 96, "max_length": 32}
    if family_name not in LSTM_FAMILIES:
        sizes["num_attention_heads"] = 3
    sizes |= SETTINGS.get(family_name, {})
    config = family.config_from_preset("tiny", tokenizer.vocab_size).resized(**sizes)
    config = config.with_pad_token_id(tokenizer.specials.pad)
    generator = torch.Generator().manual_seed(7)
    encoder = family.build(config, generator)
    encoder.set_tokenizer(tokenizer)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return encoder


def write_finetuned_member(folder: Path, family: str, task: Task) -> Path:
    tokenizer = train_tokenizer(family)
    module = TaskModule(random_encoder(family, tokenizer), task, torch.Generator().manual_seed(1))
    save_finetuned(folder, Predictor(module, tokenizer, WINDOW_RULE), {"base": "pretrained"})
    return folder


def write_pretrained_member(folder: Path, family: str) -> Path:
    tokenizer, objective = train_tokenizer(family), PRETRAINING[family].objective
    module = OBJECTIVES[objective].build(random_encoder(family, tokenizer), torch.Generator().manual_seed(1))
    write_model(folder, module, tokenizer, {"objective": objective})
    return folder
