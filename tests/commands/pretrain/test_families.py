"""Pretraining of every family: loss, exact resume, and model folders that transformers loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from family_models import MEMBERS, Member, randomize_weights
from small_run import RECIPE, assert_same, curve, prepare_corpus, run

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.commands.show import ShowRequest, examples
from bertworks.encoders.electra import ElectraConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.modernbert import ModernBertConfig
from bertworks.errors import SettingsError
from bertworks.inference.model import LoadedModel, load
from bertworks.models.folder import read_folder
from bertworks.models.tensor_names import load_into
from bertworks.objectives.causal import next_token_logits
from bertworks.objectives.rtd import RtdHead
from bertworks.sampling.batch import Batch
from bertworks.settings import read_recipe, recipe_path

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
CLASSES = {
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "camembert": "CamembertForMaskedLM",
    "ernie": "ErnieForPreTraining",
    "distilbert": "DistilBertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "electra": "ElectraForPreTraining",
    "deberta-v2": "DebertaV2ForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "albert": "AlbertForPreTraining",
    "gpt": "OpenAIGPTLMHeadModel",
}
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
    output = tmp_path_factory.mktemp("runs") / "whole"
    steps = run(corpus, output, member.recipe)
    assert [step.number for step in steps] == list(range(1, 13))
    return output


def last_logits(model: LoadedModel, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the logits (V,) of the last position, or of the token after it; of ELECTRA, those of all tokens (T,)."""
    batch = Batch(
        input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([input_ids.shape[1]])
    )
    with torch.no_grad():
        if model.encoder.config.model_type == "electra":
            return rtd_head(model)(model.encoder(batch).last_hidden_state)
        if model.mlm_head is None:
            return next_token_logits(model.encoder, batch)[0]
        encoded = model.encoder.transform_for_head(model.encoder(batch))
        return model.mlm_head(encoded.to_padded()[0, -1:], model.encoder.token_embeddings.weight)[0]


def rtd_head(model: LoadedModel) -> RtdHead:
    head = RtdHead(model.encoder.config.hidden_size, "gelu")
    assert not load_into(head, read_folder(model.folder).tensors, family_of("electra").heads["rtd"]).missing_keys
    return head


def peer_logits(peer: transformers.PreTrainedModel, input_ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output = peer(input_ids)
    logits = (output.prediction_logits if hasattr(output, "prediction_logits") else output.logits)[0]
    return logits if logits.dim() == 1 else logits[-1]


def test_transformers_loads_the_model_folder_with_the_same_logits(whole: Path, name: str):
    peer, loading_info = getattr(transformers, CLASSES[name]).from_pretrained(whole / "model", output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert json.loads((whole / "model" / "config.json").read_text())["architectures"] == [CLASSES[name]]
    model = load(whole / "model")
    input_ids = torch.tensor([model.tokenizer.encode(TEXT).input_ids])
    assert float((last_logits(model, input_ids) - peer_logits(peer.eval(), input_ids)).abs().max()) < TOLERANCE
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer(TEXT)["input_ids"] == input_ids[0].tolist()


def test_model_of_transformers_is_loaded_with_the_same_logits(whole: Path, name: str, tmp_path: Path):
    model_class = getattr(transformers, CLASSES[name])
    peer = randomize_weights(model_class(transformers.AutoConfig.from_pretrained(whole / "model")))
    peer.save_pretrained(tmp_path / "peer")
    transformers.AutoTokenizer.from_pretrained(whole / "model").save_pretrained(tmp_path / "peer")
    model = load(tmp_path / "peer")
    input_ids = torch.tensor([model.tokenizer.encode(TEXT).input_ids])
    assert float((last_logits(model, input_ids) - peer_logits(peer, input_ids)).abs().max()) < TOLERANCE


def test_a_model_loaded_in_bf16_has_nearly_the_same_logits(whole: Path):
    exact, rounded = (load(whole / "model", precision=precision) for precision in ("fp32", "bf16"))
    input_ids = torch.tensor([exact.tokenizer.encode(TEXT).input_ids])
    expected, logits = last_logits(exact, input_ids), last_logits(rounded, input_ids)
    assert logits.dtype == torch.float32
    assert float((logits - expected).norm()) < 2**-6 * float(expected.norm())


def test_resumed_run_is_bit_identical(whole: Path, member: Member, corpus: Path, tmp_path: Path):
    for num_steps in (2, 5, 3):
        run(corpus, tmp_path / "resumed", member.recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", member.recipe)
    assert_same(whole, tmp_path / "resumed")


def test_a_run_in_bf16_resumes_exactly_and_its_losses_are_those_of_fp32(
    whole: Path, member: Member, corpus: Path, tmp_path: Path
):
    recipe = replace(member.recipe, precision="bf16")
    losses = [loss for step in run(corpus, tmp_path / "whole", recipe) for loss in step.losses.values()]
    for num_steps in (5, None):
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
    expected = [value for line in curve(whole) if line["kind"] == "step" for value in line["losses"].values()]
    assert losses == pytest.approx(expected, rel=0.02)


def test_pretraining_continues_from_a_model_folder(whole: Path, member: Member, corpus: Path, tmp_path: Path):
    request = PretrainRequest(
        recipe=member.recipe, corpus=corpus, output=tmp_path / "more", init_model=str(whole / "model"), stop_after=1
    )
    notes = [event.note for event in run_pretrain(request)]
    assert "the vocabulary is the model's own" in notes
    assert not any("initialized randomly" in note for note in notes)


def test_examples_of_the_recipe_can_be_shown(corpus: Path, member: Member):
    shown = list(
        examples(
            ShowRequest(
                folder=corpus,
                objective=member.objective,
                max_length=32,
                num_examples=3,
                max_ngram=member.masking.max_ngram,
            )
        )
    )
    assert len(shown) == 3
    for example in shown:
        if member.objective == "causal":
            assert example.masked_tokens == {i: example.tokens[i + 1] for i in range(len(example.tokens) - 1)}
        assert (example.label in ("segments in order", "segments swapped")) == (member.objective == "mlm-sop")


@pytest.mark.parametrize("pad_id", [0, 1])
def test_roberta_positions_start_after_the_padding_id(tmp_path: Path, pad_id: int):
    """With a WordPiece vocabulary the padding id is 0, and transformers' positions start at 1."""
    (tmp_path / "wordpiece").mkdir()
    corpus = prepare_corpus(tmp_path / "wordpiece") if pad_id == 0 else MEMBERS["roberta"].prepare(tmp_path)
    recipe = replace(MEMBERS["roberta"].recipe, phases=RECIPE.phases[:1])
    run(corpus, tmp_path / "run", recipe)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (pad_id, 32 + 1 + pad_id)
    peer = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "run" / "model").eval()
    model = load(tmp_path / "run" / "model")
    input_ids = torch.tensor([model.tokenizer.encode(TEXT).input_ids])
    assert float((last_logits(model, input_ids) - peer_logits(peer, input_ids)).abs().max()) < TOLERANCE


def test_position_init_works_for_bert_s_encoder_and_is_refused_for_others(corpus: Path, member: Member, tmp_path: Path):
    model = replace(member.recipe.model, position_init="neighbors")
    recipe = replace(member.recipe, model=model)
    if member.family in ("roberta", "xlm-roberta", "camembert", "ernie"):
        assert len(run(corpus, tmp_path / "run", recipe, stop_after=1)) == 1
    else:
        with pytest.raises(SettingsError, match="position_init is for BERT"):
            run(corpus, tmp_path / "run", recipe)


PAPER_VALUES = {
    "paper-roberta-base": ("roberta", 8_192, 6e-4, 24_000, 500_000),
    "paper-albert-base": ("albert", 4_096, 6e-4, 12_500, 125_000),
    "paper-gpt": ("openai-gpt", 64, 2.5e-4, 2_000, 3_000_000),
}


@pytest.mark.parametrize("name", PAPER_VALUES)
def test_paper_recipes_have_the_values_of_their_papers(name: str):
    recipe = read_recipe(recipe_path(name), PretrainRecipe)
    config = recipe.model.config(30_000)
    assert (config.num_hidden_layers, config.hidden_size) == (12, 768)
    assert (config.layer_config.num_attention_heads, config.layer_config.intermediate_size) == (12, 3072)
    steps = sum(phase.steps for phase in recipe.phases)
    assert (
        recipe.model.family,
        recipe.batch_size,
        recipe.learning_rate,
        recipe.warmup_steps,
        steps,
    ) == PAPER_VALUES[name]


def test_the_small_electra_has_the_values_of_its_paper():
    recipe = read_recipe(recipe_path("paper-electra-small"), PretrainRecipe)
    config = recipe.model.config(30_522)
    assert isinstance(config, ElectraConfig)
    generator = config.generator_config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (12, 256, 1024)
    assert (config.embedding_size, config.num_attention_heads) == (128, 4)
    assert (generator.num_hidden_layers, generator.hidden_size, generator.intermediate_size) == (12, 64, 256)
    assert (generator.embedding_size, generator.num_attention_heads) == (128, 1)
    assert (recipe.batch_size, recipe.learning_rate, recipe.warmup_steps) == (128, 5e-4, 10_000)
    assert (recipe.masking.mask_prob, recipe.masking.mask_replace_prob) == (0.15, 0.85)
    assert recipe.masking.random_replace_prob == 0
    base = family_of("electra").config_from_preset("base", 30_522)
    assert isinstance(base, ElectraConfig)
    assert (base.generator_config.hidden_size, base.generator_config.num_attention_heads) == (256, 4)


def test_the_recipe_of_modernbert_masks_a_third_and_decays_at_the_end():
    recipe = read_recipe(recipe_path("modernbert"), PretrainRecipe)
    assert (recipe.masking.mask_prob, recipe.schedule, recipe.model.hidden_dropout_prob) == (0.3, "wsd", 0.0)
    assert [phase.max_length * phase.batch_size for phase in recipe.resolve_phases()] == [4_096, 4_096]
    model = replace(recipe.model, size="base", local_attention=64, global_attn_every_n_layers=2)
    config = model.config(50_368)
    assert isinstance(config, ModernBertConfig)
    assert (config.num_hidden_layers, config.intermediate_size) == (22, 1_152)
    assert (config.reach, config.global_attn_every_n_layers) == (32, 2)


@pytest.mark.parametrize("name", ["roberta", "albert", "gpt", "electra", "modernbert"])
def test_mini_recipes_fit_a_laptop(name: str):
    recipe = read_recipe(recipe_path(name), PretrainRecipe)
    assert recipe.model.config(8_000).num_hidden_layers == 4
    assert recipe.batch_size == 32
    assert recipe.objective == MEMBERS[name].objective
