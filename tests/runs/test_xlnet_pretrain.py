"""XLNet through the verbs: pretrained, resumed, read by transformers and from it, fine-tuned, embedded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from small_run import RECIPE, WORDS, assert_same, prepare_corpus, run

from bertworks.examples.masking import MaskSettings
from bertworks.models.folder import read_folder
from bertworks.runs.recipe import Recipe, recipe_path
from bertworks.settings import read_recipe
from bertworks.tasks.model import load

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
TEXT = "The river stone garden winter bread."
XLNET = replace(
    RECIPE,
    model=replace(RECIPE.model, family="xlnet"),
    objective="permuted",
    masking=MaskSettings(rate=1 / 6, whole_words=True, max_ngram=5),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("xlnet"))


@pytest.fixture(scope="module")
def whole(one_thread: None, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    steps = run(corpus, out, XLNET)
    assert [step.number for step in steps] == list(range(1, 13))
    assert steps[-1].losses.keys() == {"permuted"}
    assert steps[-1].losses["permuted"] < steps[0].losses["permuted"]
    return out


def test_stopped_and_continued_it_is_the_same_to_the_bit(whole: Path, corpus: Path, tmp_path: Path):
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", XLNET, stop_after=count)
    run(corpus, tmp_path / "parts", XLNET)
    assert_same(whole, tmp_path / "parts")


def test_transformers_reads_the_folder_and_predicts_the_same(whole: Path):
    peer, told = transformers.XLNetLMHeadModel.from_pretrained(whole / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert json.loads((whole / "model" / "config.json").read_text())["architectures"] == ["XLNetLMHeadModel"]
    folder = read_folder(whole / "model")
    model = load(whole / "model")
    ids = torch.tensor([model.tokenizer.encode(TEXT).ids])
    expected = peer.eval().transformer(ids).last_hidden_state[0]
    found = model.embed([TEXT], "mean")[0]
    assert np.abs(found - expected.mean(0).detach().numpy()).max() < CLOSE
    assert torch.equal(folder.tensors["lm_loss.bias"], peer.lm_loss.bias)
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer(TEXT)["input_ids"] == ids[0].tolist()


def test_the_recipe_is_that_of_a_laptop_and_a_sixth_is_predicted():
    found = read_recipe(recipe_path("xlnet"), Recipe)
    assert found.model.sizes(8_000).num_layers == 4
    assert (found.model.family, found.objective) == ("xlnet", "permuted")
    assert abs(found.masking.rate - 1 / 6) < 1e-4
    assert len(WORDS) > 0
