"""Models of other families are exported with a certificate, and predict the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import WORDS
from served_family import PRETRAINING

from bertworks.encoders.families import ENCODERS, family_of
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
ALGORITHMS = {
    name: PRETRAINING[name].vocabulary_kind
    for name, family in ENCODERS.items()
    if getattr(family.build, "has_graph", False)
}
TEXTS = [("the film was good", "john lives in paris"), ("the film", "was bad")]


@pytest.fixture(params=list(ALGORITHMS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A classifier of the family with random weights."""
    name = str(request.param)
    lines = [" ".join(WORDS[index:] + WORDS[:index]) for index in range(len(WORDS))]
    settings = VocabularySettings(kind=ALGORITHMS[name], vocab_size=PRETRAINING[name].vocab_size + 10)
    tokenizer = Tokenizer.from_backend(train(lines, settings))
    family, generator = family_of(name), torch.Generator().manual_seed(3)
    config = family.config_from_preset("tiny", tokenizer.vocab_size).resized(
        hidden_size=32, num_attention_heads=4, intermediate_size=128, max_length=32, initializer_range=0.2
    )
    config = config.with_pad_token_id(tokenizer.specials.pad)
    module = TaskModule(family.build(config, generator), Classify(labels=("no", "yes", "perhaps")), generator)
    save_finetuned(tmp_path / "model", Predictor(module, tokenizer, WindowRule(32, 8)), {})
    return tmp_path / "model"


@pytest.mark.parametrize("target", ["onnx", "openvino"])
def test_an_exported_model_predicts_the_same_and_has_a_certificate(folder: Path, target: str, tmp_path: Path):
    result = export(ExportRequest(model=str(folder), target=target, output=tmp_path / target))
    certificate = json.loads((tmp_path / target / "certificate.json").read_text())
    assert certificate == result.certificate
    assert max(certificate["max_difference"].values()) < 1e-4
    predictions = zip(load(folder).predict(TEXTS), load(tmp_path / target).predict(TEXTS), strict=True)
    for expected, actual in predictions:
        assert actual.label == expected.label
        assert np.abs(actual.logits - expected.logits).max() < 1e-4


def test_an_int8_export_keeps_the_required_cosine(folder: Path, tmp_path: Path):
    result = export(ExportRequest(model=str(folder), target="int8", output=tmp_path / "int8", cosine=0.98))
    assert result.certificate["mean_cosine"] >= 0.98
    assert load(tmp_path / "int8").predict(TEXTS[:1])
