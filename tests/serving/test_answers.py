"""Answers: the same as `predict` and `embed` give, whatever the rows were computed with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import WORDS

from bertworks.errors import InputError
from bertworks.inference.model import load
from bertworks.serving.answers import (
    Work,
    cosines,
    embed_work,
    explain_work,
    fill_mask_work,
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
def served(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    return {name: load_served_model(name, folder, lambda: None) for name, folder in folders.items()}


def computed(*works: Work, seed: int = 0) -> list[Any]:
    """Compute the rows of several requests of one lane, shuffled and in batches of any size, and finish each."""
    draw = random.Random(seed)
    places = [(number, at) for number, work in enumerate(works) for at in range(len(work.items))]
    draw.shuffle(places)
    found = [[None] * len(work.items) for work in works]
    while places:
        batch = [places.pop() for _ in range(min(len(places), draw.randint(1, 20)))]
        outputs = works[0].queue.compute([works[number].items[at] for number, at in batch])
        for (number, at), output in zip(batch, outputs, strict=True):
            found[number][at] = output
    return [work.finish(own) for work, own in zip(works, found, strict=True)]


def assert_close(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_close(found[name], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=TOLERANCE)
    else:
        assert found == wanted


def offline(model: Any, inputs: list[Any]) -> list[dict[str, Any]]:
    """What `predict` says, asked one by one."""
    return [{**model.predict([one])[0].to_dict(), "id": str(number)} for number, one in enumerate(inputs)]


@pytest.mark.parametrize("task", list(INPUTS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_predictions_are_those_of_predict_whatever_they_are_computed_with(task, data, seed, served):
    one = served[task]
    requests = data.draw(st.lists(st.lists(INPUTS[task], min_size=1, max_size=3), min_size=1, max_size=4))
    works = [predict_work(one, inputs, truncate=False, by="text") for inputs in requests]
    for inputs, answer in zip(requests, computed(*works, seed=seed), strict=True):
        assert_close(answer["predictions"], offline(one.model, inputs))
        assert answer["usage"]["cut"] == 0


@pytest.mark.parametrize("name", ["sentences", "pretrained"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.lists(texts, min_size=1, max_size=4), min_size=1, max_size=4),
    pooling=st.sampled_from([None, "mean", "first", "max"]),
    seed=st.integers(0, 2**16),
)
def test_vectors_are_those_of_embed_whatever_they_are_computed_with(name, requests, pooling, seed, served):
    one = served[name]
    works = [embed_work(one, inputs, pooling, truncate=False) for inputs in requests]
    for inputs, answer in zip(requests, computed(*works, seed=seed), strict=True):
        np.testing.assert_allclose(answer.values, one.model.embed(inputs, pooling), atol=TOLERANCE)


def test_usage_counts_pieces_windows_and_what_was_cut_by_request(served):
    text = " ".join(["cat"] * 50)  # rows have room for 30 pieces between [CLS] and [SEP], 8 of them in common
    (read,) = computed(predict_work(served["classify"], [text], truncate=False, by="text"))
    assert read["usage"] == {"pieces": 64, "windows": 2, "cut": 0}
    (cut,) = computed(predict_work(served["classify"], [text], truncate=True, by="text"))
    assert cut["usage"] == {"pieces": 32, "windows": 1, "cut": 20}
    (vectors,) = computed(embed_work(served["sentences"], [text], None, truncate=True))
    assert (vectors.usage.pieces, vectors.usage.windows, vectors.usage.cut) == (16, 1, 36)


def test_no_inputs_have_no_answers_but_a_width(served):
    assert predict_work(served["classify"], [], False, "text").finish([])["predictions"] == []
    assert embed_work(served["sentences"], [], None, False).finish([]).values.shape == (0, 24)


def test_sentences_are_told_where_they_stand(served):
    text = "John sat in Paris. The cat sat on the mat."
    (answer,) = computed(predict_work(served["tag"], [text], False, "sentence"))
    first, second = answer["predictions"]
    assert (first["text"], first["start"], first["end"]) == (0, 0, 19)
    assert text[second["start"] : second["end"]] == second["sentence"] == "The cat sat on the mat."
    assert "id" not in first


def test_pieces_may_be_given_by_their_ids(served):
    one = served["sentences"]
    ids = one.model.tokenizer.cut("a cat sat").ids.tolist()
    (answer,) = computed(embed_work(one, [ids, "a cat sat"], None, False))
    np.testing.assert_array_equal(answer.values[0], answer.values[1])
    with pytest.raises(InputError, match="input 0: pieces have ids from 0 to"):
        embed_work(one, [[10**6]], None, False)


@pytest.mark.parametrize(
    ("task", "given_input"),
    [
        ("classify", {"question": "who", "context": "john"}),
        ("classify", {"prompt": "who", "choices": ["a", "b"]}),
        ("answer", "just a text"),
        ("choose", {"sentence1": "a", "sentence2": "b"}),
        ("tag", {"sentence1": "a", "sentence2": "b"}),
        ("classify", "   "),
        ("choose", {"prompt": "a", "choices": ["b"]}),
        ("choose", {"prompt": "a", "choices": ["b", ""]}),
        ("answer", {"question": "who", "context": " "}),
    ],
)
def test_an_input_that_does_not_suit_the_task_is_refused_by_its_number(task, given_input, served):
    good = {"choose": {"prompt": "a", "choices": ["b", "c"]}, "answer": {"question": "who", "context": "john"}}
    with pytest.raises(InputError, match="input 1"):
        predict_work(served[task], [good.get(task, "a cat"), given_input], False, "text")


def test_pairs_are_not_read_by_sentence(served):
    with pytest.raises(InputError, match="by sentence"):
        predict_work(served["classify"], [{"sentence1": "a", "sentence2": "b"}], False, "sentence")


def test_blanks_and_explanations_are_those_of_the_command_line(served, folders):
    from dataclasses import asdict

    from bertworks.inference.attribution import example_from_texts, explain
    from bertworks.inference.finetuned import load_predictor

    (filled,) = computed(fill_mask_work(served["pretrained"], "a [MASK] [MASK] film", 3))
    assert_close(filled, asdict(load(folders["pretrained"]).fill_mask("a [MASK] [MASK] film", 3)))
    (why,) = computed(explain_work(served["classify"], "a good film", None))
    wanted = explain(load_predictor(folders["classify"]), example_from_texts("classify", ["a good film"])).to_dict()
    assert_close(why, wanted)


def test_long_work_pauses_again_and_again_and_leaves_no_trace_in_the_model(served):
    pauses: list[int] = []
    work = fill_mask_work(served["pretrained"], "a [MASK] [MASK] film", 3)
    work.items[0](lambda: pauses.append(1))
    assert len(pauses) == 3  # once for each blank alone, then blank after blank
    assert not served["pretrained"].model.masked._forward_pre_hooks


def test_a_plane_shows_vectors_where_they_lie_farthest_apart():
    vectors = np.array([[0, 0, 5], [4, 0, 5], [0, 2, 5], [4, 2, 5]], dtype=np.float32)
    points = project_to_plane(vectors)
    np.testing.assert_allclose(points, [[-2, -1], [2, -1], [-2, 1], [2, 1]], atol=1e-5)


def test_a_single_vector_lies_in_the_middle_of_its_plane():
    np.testing.assert_array_equal(project_to_plane(np.ones((1, 4), dtype=np.float32)), [[0, 0]])


def test_cosines_are_those_of_angles_and_0_for_a_vector_of_nothing():
    vectors = np.array([[1, 0], [1, 1], [0, 0]], dtype=np.float32)
    found = cosines(vectors, np.array([2, 0], dtype=np.float32))
    np.testing.assert_allclose(found, [1, np.sqrt(0.5), 0], atol=1e-6)
