"""Work of requests: its results are those of `predict` and `encode`, however the items are batched."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import TASKS, WORDS, write_finetuned

from bertworks.errors import InputError
from bertworks.inference.attribution import example_from_texts, explain
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.model import load
from bertworks.serving.answers import (
    Work,
    cosines,
    embed_work,
    explain_work,
    fill_mask_work,
    next_work,
    predict_work,
    project_to_plane,
)
from bertworks.serving.models import ServedModel, load_served_model

TOLERANCE = 1e-5

texts = st.lists(st.sampled_from([*WORDS, "我喜欢", "。", "?", "xyz"]), min_size=1, max_size=60).map(" ".join)
INPUTS: dict[str, st.SearchStrategy[Any]] = {
    "classify": st.one_of(texts, st.fixed_dictionaries({"sentence1": texts, "sentence2": texts})),
    "regress": texts,
    "choose": st.fixed_dictionaries({"prompt": texts, "choices": st.lists(texts, min_size=2, max_size=4)}),
    "tag": texts,
    "answer": st.fixed_dictionaries({"question": texts, "context": texts}),
}


@pytest.fixture(scope="module")
def served_models(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    return {name: load_served_model(name, folder, lambda: None) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def bf16_models(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    names = ("sentences", "classify")
    return {name: load_served_model(name, folders[name], lambda: None, precision="bf16") for name in names}


def compute(*works: Work, seed: int = 0) -> list[Any]:
    """Compute the items of several requests of one queue, shuffled and in batches of random sizes; finish each."""
    rng = random.Random(seed)
    remaining = [(number, index) for number, work in enumerate(works) for index in range(len(work.items))]
    rng.shuffle(remaining)
    results = [[None] * len(work.items) for work in works]
    while remaining:
        batch = [remaining.pop() for _ in range(min(len(remaining), rng.randint(1, 20)))]
        outputs = works[0].queue.compute([works[number].items[index] for number, index in batch])
        for (number, index), output in zip(batch, outputs, strict=True):
            results[number][index] = output
    return [work.finish(work_results) for work, work_results in zip(works, results, strict=True)]


def assert_close(value: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for name, expected_field in expected.items():
            assert_close(value[name], expected_field)
    elif isinstance(expected, list | tuple):
        assert len(value) == len(expected)
        for element, expected_element in zip(value, expected, strict=True):
            assert_close(element, expected_element)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, abs=TOLERANCE)
    else:
        assert value == expected


def predict_offline(model: Any, inputs: list[Any]) -> list[dict[str, Any]]:
    """Return the predictions of `Model.predict`, for one input at a time."""
    return [{**model.predict([raw_input])[0].to_dict(), "id": str(index)} for index, raw_input in enumerate(inputs)]


@pytest.mark.parametrize("task", list(INPUTS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_predictions_are_those_of_predict_however_they_are_batched(task, data, seed, served_models):
    served = served_models[task]
    requests = data.draw(st.lists(st.lists(INPUTS[task], min_size=1, max_size=3), min_size=1, max_size=4))
    works = [predict_work(served, inputs, truncate=False, by="text") for inputs in requests]
    for inputs, response in zip(requests, compute(*works, seed=seed), strict=True):
        assert_close(response["predictions"], predict_offline(served.model, inputs))
        assert response["usage"]["num_truncated"] == 0


@pytest.mark.parametrize("name", ["sentences", "pretrained"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.lists(texts, min_size=1, max_size=4), min_size=1, max_size=4),
    pooling=st.sampled_from([None, "mean", "cls", "max"]),
    seed=st.integers(0, 2**16),
)
def test_vectors_are_those_of_encode_however_they_are_batched(name, requests, pooling, seed, served_models):
    served = served_models[name]
    used = served.pooling.with_kind(pooling) if pooling else None
    works = [embed_work(served, inputs, used, truncate=False) for inputs in requests]
    for inputs, vectors in zip(requests, compute(*works, seed=seed), strict=True):
        np.testing.assert_allclose(vectors.values, served.model.encode(inputs, pooling), atol=TOLERANCE)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(st.lists(texts, min_size=1, max_size=4), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_in_bf16_the_batch_changes_vectors_and_probabilities_within_the_stated_tolerance(requests, seed, bf16_models):
    works = [embed_work(bf16_models["sentences"], inputs, None, truncate=False) for inputs in requests]
    for inputs, vectors in zip(requests, compute(*works, seed=seed), strict=True):
        offline = bf16_models["sentences"].model.encode(inputs)
        norms = np.linalg.norm(vectors.values, axis=1) * np.linalg.norm(offline, axis=1)
        assert ((vectors.values * offline).sum(1) / norms).min() > 0.9999
    works = [predict_work(bf16_models["classify"], inputs, truncate=False, by="text") for inputs in requests]
    for inputs, response in zip(requests, compute(*works, seed=seed), strict=True):
        for prediction, offline in zip(
            response["predictions"], predict_offline(bf16_models["classify"].model, inputs), strict=True
        ):
            assert prediction["probabilities"] == pytest.approx(offline["probabilities"], abs=0.01)


def test_usage_counts_tokens_windows_and_truncated_tokens(served_models):
    text = " ".join(["cat"] * 50)  # a window has room for 30 tokens between [CLS] and [SEP]; windows overlap by 8
    (response,) = compute(predict_work(served_models["classify"], [text], truncate=False, by="text"))
    assert response["usage"] == {"num_tokens": 64, "num_windows": 2, "num_truncated": 0, "num_unknown": 0}
    (response,) = compute(predict_work(served_models["classify"], [text], truncate=True, by="text"))
    assert response["usage"] == {"num_tokens": 32, "num_windows": 1, "num_truncated": 20, "num_unknown": 0}
    (vectors,) = compute(embed_work(served_models["sentences"], [text], None, truncate=True))
    assert asdict(vectors.usage) == {"num_tokens": 16, "num_windows": 1, "num_truncated": 36, "num_unknown": 0}


def test_texts_that_the_vocabulary_hardly_reads_are_counted_and_warned_about(served_models):
    inputs = ["今天天气真好", "the film was good"]  # of 10 tokens, 5 are unknown: 好 is in the vocabulary
    (response,) = compute(predict_work(served_models["classify"], inputs, truncate=False, by="text"))
    assert response["usage"]["num_unknown"] == 5
    (warning,) = response["warnings"]
    assert (warning["type"], warning["ratio"], warning["examples"][0]) == ("unknown_tokens", 0.5, "天")
    (vectors,) = compute(embed_work(served_models["sentences"], inputs, None, truncate=False))
    assert (vectors.usage.num_unknown, vectors.warnings) == (5, response["warnings"])
    (response,) = compute(fill_mask_work(served_models["pretrained"], "今天天[MASK]真好", 3))
    assert [warning["type"] for warning in response["warnings"]] == ["unknown_tokens"]
    (response,) = compute(explain_work(served_models["classify"], inputs[0], None))
    assert [warning["type"] for warning in response["warnings"]] == ["unknown_tokens"]
    (response,) = compute(next_work(served_models["pretrained"], inputs[0], 3, backward=False))
    assert [warning["type"] for warning in response["warnings"]] == ["unknown_tokens"]


def test_a_few_unknown_tokens_are_counted_only(served_models):
    inputs = ["the film was good", "the cat sat on the mat 京"]
    (response,) = compute(predict_work(served_models["classify"], inputs, truncate=False, by="text"))
    assert (response["usage"]["num_unknown"], response["warnings"]) == (1, [])


def test_single_texts_are_remarked_where_a_model_was_trained_on_pairs(tmp_path, one_thread):
    columns = {"text": "sentence1", "pair": "sentence2", "label": "label"}
    folder = write_finetuned(tmp_path / "pairs", TASKS["classify"], metadata={"columns": columns})
    served, pair = load_served_model("pairs", folder, lambda: None), {"sentence1": "a cat", "sentence2": "a dog"}
    (response,) = compute(predict_work(served, ["a cat", pair, pair, pair], truncate=False, by="text"))
    assert len(response["predictions"]) == 4
    (warning,) = response["warnings"]
    assert (warning["type"], warning["ratio"], warning["examples"]) == ("single_text", 0.25, [])
    assert "1 of 4 inputs are single texts, but the model was trained on pairs" in warning["message"]
    (response,) = compute(predict_work(served, [pair], truncate=False, by="text"))
    assert response["warnings"] == []
    (response,) = compute(explain_work(served, "a cat", None))
    assert [warning["type"] for warning in response["warnings"]] == ["single_text"]


def test_empty_inputs_give_empty_predictions_and_vectors_of_the_right_size(served_models):
    assert predict_work(served_models["classify"], [], False, "text").finish([])["predictions"] == []
    assert embed_work(served_models["sentences"], [], None, False).finish([]).values.shape == (0, 24)


def test_predictions_by_sentence_have_the_offsets_of_the_sentences(served_models):
    text = "John sat in Paris. The cat sat on the mat."
    (response,) = compute(predict_work(served_models["tag"], [text], False, "sentence"))
    first, second = response["predictions"]
    assert (first["text"], first["start"], first["end"]) == (0, 0, 19)
    assert text[second["start"] : second["end"]] == second["sentence"] == "The cat sat on the mat."
    assert "id" not in first


def test_inputs_may_be_token_ids(served_models):
    served = served_models["sentences"]
    input_ids = served.model.tokenizer.tokenize("a cat sat").input_ids.tolist()
    (vectors,) = compute(embed_work(served, [input_ids, "a cat sat"], None, False))
    np.testing.assert_array_equal(vectors.values[0], vectors.values[1])
    with pytest.raises(InputError, match="input 0: token ids of this model are 0 to"):
        embed_work(served, [[10**6]], None, False)


@pytest.mark.parametrize(
    ("task", "raw_input"),
    [
        ("classify", {"question": "who", "context": "john"}),
        ("classify", {"prompt": "who", "choices": ["a", "b"]}),
        ("classify", {"text": ["a", "b"]}),
        ("answer", "just a text"),
        ("choose", {"sentence1": "a", "sentence2": "b"}),
        ("choose", {"prompt": "a", "choices": "b"}),
        ("tag", {"sentence1": "a", "sentence2": "b"}),
        ("classify", "   "),
        ("choose", {"prompt": "a", "choices": ["b"]}),
        ("choose", {"prompt": "a", "choices": ["b", ""]}),
        ("answer", {"question": "who", "context": " "}),
    ],
)
def test_an_invalid_input_is_rejected_with_its_index(task, raw_input, served_models):
    valid = {"choose": {"prompt": "a", "choices": ["b", "c"]}, "answer": {"question": "who", "context": "john"}}
    with pytest.raises(InputError, match="input 1"):
        predict_work(served_models[task], [valid.get(task, "a cat"), raw_input], False, "text")


def test_pairs_cannot_be_predicted_by_sentence(served_models):
    with pytest.raises(InputError, match="by sentence"):
        predict_work(served_models["classify"], [{"sentence1": "a", "sentence2": "b"}], False, "sentence")


def test_fill_mask_and_explain_return_what_the_library_returns(served_models, folders):
    (response,) = compute(fill_mask_work(served_models["pretrained"], "a [MASK] [MASK] film", 3))
    assert response.pop("warnings") == []
    assert_close(response, asdict(load(folders["pretrained"]).fill_mask("a [MASK] [MASK] film", 3)))
    (response,) = compute(explain_work(served_models["classify"], "a good film", None))
    assert response.pop("warnings") == []
    predictor = load_predictor(folders["classify"])
    assert_close(response, explain(predictor, example_from_texts(predictor.module.task, ["a good film"])).to_dict())


def test_unbatched_work_pauses_between_its_parts_and_removes_its_hook(served_models):
    pauses: list[int] = []
    work = fill_mask_work(served_models["pretrained"], "a [MASK] [MASK] film", 3)
    work.items[0](lambda: pauses.append(1))
    assert len(pauses) == 3  # once for all masks independently, then mask by mask
    assert not served_models["pretrained"].model.mlm_head._forward_pre_hooks


def test_a_projection_keeps_the_directions_of_largest_variance():
    vectors = np.array([[0, 0, 5], [4, 0, 5], [0, 2, 5], [4, 2, 5]], dtype=np.float32)
    points = project_to_plane(vectors)
    np.testing.assert_allclose(points, [[-2, -1], [2, -1], [-2, 1], [2, 1]], atol=1e-5)


def test_a_single_vector_is_projected_to_the_origin():
    np.testing.assert_array_equal(project_to_plane(np.ones((1, 4), dtype=np.float32)), [[0, 0]])


def test_cosine_similarity_of_a_zero_vector_is_0():
    vectors = np.array([[1, 0], [1, 1], [0, 0]], dtype=np.float32)
    similarities = cosines(vectors, np.array([2, 0], dtype=np.float32))
    np.testing.assert_allclose(similarities, [1, np.sqrt(0.5), 0], atol=1e-6)
