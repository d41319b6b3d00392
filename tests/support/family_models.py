"""Toy models of other families: a text, a vocabulary of the kind that each was published with, a corpus, a recipe."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from small_run import RECIPE, WORDS

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.sampling.masking import MaskSettings
from bertworks.text.sources import TextSource
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train


@dataclass(frozen=True)
class Member:
    """A model family, the kind and size of its vocabulary, and its pretraining objective."""

    family: str
    kind: str
    vocab_size: int
    objective: str
    masking: MaskSettings = field(default_factory=MaskSettings)

    @property
    def recipe(self) -> PretrainRecipe:
        model = replace(RECIPE.model, family=self.family)
        return replace(RECIPE, model=model, objective=self.objective, masking=self.masking)

    def prepare(self, folder: Path) -> Path:
        """Prepare documents of six short sentences with a vocabulary that is trained on them."""
        rng = random.Random(5)
        lines = ["The " + " ".join(rng.choices(WORDS, k=rng.randint(3, 7))) + "." for _ in range(240)]
        documents = ["\n".join(lines[start : start + 6]) for start in range(0, 240, 6)]
        (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        settings = VocabularySettings(kind=self.kind, vocab_size=self.vocab_size)
        Tokenizer.from_backend(train(lines, settings)).save(folder / "vocabulary")
        sources = (TextSource(str(folder / "text.txt")),)
        return prepare(PrepareRequest(sources=sources, vocabulary=folder / "vocabulary", output=folder / "corpus"), 1)


MEMBERS = {
    "roberta": Member("roberta", "byte-bpe", 320, "mlm"),
    "xlm-roberta": Member("xlm-roberta", "unigram", 40, "mlm"),
    "camembert": Member("camembert", "unigram", 40, "mlm"),
    "ernie": Member("ernie", "wordpiece", 60, "mlm-nsp"),
    "distilbert": Member("distilbert", "wordpiece", 60, "mlm"),
    "mpnet": Member("mpnet", "byte-bpe", 320, "mlm"),
    "electra": Member("electra", "wordpiece", 60, "rtd"),
    "deberta-v2": Member("deberta-v2", "unigram", 40, "mlm"),
    "modernbert": Member("modernbert", "byte-bpe", 320, "mlm"),
    "albert": Member("albert", "unigram", 40, "mlm-sop", MaskSettings(whole_words=True, max_ngram=3)),
    "gpt": Member("openai-gpt", "bpe", 60, "causal"),
}


def randomize_weights(module: Any, seed: int = 0) -> Any:
    """Sample every parameter, biases and norms too, so that each of them affects the output; return the module."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.05, 0.2, generator=generator)
    return module.eval()
