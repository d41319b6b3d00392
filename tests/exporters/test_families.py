"""Members of the family are exported with a certificate as BERT is: the same predictions, as near to the original."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import WORDS

from bertworks.encoders.families import family_of
from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.model import load
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.classify import Classify
from bertworks.tasks.module import TaskModule
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"albert": "unigram", "openai-gpt": "bpe", "xlnet": "unigram"}
TEXTS = [("the film was good", "john lives in paris"), ("the film", "was bad")]


@pytest.fixture(params=list(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A classifier of the family, its weights drawn at random."""
    name = str(request.param)
    lines = [" ".join(WORDS[at:] + WORDS[:at]) for at in range(len(WORDS))]
    tokenizer = Tokenizer.from_backend(train(lines, VocabularySettings(kind=KINDS[name], vocab_size=70)))
    family, generator = family_of(name), torch.Generator().manual_seed(3)
    sizes = family.config_from_preset("tiny", tokenizer.vocab_size).resized(
        hidden_size=32, num_attention_heads=4, intermediate_size=128, max_length=32, initializer_range=0.2
    )
    module = TaskModule(family.build(sizes, generator), Classify(("no", "yes", "perhaps")), generator)
    save_finetuned(tmp_path / "model", Predictor(module, tokenizer, WindowRule(32, 8)), {})
    return tmp_path / "model"


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_an_exported_member_predicts_the_same_and_is_certified(folder: Path, to: str, tmp_path: Path):
    made = export(ExportRequest(model=str(folder), target=to, output=tmp_path / to))
    certificate = json.loads((tmp_path / to / "certificate.json").read_text())
    assert certificate == made.certificate
    assert max(certificate["max_difference"].values()) < 1e-4
    for one, other in zip(load(folder).predict(TEXTS), load(tmp_path / to).predict(TEXTS), strict=True):
        assert one.label == other.label
        assert np.abs(one.logits - other.logits).max() < 1e-4


def test_products_of_8_bits_are_certified_by_their_cosine(folder: Path, tmp_path: Path):
    made = export(ExportRequest(model=str(folder), target="int8", output=tmp_path / "int8", cosine=0.98))
    assert made.certificate["mean_cosine"] >= 0.98
    assert load(tmp_path / "int8").predict(TEXTS[:1])
