"""The public Model: one input or several, arrays or tensors, the inside of the model, saving, and its repr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import write_all

import bertworks
from bertworks.display.explanations import explanation_html
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.explanation import Explanation
from bertworks.inference.fill_mask import FillMaskResult

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["the film was good", "a dull dog"]


@pytest.fixture(scope="module")
def models(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bertworks.Model]:
    folders = write_all(tmp_path_factory.mktemp("models"))
    return {name: bertworks.load(folder, precision="fp32") for name, folder in folders.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classify", "the film was good"),
        ("classify", ("the film", "was good")),
        ("regress", "the film was good"),
        ("choose", ("the cat sat", ["on mat", "in paris"])),
        ("choose", {"prompt": "the cat sat", "choices": ["on mat", "in paris"]}),
        ("tag", "john sat in paris"),
        ("answer", ("who sat?", "john sat in paris")),
    ],
)
def test_one_input_has_one_prediction_and_a_list_a_list(models: dict[str, bertworks.Model], name: str, value: Any):
    (expected,) = models[name].predict([value])
    prediction = models[name].predict(value)
    assert prediction.to_dict() == expected.to_dict()
    assert repr(prediction).startswith(f"{type(prediction).__name__}(")
    assert "array" not in repr(prediction)
    assert len(repr(prediction)) < 400
    assert prediction._repr_html_().startswith("<div")


class Frame:
    """What a frame of pandas has: iterating it gives the names of its columns."""

    columns = ("text", "label")

    def __iter__(self):
        return iter(self.columns)

    def itertuples(self):
        return iter([("the film was good", "good")])


def test_a_table_is_refused_instead_of_predicting_for_the_names_of_its_columns(models: dict[str, bertworks.Model]):
    for method in (models["classify"].predict, models["classify"].predict_proba, models["pretrained"].encode):
        with pytest.raises(InputError, match=r"the input is a table; give its column of texts"):
            method(Frame())


def test_an_input_that_is_no_text_is_named_by_its_index(models: dict[str, bertworks.Model]):
    with pytest.raises(InputError, match=r"^text 1: the input is None; the task 'classify' takes"):
        models["classify"].predict(["the film was good", None])


def test_probabilities_are_in_the_order_of_the_labels(models: dict[str, bertworks.Model]):
    model = models["classify"]
    assert model.labels == ("bad", "good")
    probabilities = model.predict_proba(TEXTS)
    assert probabilities.shape == (2, 2)
    assert list(probabilities[0]) == [model.predict(TEXTS)[0].probabilities[label] for label in ("bad", "good")]
    assert model.predict_proba(TEXTS[0]) == pytest.approx(probabilities[0], abs=1e-6)
    assert torch.equal(model.predict_proba(TEXTS, convert_to_tensor=True), torch.from_numpy(probabilities))
    assert model.predict_proba([]).shape == (0, 2)
    assert [len(row) for row in models["choose"].predict_proba([("a", "b", "c"), ("a", "b", "c", "d")])] == [2, 3]


def test_a_task_without_classes_has_no_probabilities(models: dict[str, bertworks.Model]):
    with pytest.raises(InputError, match="the task 'regress' has no class probabilities"):
        models["regress"].predict_proba(TEXTS)


def test_encode_and_similarity_take_texts_or_vectors(models: dict[str, bertworks.Model]):
    model = models["pretrained"]
    vectors = model.encode(np.array(TEXTS))
    assert vectors.shape == (2, 24)
    np.testing.assert_allclose(model.encode(TEXTS[0]), vectors[0], atol=1e-6)
    assert isinstance(model.encode(TEXTS[0], convert_to_tensor=True), torch.Tensor)
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert model.similarity(*TEXTS) == pytest.approx(cosine, abs=1e-5)
    assert model.similarity(vectors, torch.from_numpy(vectors)) == pytest.approx(
        model.similarity(TEXTS, TEXTS), abs=1e-5
    )
    assert model.similarity(TEXTS[0], TEXTS).shape == (2,)
    assert model.similarity(np.zeros(24, dtype=np.float32), vectors[0]) == 0.0


def test_tokens_masks_and_explanations_of_one_text_or_several(models: dict[str, bertworks.Model]):
    model = models["pretrained"]
    assert model.tokenize("the cats").tokens == ("[CLS]", "the", "cat", "##s", "[SEP]")
    assert [encoding.tokens for encoding in model.tokenize(["a", ("a", "cat")])] == [
        ("[CLS]", "a", "[SEP]"),
        ("[CLS]", "a", "[SEP]", "cat", "[SEP]"),
    ]
    assert isinstance(model.fill_mask("the [MASK] sat"), FillMaskResult)
    assert model.fill_mask(["the [MASK] sat"]) == [model.fill_mask("the [MASK] sat")]
    explanation = models["classify"].explain(TEXTS[0], target="bad")
    assert isinstance(explanation, Explanation)
    assert explanation._repr_html_() == explanation_html(explanation)
    assert model.fill_mask("the [MASK] sat")._repr_html_().count("<tr>") == 5
    assert model.tokenize("a cat")._repr_html_().count("<tr>") == 3  # tokens, input_ids, token_type_ids
    assert str(explanation) == models["classify"].explain(TEXTS, target="bad")[0].to_text()


def test_hidden_states_are_the_embeddings_and_each_layer(models: dict[str, bertworks.Model]):
    model = models["pretrained"]
    states = model.hidden_states("the cats")
    assert [state.shape for state in states] == [(5, 24)] * 3
    np.testing.assert_allclose(states[-1].mean(0), model.encode("the cats"), atol=1e-5)
    assert isinstance(model.hidden_states(["the cats"], convert_to_tensor=True)[0][1], torch.Tensor)


def test_attention_has_all_heads(models: dict[str, bertworks.Model]):
    attention = models["pretrained"].attention(("a", "cat"))
    assert attention.weights.shape == (2, 3, 5, 5)
    assert attention._repr_html_().count("<img") == 6
    assert models["pretrained"].attention(["a", "a cat"])[1].tokens == ("[CLS]", "a", "cat", "[SEP]")


def test_evaluate_takes_data_in_memory_or_a_file(models: dict[str, bertworks.Model], tmp_path: Path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe film was good\tgood\na dull dog\tbad\n")
    assert models["classify"].evaluate((TEXTS, ["good", "bad"])) == models["classify"].evaluate(tmp_path / "dev.tsv")


def test_a_saved_model_predicts_the_same(models: dict[str, bertworks.Model], tmp_path: Path):
    model = models["classify"].to("cpu")
    assert model.save(tmp_path / "saved") == tmp_path / "saved"
    assert (
        bertworks.predict(tmp_path / "saved", TEXTS, precision="fp32")[0].to_dict() == model.predict(TEXTS)[0].to_dict()
    )
    with pytest.raises(FolderError, match="already exists"):
        model.save(tmp_path / "saved")


def test_an_exported_model_stays_on_the_cpu(models: dict[str, bertworks.Model], tmp_path: Path):
    certificate = models["classify"].export("onnx", tmp_path / "onnx")
    assert certificate["max_difference"]["logits"] < 1e-4
    exported = bertworks.load(tmp_path / "onnx")
    assert exported.predict(TEXTS[0]).label == models["classify"].predict(TEXTS[0]).label
    assert repr(exported) == "Model('onnx': bert, 2 layers of 24, fp32, classify: bad | good)"
    with pytest.raises(SettingsError, match="is an exported graph"):
        exported.to("cpu")


def test_the_repr_tells_family_size_and_task(models: dict[str, bertworks.Model]):
    assert repr(models["classify"]).startswith("Model('classify': bert, 2 layers of 24, 1")
    assert repr(models["classify"]).endswith("parameters, fp32, classify: bad | good)")
    assert repr(models["regress"]).endswith(", regress)")
    assert repr(models["pretrained"]).endswith("parameters, fp32)")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.predict(None), "the input is None; give a text or a list of texts"),
        (lambda model: model.predict([None]), "the input is None; the task 'classify' takes"),
        (lambda model: model.predict([float("nan")]), "the input is nan; the task 'classify' takes"),
        (lambda model: model.predict(np.array("a")), "give a text or a list of texts"),
        (lambda model: model.predict(b"a film"), "the input is b'a film'; give a text or a list of texts"),
        (lambda model: model.predict({"text": ["a", "b"]}), "text 0: the task 'classify' takes"),
        (lambda model: model.predict({"txt": "a"}), "text 0: the task 'classify' takes"),
        (lambda model: model.similarity(np.ones((2, 3)), "a"), "the vectors have 3 and 24 components"),
        (lambda model: model.encode(["a", None]), "text 1 is None, not a text"),
        (lambda model: model.tokenize(("a", "b", "c")), "give a text or a pair of texts"),
        (lambda model: model.hidden_states("cat " * 31), "the text has 33 tokens, but the model reads at most 32"),
    ],
)
def test_wrong_input_is_refused(models: dict[str, bertworks.Model], call: Callable[[Any], Any], message: str):
    with pytest.raises(InputError, match=message):
        call(models["classify"])


def test_the_number_of_candidates_is_an_integer(models: dict[str, bertworks.Model]):
    with pytest.raises(InputError, match="top_k is '3'; give a whole number"):
        models["pretrained"].fill_mask("a [MASK]", top_k="3")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 3, ["en-small"]])
def test_a_model_is_named_by_a_text_or_a_path(name: Any):
    for call in (
        bertworks.load,
        lambda model: bertworks.predict(model, "a"),
        lambda model: bertworks.evaluate(model, []),
    ):
        with pytest.raises(InputError, match=r"the model is .*; give a name, such as 'en-small', or a folder"):
            call(name)


@pytest.mark.parametrize("method", ["predict", "explain", "predict_proba"])
def test_a_model_without_a_task_says_so(models: dict[str, bertworks.Model], method: str):
    with pytest.raises(FolderError, match="is not fine-tuned for a task"):
        getattr(models["pretrained"], method)("a cat")
