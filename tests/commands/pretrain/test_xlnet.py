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

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.show import ShowRequest, examples
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.models.folder import read_folder
from bertworks.sampling.masking import MaskSettings
from bertworks.settings import read_recipe, recipe_path
from bertworks.text.sources import TextSource
from bertworks.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
TEXT = "The river stone garden winter bread."
XLNET = replace(
    RECIPE,
    model=replace(RECIPE.model, family="xlnet"),
    objective="permuted",
    masking=MaskSettings(mask_prob=1 / 6, whole_words=True, max_ngram=5),
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
    ids = torch.tensor([model.tokenizer.encode(TEXT).input_ids])
    expected = peer.eval().transformer(ids).last_hidden_state[0]
    found = model.encode([TEXT], "mean")[0]
    assert np.abs(found - expected.mean(0).detach().numpy()).max() < CLOSE
    assert torch.equal(folder.tensors["lm_loss.bias"], peer.lm_loss.bias)
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer(TEXT)["input_ids"] == ids[0].tolist()


def test_what_is_remembered_travels_from_step_to_step_and_through_checkpoints(corpus: Path, tmp_path: Path):
    going_on = replace(XLNET, objective="permuted-stream", model=replace(XLNET.model, mem_len=24))
    steps = run(corpus, tmp_path / "whole", going_on)
    assert steps[-1].losses["permuted"] < steps[0].losses["permuted"]
    for count in (2, 5):  # so that a checkpoint lies between
        run(corpus, tmp_path / "parts", going_on, stop_after=count)
    run(corpus, tmp_path / "parts", going_on)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    checkpoint = load_checkpoint(max((tmp_path / "whole" / "checkpoints").glob("step-*")))
    remembered = [checkpoint.optimizer[f"carried/{number}/0"] for number in range(2)]
    assert [tuple(one.shape[:2]) for one in remembered] == [(going_on.batch_size, 24)] * 2
    assert json.loads((tmp_path / "whole" / "model" / "config.json").read_text())["mem_len"] == 24


def test_without_a_bound_to_memory_rows_that_go_on_are_refused(corpus: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match="memory = 128"):
        run(corpus, tmp_path / "run", replace(XLNET, objective="permuted-stream"))
    with pytest.raises(SettingsError, match="memory is for XLNet; leave it out for the family 'bert'"):
        replace(XLNET.model, mem_len=24, family="bert").config(50)


def test_the_recipe_is_that_of_a_laptop_and_a_sixth_is_predicted():
    found = read_recipe(recipe_path("xlnet"), PretrainRecipe)
    assert found.model.config(8_000).num_hidden_layers == 4
    assert (found.model.family, found.objective) == ("xlnet", "permuted")
    assert abs(found.masking.mask_prob - 1 / 6) < 1e-4
    more = read_recipe(recipe_path("xlnet-memory"), PretrainRecipe)
    assert (more.objective, more.model.config(8_000).memory, more.phases) == ("permuted-stream", 128, found.phases)


LETTERS = [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz."]
SPECIALS = [(one, 0.0) for one in ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")]
PIECES = [*SPECIALS, ("▁", -3.0), *LETTERS, *((f"▁{word}", -2.0) for word in ("the", "The", *WORDS))]


@pytest.fixture(scope="module")
def theirs(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as released: a classifier of transformers, with XLNet's own tokenizer."""
    folder = tmp_path_factory.mktemp("released") / "theirs"
    sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 64, "mem_len": None}
    config = transformers.XLNetConfig(vocab_size=len(PIECES), num_labels=3, **sizes)
    generator = torch.Generator().manual_seed(0)
    peer = transformers.XLNetForSequenceClassification(config)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.05, 0.3, generator=generator)
    peer.save_pretrained(folder)
    transformers.XLNetTokenizer(vocab=PIECES).save_pretrained(folder)
    return folder


def logits_of_theirs(folder: Path, *texts: tuple[str, ...]) -> np.ndarray:
    """Return what transformers says of texts, or of pairs, in one batch, padded as its tokenizer does."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    peer = transformers.XLNetForSequenceClassification.from_pretrained(folder).eval()
    columns = [list(column) for column in zip(*texts, strict=True)]
    rows = tokenizer(*columns, padding=True, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        return peer(**rows).logits.numpy()


def test_a_released_folder_gives_the_logits_of_transformers_for_texts_and_pairs(theirs: Path):
    model = load(theirs)
    assert model.report.missing_keys == ()
    texts = [("the river stone",), ("The winter bread and the silver window.",)]
    found = np.stack([one.logits for one in model.predict([text for (text,) in texts])])
    assert np.abs(found - logits_of_theirs(theirs, *texts)).max() < CLOSE
    pairs = [("the river", "a stone"), ("winter morning road", "the garden")]
    found = np.stack([one.logits for one in model.predict(pairs)])
    assert np.abs(found - logits_of_theirs(theirs, *pairs)).max() < CLOSE


def labelled(folder: Path) -> Path:
    lines = [f"the {first} {second}\t{number % 2}" for number, first in enumerate(WORDS) for second in WORDS[:2]]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return folder / "train.tsv"


@pytest.mark.parametrize("start", ["ours", "theirs"])
def test_a_fine_tuned_folder_says_the_same_in_transformers(whole: Path, theirs: Path, tmp_path: Path, start: str):
    base = whole / "model" if start == "ours" else theirs
    tuning = FinetuneRecipe(batch_size=8, learning_rate=1e-2, epochs=2, max_restarts=0)
    list(run_finetune(FinetuneRequest("classify", str(base), labelled(tmp_path), tmp_path / "run", recipe=tuning)))
    folder = tmp_path / "run" / "model"
    model = load(folder)
    assert model.report.missing_keys == ()
    texts = [("the river stone",), ("the winter bread garden window letter",)]
    found = np.stack([one.logits for one in model.predict([text for (text,) in texts])])
    assert np.abs(found - logits_of_theirs(folder, *texts)).max() < CLOSE
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["XLNetForSequenceClassification"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["padding_side"] == "left"


def test_rows_of_pretraining_are_laid_out_as_those_of_the_vocabulary(theirs: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text("\n\n".join("The river stone.\nThe winter bread." for _ in range(30)) + "\n")
    corpus = prepare(PrepareRequest((TextSource(str(tmp_path / "text.txt")),), theirs, tmp_path / "corpus"), 1)
    for one in examples(ShowRequest(corpus, "permuted", max_length=16, num_examples=3)):
        assert one.tokens[-2:] == ("<sep>", "<cls>")
        assert "<cls>" not in one.tokens[:-1]
        assert one.token_type_ids == (0,) * (len(one.tokens) - 1) + (2,)
        assert all(one.tokens[place] == piece for place, piece in one.masked_tokens.items())  # nothing is masked
