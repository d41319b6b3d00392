"""RoBERTa, ALBERT and GPT through `pretrain`: they learn, resume to the bit, and their folders are transformers'."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from family_models import MEMBERS, Member, drawn
from small_run import RECIPE, assert_same, prepare_corpus, run

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain
from bertworks.commands.show import ShowRequest, examples
from bertworks.errors import SettingsError
from bertworks.inference.model import Model, load
from bertworks.objectives.causal import next_token_logits
from bertworks.sampling.batch import Batch
from bertworks.settings import read_recipe, recipe_path

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
CLASSES = {"roberta": "RobertaForMaskedLM", "albert": "AlbertForPreTraining", "gpt": "OpenAIGPTLMHeadModel"}
TEXT = "The river stone garden winter bread."


@pytest.fixture(scope="module", params=list(MEMBERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def member(name: str) -> Member:
    return MEMBERS[name]


@pytest.fixture(scope="module")
def corpus(member: Member, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return member.prepare(tmp_path_factory.mktemp(member.family))


@pytest.fixture(scope="module")
def whole(one_thread: None, member: Member, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    steps = run(corpus, out, member.recipe)
    assert [step.number for step in steps] == list(range(1, 13))
    return out


def scores_of(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Return (V,): what ours says of the last place, or of what follows it."""
    batch = Batch(ids, torch.zeros_like(ids), torch.tensor([ids.shape[1]]))
    with torch.no_grad():
        if model.mlm_head is None:
            return next_token_logits(model.encoder, batch)[0]
        return model.mlm_head(model.encoder(batch).to_padded()[0, -1:], model.encoder.token_embeddings.weight)[0]


def theirs_of(peer: transformers.PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found = peer(ids)
    return (found.prediction_logits if hasattr(found, "prediction_logits") else found.logits)[0, -1]


def test_a_run_ends_with_a_folder_that_transformers_loads_with_the_same_logits(whole: Path, name: str):
    peer, told = getattr(transformers, CLASSES[name]).from_pretrained(whole / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert json.loads((whole / "model" / "config.json").read_text())["architectures"] == [CLASSES[name]]
    ours = load(whole / "model")
    ids = torch.tensor([ours.tokenizer.encode(TEXT).input_ids])
    assert float((scores_of(ours, ids) - theirs_of(peer.eval(), ids)).abs().max()) < CLOSE
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer(TEXT)["input_ids"] == ids[0].tolist()


def test_a_model_of_transformers_loads_in_ours_with_the_same_logits(whole: Path, name: str, tmp_path: Path):
    kind = getattr(transformers, CLASSES[name])
    peer = drawn(kind(transformers.AutoConfig.from_pretrained(whole / "model")))
    peer.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(whole / "model").save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    ids = torch.tensor([ours.tokenizer.encode(TEXT).input_ids])
    assert float((scores_of(ours, ids) - theirs_of(peer, ids)).abs().max()) < CLOSE


def test_stopped_and_continued_it_is_the_same_to_the_bit(whole: Path, member: Member, corpus: Path, tmp_path: Path):
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", member.recipe, stop_after=count)
    run(corpus, tmp_path / "parts", member.recipe)
    assert_same(whole, tmp_path / "parts")


def test_a_model_goes_on_from_a_folder(whole: Path, member: Member, corpus: Path, tmp_path: Path):
    request = PretrainRequest(member.recipe, corpus, tmp_path / "more", init_model=str(whole / "model"), stop_after=1)
    told = list(pretrain(request))
    assert any(one.note == "the vocabulary is the model's own" for one in told)
    assert not any("begin at random" in one.note for one in told)


def test_what_a_run_of_the_recipe_reads_can_be_shown(corpus: Path, member: Member):
    shown = list(
        examples(
            ShowRequest(corpus, member.objective, max_length=32, num_examples=3, max_ngram=member.masking.max_ngram)
        )
    )
    assert len(shown) == 3
    for one in shown:
        if member.objective == "next":
            assert one.masked_tokens == {place: one.tokens[place + 1] for place in range(len(one.tokens) - 1)}
        assert (one.label in ("in order", "swapped")) == (member.objective == "masked-order")


@pytest.mark.parametrize("padding", [0, 1])
def test_roberta_counts_positions_from_behind_its_padding_piece(tmp_path: Path, padding: int):
    """With a WordPiece vocabulary the padding piece is 0, and transformers begins at position 1."""
    (tmp_path / "wordpiece").mkdir()
    corpus = prepare_corpus(tmp_path / "wordpiece") if padding == 0 else MEMBERS["roberta"].prepare(tmp_path)
    recipe = replace(MEMBERS["roberta"].recipe, phases=RECIPE.phases[:1])
    run(corpus, tmp_path / "run", recipe)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (padding, 32 + 1 + padding)
    peer = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "run" / "model").eval()
    ours = load(tmp_path / "run" / "model")
    ids = torch.tensor([ours.tokenizer.encode(TEXT).input_ids])
    assert float((scores_of(ours, ids) - theirs_of(peer, ids)).abs().max()) < CLOSE


def test_a_head_start_suits_roberta_and_is_refused_where_it_does_not_suit(corpus: Path, member: Member, tmp_path: Path):
    model = replace(member.recipe.model, position_init="neighbours")
    recipe = replace(member.recipe, model=model)
    if member.family == "roberta":
        assert len(run(corpus, tmp_path / "run", recipe, stop_after=1)) == 1
    else:
        with pytest.raises(SettingsError, match="position_start is for BERT"):
            run(corpus, tmp_path / "run", recipe)


PUBLISHED = {
    "paper-roberta-base": ("roberta", 8_192, 6e-4, 24_000, 500_000),
    "paper-albert-base": ("albert", 4_096, 6e-4, 12_500, 125_000),
    "paper-gpt": ("openai-gpt", 64, 2.5e-4, 2_000, 3_000_000),
}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_the_published_recipes_are_12_layers_of_768_with_the_papers_numbers(recipe: str):
    found = read_recipe(recipe_path(recipe), PretrainRecipe)
    sizes = found.model.config(30_000)
    assert (sizes.num_hidden_layers, sizes.hidden_size, sizes.num_attention_heads, sizes.intermediate_size) == (
        12,
        768,
        12,
        3072,
    )
    steps = sum(phase.steps for phase in found.phases)
    assert (found.model.family, found.batch_size, found.learning_rate, found.warmup_steps, steps) == PUBLISHED[recipe]


@pytest.mark.parametrize("recipe", ["roberta", "albert", "gpt"])
def test_the_small_recipes_are_those_of_a_laptop(recipe: str):
    found = read_recipe(recipe_path(recipe), PretrainRecipe)
    assert found.model.config(8_000).num_hidden_layers == 4
    assert found.batch_size == 32
    assert found.objective == MEMBERS[recipe].objective
