"""Every encoder of the family as it is served: tiny folders, fine-tuned and pretrained, all weights drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from small_models import RULE, WORDS

from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.families import ENCODERS, family_of
from bertworks.encoders.stack import Encoder
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.objectives.registry import OBJECTIVES
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train


@dataclass(frozen=True)
class Kin:
    """The vocabulary and the objective that a family was published with."""

    kind: str = "wordpiece"
    objective: str = "masked"
    size: int = 60


KIN = {
    "bert": Kin(objective="masked-next"),
    "roberta": Kin("byte-bpe", size=300),
    "albert": Kin("unigram", "masked-order"),
    "openai-gpt": Kin("bpe", "next"),
    "xlnet": Kin("unigram", "permuted"),
    "elmo": Kin("words", "two-way"),
    "awd-lstm": Kin(objective="next-stream"),
}
FAMILIES = [family for family in ENCODERS if family in KIN]


def tokenizer_of(family: str) -> Tokenizer:
    lines = [" ".join(WORDS[start:] + WORDS[:start]) + "." for start in range(len(WORDS))]
    return Tokenizer.from_backend(train(lines, VocabularySettings(kind=KIN[family].kind, vocab_size=KIN[family].size)))


def drawn_encoder(family: str, tokenizer: Tokenizer) -> Encoder:
    """Return an encoder of two layers, biases and norms drawn too, so that none of them is without effect."""
    own = family_of(family)
    sizes = replace(
        own.config_from_preset("tiny", tokenizer.vocab_size),
        hidden_size=24,
        num_attention_heads=3,
        intermediate_size=96,
        max_position_embeddings=32,
    )
    generator = torch.Generator().manual_seed(7)
    encoder = own.build(sizes, generator)
    encoder.set_tokenizer(tokenizer)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return encoder


def write_tuned_member(folder: Path, family: str, task: Task) -> Path:
    tokenizer = tokenizer_of(family)
    module = TaskModule(drawn_encoder(family, tokenizer), task, torch.Generator().manual_seed(1))
    save_finetuned(folder, Predictor(module, tokenizer, RULE), {"base": "pretrained"})
    return folder


def write_pretrained_member(folder: Path, family: str) -> Path:
    tokenizer, objective = tokenizer_of(family), KIN[family].objective
    module = OBJECTIVES[objective](drawn_encoder(family, tokenizer), torch.Generator().manual_seed(1))
    write_model(folder, module, tokenizer, {"objective": objective})
    return folder
