"""The work of TEI's endpoints: truncated sequences, token vectors, scores, tokens and model types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from small_models import TASKS, write_finetuned
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from bertworks.embeddings.pooling import Pooling
from bertworks.errors import InputError
from bertworks.sampling.windows import WindowRule
from bertworks.serving.answers import Work
from bertworks.serving.errors import RequestError
from bertworks.serving.models import ServedModel, load_served_model
from bertworks.serving.tei_answers import (
    Truncation,
    can_predict,
    can_rerank,
    model_type_of,
    scores_of,
    tei_embed_work,
    tei_predict_work,
    tei_tokens,
    token_vectors_work,
)
from bertworks.tasks.classify import Classify, ClassPrediction
from bertworks.tasks.regress import ValuePrediction

LEFT, RIGHT, REFUSED = Truncation(from_left=True), Truncation(), Truncation(is_allowed=False)
LONG = "the cat sat on the mat and the dog was in paris and it was very good or not very bad who is it where is it "


@pytest.fixture(scope="module")
def served_models(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    return {name: load_served_model(name, folder, lambda: None, precision="fp32") for name, folder in folders.items()}


def compute(work: Work) -> Any:
    return work.finish(work.queue.compute(work.items))


def with_max_length(served: ServedModel, max_length: int) -> ServedModel:
    queue = served.predict_queue
    assert queue is not None
    predictor = replace(queue.predictor, window_rule=WindowRule(max_length, 0))
    return replace(served, predict_queue=replace(queue, predictor=predictor))


def fast_tokenizer(folder: Path, max_length: int, direction: str) -> tokenizers.Tokenizer:
    """Return the tokenizer as TEI configures it."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.post_processor = template
    tokenizer.enable_truncation(max_length, strategy="longest_first", direction=direction)
    return tokenizer


@pytest.mark.parametrize("truncation", [LEFT, RIGHT])
@pytest.mark.parametrize(
    "texts",
    [(LONG,), ("a cat", LONG), (LONG, "a cat"), (LONG, LONG), (LONG * 2, LONG), ("a", "a b"), (LONG, LONG + "a")],
)
def test_sequences_are_truncated_as_the_fast_tokenizers_do(texts, truncation, served_models, folders):
    served = served_models["classify"]
    for max_length in (31, 32):
        (sequence,) = tei_predict_work(with_max_length(served, max_length), [texts], truncation).items
        tokenizer = fast_tokenizer(folders["classify"], max_length, "left" if truncation.from_left else "right")
        expected = tokenizer.encode(*texts)
        assert sequence.input_ids.tolist() == expected.ids
        assert sequence.token_type_ids.tolist() == expected.type_ids


def test_an_input_that_is_too_long_is_refused_where_truncation_is(served_models):
    sentences, classify = served_models["sentences"], served_models["classify"]
    fits = " ".join(["cat"] * 14)  # 16 positions with [CLS] and [SEP]
    assert len(tei_embed_work(sentences, [fits], sentences.pooling, REFUSED).items[0].input_ids) == 16
    with pytest.raises(RequestError, match="input 1 has 15 tokens, but this model reads at most 14") as caught:
        tei_embed_work(sentences, ["a", fits + " cat"], sentences.pooling, REFUSED)
    assert caught.value.status == 413
    with pytest.raises(RequestError, match="at most 29"):
        tei_predict_work(classify, [("a cat", " ".join(["cat"] * 28))], REFUSED)


def test_vectors_are_those_of_transformers_with_truncation(served_models, folders):
    served, texts = served_models["sentences"], ["a cat sat", LONG, "我喜欢看电影"]
    tokenizer = AutoTokenizer.from_pretrained(folders["sentences"])
    model = AutoModel.from_pretrained(folders["sentences"]).eval()
    vectors = compute(tei_embed_work(served, texts, served.pooling, RIGHT))
    token_vectors = compute(token_vectors_work(served, texts, served.pooling, RIGHT))
    for text, vector, hidden_states in zip(texts, vectors, token_vectors, strict=True):
        encoded = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        expected = model(**encoded).last_hidden_state[0].detach().numpy()
        np.testing.assert_allclose(hidden_states, expected, atol=1e-5)
        np.testing.assert_allclose(vector, expected.mean(0), atol=1e-5)  # not normalized


def test_token_ids_are_a_whole_sequence(served_models):
    served = served_models["sentences"]
    token_ids = served.model.tokenizer.encode("a cat sat").input_ids
    by_ids, by_text = compute(tei_embed_work(served, [token_ids, "a cat sat"], served.pooling, RIGHT))
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)
    (item,) = tei_embed_work(served, [[5] * 40], served.pooling, RIGHT).items
    assert item.input_ids.tolist() == [5] * 16
    with pytest.raises(InputError, match="input 0: token ids"):
        tei_embed_work(served, [[10**6]], served.pooling, RIGHT)


def test_too_many_token_vectors_are_refused(served_models, monkeypatch):
    served = served_models["sentences"]
    monkeypatch.setattr("bertworks.serving.tei_answers.MAX_TOKEN_VALUES", 4 * 24)
    assert compute(token_vectors_work(served, ["a cat"], Pooling(), RIGHT))[0].shape == (4, 24)
    with pytest.raises(RequestError, match="5 token vectors of 24 dimensions") as caught:
        token_vectors_work(served, ["a cat sat"], Pooling(), RIGHT)
    assert caught.value.status == 413


def test_predictions_are_those_of_transformers(served_models, folders):
    inputs = [("a good film",), ("a cat", "a dog"), (LONG, LONG + LONG)]
    for name in ("classify", "regress"):
        tokenizer = AutoTokenizer.from_pretrained(folders[name])
        model = AutoModelForSequenceClassification.from_pretrained(folders[name]).eval()
        predictions = compute(tei_predict_work(served_models[name], inputs, RIGHT))
        for texts, prediction in zip(inputs, predictions, strict=True):
            encoded = tokenizer(*texts, truncation=True, max_length=32, return_tensors="pt")
            logits = model(**encoded).logits[0]
            raw, scores = scores_of(prediction, raw=True), scores_of(prediction, raw=False)
            np.testing.assert_allclose(list(raw.values()), logits.detach().numpy(), atol=1e-5)
            expected = logits.softmax(0) if name == "classify" else logits.sigmoid()
            np.testing.assert_allclose(list(scores.values()), expected.detach().numpy(), atol=1e-5)


def test_scores_are_probabilities_or_outputs_of_the_head():
    prediction = ClassPrediction("0", "b", {"a": 0.25, "b": 0.75}, np.array([0.0, 1.5], dtype=np.float32))
    assert scores_of(prediction, raw=False) == {"a": 0.25, "b": 0.75}
    assert scores_of(prediction, raw=True) == {"a": 0.0, "b": 1.5}
    assert scores_of(ValuePrediction("0", 0.0), raw=False) == {"value": 0.5}
    assert scores_of(ValuePrediction("0", -2000.0), raw=False) == {"value": 0.0}
    assert scores_of(ValuePrediction("0", 3.5), raw=True, value_name="LABEL_0") == {"LABEL_0": 3.5}


def test_tokens_have_their_characters_and_special_tokens_have_none(served_models):
    tokenizer = served_models["classify"].model.tokenizer
    cls, cat, s, sep = tei_tokens(tokenizer, "Cats", add_special_tokens=True)
    assert cls == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert (cat["text"], cat["special"], cat["start"], cat["stop"]) == ("Cat", False, 0, 3)
    assert (s["id"], s["text"], s["start"], s["stop"]) == (tokenizer.token_to_id("##s"), "s", 3, 4)
    assert sep["text"] == "[SEP]"
    assert tei_tokens(tokenizer, "Cats", add_special_tokens=False) == [cat, s]


def test_a_model_is_an_embedding_model_a_classifier_or_a_reranker(served_models, tmp_path, one_thread):
    assert model_type_of(served_models["sentences"]) == {"embedding": {"pooling": "mean"}}
    assert model_type_of(served_models["tag"]) == {"embedding": {"pooling": "mean"}}
    assert model_type_of(served_models["classify"]) == {
        "classifier": {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    }
    assert model_type_of(served_models["regress"]) == {
        "reranker": {"id2label": {"0": "value"}, "label2id": {"value": 0}}
    }
    can = {name: (can_predict(served), can_rerank(served)) for name, served in served_models.items()}
    assert can == {
        **dict.fromkeys([*TASKS, "pretrained", "sentences"], (False, False)),
        "classify": (True, False),
        "regress": (True, True),
    }
    folder = write_finetuned(tmp_path / "relevant", Classify(labels=("relevant",), multi_label=True))
    assert can_rerank(load_served_model("relevant", folder, lambda: None))
