"""XLNet: pretraining, exact resume, exchange of model folders with transformers, fine-tuning."""

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
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.commands.show import ShowRequest, examples
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.models.folder import read_folder
from bertworks.sampling.masking import MaskSettings
from bertworks.settings import read_recipe, recipe_path
from bertworks.text.sources import TextSource
from bertworks.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
TEXT = "The river stone garden winter bread."
XLNET = replace(
    RECIPE,
    model=replace(RECIPE.model, family="xlnet"),
    objective="permutation",
    masking=MaskSettings(mask_prob=1 / 6, whole_words=True, max_ngram=5),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("xlnet"))


@pytest.fixture(scope="module")
def whole(one_thread: None, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "whole"
    steps = run(corpus, output, XLNET)
    assert [step.number for step in steps] == list(range(1, 13))
    assert steps[-1].losses.keys() == {"permutation"}
    assert steps[-1].losses["permutation"] < steps[0].losses["permutation"]
    return output


def test_resumed_run_is_bit_identical(whole: Path, corpus: Path, tmp_path: Path):
    for num_steps in (2, 5, 3):
        run(corpus, tmp_path / "resumed", XLNET, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", XLNET)
    assert_same(whole, tmp_path / "resumed")


def test_transformers_loads_the_model_folder_with_the_same_hidden_states(whole: Path):
    peer, loading_info = transformers.XLNetLMHeadModel.from_pretrained(whole / "model", output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert json.loads((whole / "model" / "config.json").read_text())["architectures"] == ["XLNetLMHeadModel"]
    folder = read_folder(whole / "model")
    model = load(whole / "model")
    input_ids = torch.tensor([model.tokenizer.encode(TEXT).input_ids])
    expected = peer.eval().transformer(input_ids).last_hidden_state[0]
    vector = model.encode([TEXT], "mean")[0]
    assert np.abs(vector - expected.mean(0).detach().numpy()).max() < TOLERANCE
    assert torch.equal(folder.tensors["lm_loss.bias"], peer.lm_loss.bias)
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer(TEXT)["input_ids"] == input_ids[0].tolist()


def test_memory_is_carried_between_steps_and_saved_in_checkpoints(corpus: Path, tmp_path: Path):
    recipe = replace(XLNET, objective="permutation-stream", model=replace(XLNET.model, mem_len=24))
    steps = run(corpus, tmp_path / "whole", recipe)
    assert steps[-1].losses["permutation"] < steps[0].losses["permutation"]
    for num_steps in (2, 5):  # with a checkpoint between
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
    checkpoint = load_checkpoint(max((tmp_path / "whole" / "checkpoints").glob("step-*")))
    memory = [checkpoint.optimizer[f"state/{micro_batch}/0"] for micro_batch in range(2)]
    assert [tuple(tensor.shape[:2]) for tensor in memory] == [(recipe.batch_size, 24)] * 2
    assert json.loads((tmp_path / "whole" / "model" / "config.json").read_text())["mem_len"] == 24


def test_stream_objective_needs_mem_len(corpus: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match="mem_len = 128"):
        run(corpus, tmp_path / "run", replace(XLNET, objective="permutation-stream"))
    with pytest.raises(SettingsError, match="the family 'bert' has no mem_len; leave it out"):
        replace(XLNET.model, mem_len=24, family="bert").config(50)


def test_recipe_fits_a_laptop_and_predicts_one_token_in_six():
    recipe = read_recipe(recipe_path("xlnet"), PretrainRecipe)
    assert recipe.model.config(8_000).num_hidden_layers == 4
    assert (recipe.model.family, recipe.objective) == ("xlnet", "permutation")
    assert abs(recipe.masking.mask_prob - 1 / 6) < 1e-4
    with_memory = read_recipe(recipe_path("xlnet-memory"), PretrainRecipe)
    assert with_memory.objective == "permutation-stream"
    assert with_memory.model.config(8_000).mem_len == 128
    assert with_memory.phases == recipe.phases


LETTERS = [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz."]
SPECIALS = [(token, 0.0) for token in ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")]
TOKENS = [*SPECIALS, ("▁", -3.0), *LETTERS, *((f"▁{word}", -2.0) for word in ("the", "The", *WORDS))]


@pytest.fixture(scope="module")
def peer_folder(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as published: a classifier of transformers, with XLNet's tokenizer."""
    folder = tmp_path_factory.mktemp("published") / "peer"
    keys = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 64, "mem_len": None}
    config = transformers.XLNetConfig(vocab_size=len(TOKENS), num_labels=3, **keys)
    generator = torch.Generator().manual_seed(0)
    peer = transformers.XLNetForSequenceClassification(config)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.05, 0.3, generator=generator)
    peer.save_pretrained(folder)
    transformers.XLNetTokenizer(vocab=TOKENS).save_pretrained(folder)
    return folder


def peer_logits(folder: Path, *texts: tuple[str, ...]) -> np.ndarray:
    """Return transformers' logits of texts or pairs, in one batch that its tokenizer pads."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    peer = transformers.XLNetForSequenceClassification.from_pretrained(folder).eval()
    columns = [list(column) for column in zip(*texts, strict=True)]
    inputs = tokenizer(*columns, padding=True, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        return peer(**inputs).logits.numpy()


def test_transformers_folder_gives_the_same_logits_for_texts_and_pairs(peer_folder: Path):
    model = load(peer_folder)
    assert model.report.missing_keys == ()
    texts = [("the river stone",), ("The winter bread and the silver window.",)]
    logits = np.stack([prediction.logits for prediction in model.predict([text for (text,) in texts])])
    assert np.abs(logits - peer_logits(peer_folder, *texts)).max() < TOLERANCE
    pairs = [("the river", "a stone"), ("winter morning road", "the garden")]
    logits = np.stack([prediction.logits for prediction in model.predict(pairs)])
    assert np.abs(logits - peer_logits(peer_folder, *pairs)).max() < TOLERANCE


def write_labelled_file(folder: Path) -> Path:
    lines = [f"the {first} {second}\t{number % 2}" for number, first in enumerate(WORDS) for second in WORDS[:2]]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return folder / "train.tsv"


@pytest.mark.parametrize("base", ["pretrained", "peer"])
def test_transformers_loads_the_fine_tuned_folder_with_the_same_logits(
    whole: Path, peer_folder: Path, tmp_path: Path, base: str
):
    base_folder = whole / "model" if base == "pretrained" else peer_folder
    recipe = FinetuneRecipe(batch_size=8, learning_rate=1e-2, epochs=2, max_restarts=0)
    list(
        run_finetune(
            FinetuneRequest(
                task="classify",
                model=str(base_folder),
                train=write_labelled_file(tmp_path),
                output=tmp_path / "run",
                recipe=recipe,
            )
        )
    )
    folder = tmp_path / "run" / "model"
    model = load(folder)
    assert model.report.missing_keys == ()
    texts = [("the river stone",), ("the winter bread garden window letter",)]
    logits = np.stack([prediction.logits for prediction in model.predict([text for (text,) in texts])])
    assert np.abs(logits - peer_logits(folder, *texts)).max() < TOLERANCE
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["XLNetForSequenceClassification"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["padding_side"] == "left"


def test_pretraining_sequences_follow_the_special_token_template_of_the_vocabulary(peer_folder: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text("\n\n".join("The river stone.\nThe winter bread." for _ in range(30)) + "\n")
    corpus = prepare(
        PrepareRequest(
            sources=(TextSource(str(tmp_path / "text.txt")),), vocabulary=peer_folder, output=tmp_path / "corpus"
        ),
        1,
    )
    for example in examples(ShowRequest(folder=corpus, objective="permutation", max_length=16, num_examples=3)):
        assert example.tokens[-2:] == ("<sep>", "<cls>")
        assert "<cls>" not in example.tokens[:-1]
        assert example.token_type_ids == (0,) * (len(example.tokens) - 1) + (2,)
        # The tokens to predict are not masked: the permutation hides them.
        assert all(example.tokens[position] == token for position, token in example.masked_tokens.items())


def test_phases_of_streams_have_their_own_batch_sizes_and_resume_bit_identically(corpus: Path, tmp_path: Path):
    phases = (PhaseRecipe(16, steps=4, batch_size=4), PhaseRecipe(16, steps=4), PhaseRecipe(16, steps=4, batch_size=6))
    recipe = replace(
        XLNET,
        model=replace(XLNET.model, mem_len=16),
        objective="permutation-stream",
        phases=phases,
        ema_decay=0.9,
    )
    run(corpus, tmp_path / "whole", recipe)
    for num_steps in (3, 2):
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
