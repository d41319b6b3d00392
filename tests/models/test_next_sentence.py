"""Next sentence prediction is asked as a classifier of pairs, with the logits of transformers."""

from pathlib import Path

import pytest
import torch
import transformers
from family_models import randomize_weights
from small_models import CONFIG, TOKENS

import bertworks
from bertworks.encoders.bert import FAMILY
from bertworks.encoders.config import config_to_dict
from bertworks.models.next_sentence import as_classifier_config, as_classifier_tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nsp")
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForNextSentencePrediction"]))
    randomize_weights(transformers.BertForNextSentencePrediction(config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return folder


def test_the_head_answers_for_pairs_as_in_transformers(folder: Path):
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    model = bertworks.load(folder)
    pair = ("the cat sat.", "it was good.")
    (prediction,) = model.predict([pair])
    encoding = model.tokenizer.encode(*pair)
    with torch.inference_mode():
        inputs = {name: torch.tensor([getattr(encoding, name)]) for name in ("input_ids", "token_type_ids")}
        logits = theirs(**inputs).logits[0]
    assert prediction.logits.tolist() == pytest.approx(logits.tolist(), abs=1e-5)
    probabilities = dict(zip(("is_next", "not_next"), logits.softmax(-1).tolist(), strict=True))
    assert prediction.probabilities == pytest.approx(probabilities, abs=1e-5)
    assert model.report.unexpected_keys == ()


def test_a_graph_answers_the_same(folder: Path):
    pair = [("the cat sat.", "it was good.")]
    expected = bertworks.load(folder).predict(pair)[0].logits
    assert bertworks.load(folder, engine="onnx").predict(pair)[0].logits == pytest.approx(expected, abs=1e-4)


def test_other_models_are_left_as_they_are():
    config = {"architectures": ["BertForPreTraining"]}
    tensors = {"cls.seq_relationship.weight": 1}
    assert as_classifier_config(config, FAMILY) is config
    assert as_classifier_tensors(tensors, config, FAMILY) is tensors
