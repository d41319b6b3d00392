"""Training a translation model from scratch: resumes bit-identically, saved as Marian, equal to transformers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from small_run import curve, state

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.model import LoadedModel, load
from bertworks.settings import read_recipe, recipe_path
from bertworks.tasks.beam_search_settings import BeamSearchSettings
from bertworks.training.optimizer import AdamSettings

pytestmark = pytest.mark.usefixtures("one_thread")
DIGITS = "一二三四五六七八"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# The first character becomes the next digit: short, and impossible without attention to the source.
PAIRS = [f"{one}{two}\t{DIGITS[(DIGITS.index(one) + 1) % 8]}{two}" for one in DIGITS for two in DIGITS]
RECIPE = FinetuneRecipe(
    batch_size=16,
    learning_rate=1e-2,
    warmup_steps=8,
    epochs=2,
    schedule="inverse-sqrt",
    evals_per_epoch=2,
    model=ModelRecipe(
        family="marian",
        size="tiny",
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        hidden_dropout_prob=0.1,
    ),
    optimizer=AdamSettings(beta2=0.98, eps=1e-9, weight_decay=0.0),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.tsv").write_text("\n".join([*PAIRS, "\t一", "一" * 30 + "\t二"]) + "\n", encoding="utf-8")
    (folder / "dev.tsv").write_text("\n".join(PAIRS[::9]) + "\n", encoding="utf-8")
    (folder / "vocabulary").mkdir()
    (folder / "vocabulary" / "vocab.txt").write_text("\n".join([*SPECIALS, *DIGITS]) + "\n", encoding="utf-8")
    return folder


def request(
    data: Path, output: Path, recipe: FinetuneRecipe = RECIPE, stop_after: int | None = None
) -> FinetuneRequest:
    return FinetuneRequest(
        task="translate", model="", train=data / "train.tsv", output=output, dev=data / "dev.tsv", recipe=recipe,
        stop_after=stop_after,
        settings={"search_settings": BeamSearchSettings(num_beams=2)}, vocabulary=data / "vocabulary",
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FinetuneEvent]]:
    output = tmp_path_factory.mktemp("run") / "whole"
    return output, list(run_finetune(request(data, output)))


@pytest.fixture(scope="module")
def model(run: tuple[Path, list[FinetuneEvent]]) -> LoadedModel:
    return load(run[0] / "model")


def test_skipped_pairs_are_counted(run: tuple[Path, list[FinetuneEvent]]):
    notes, warnings = [event.note for event in run[1]], [event.warning for event in run[1] if event.warning]
    assert "1 pairs skipped: one side is empty" in notes
    assert "1 training examples do not fit into 24 tokens and are skipped" in warnings
    assert "64 training examples in 64 sequences of up to 24 tokens. No token was truncated." in notes


def test_dev_has_a_loss_and_the_learning_rate_warms_up(run: tuple[Path, list[FinetuneEvent]]):
    scores = [event.score for event in run[1] if event.score is not None and event.score.split == "dev"]
    assert all({"bleu", "chrf", "loss"} <= score.metrics.keys() for score in scores)
    losses = [score.metrics["loss"] for score in scores if score.step]
    assert losses[3] < losses[0]  # four evaluations in training, and a final one
    learning_rates = [event.step.learning_rate for event in run[1] if event.step is not None]
    assert learning_rates == pytest.approx([*(1e-2 * n / 8 for n in range(1, 9))])
    assert (run[0] / "report.html").is_file()


def test_a_resumed_run_is_bit_identical(data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    output = tmp_path / "resumed"
    for stop_after in (1, 4, None):
        list(run_finetune(request(data, output, stop_after=stop_after)))
    first, second = state(run[0]), state(output)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert curve(run[0]) == curve(output)
    assert (run[0] / "model" / "model.safetensors").read_bytes() == (
        output / "model" / "model.safetensors"
    ).read_bytes()


def test_a_run_is_not_resumed_with_another_vocabulary(
    data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *DIGITS[::-1]]) + "\n", encoding="utf-8")
    with pytest.raises(FolderError, match="other data or settings"):
        list(run_finetune(replace(request(data, run[0]), vocabulary=tmp_path)))


def test_the_folder_is_a_marian_model_with_the_same_greedy_translations(
    run: tuple[Path, list[FinetuneEvent]], model: LoadedModel
):
    hf_model = transformers.MarianMTModel.from_pretrained(run[0] / "model").eval()
    config = json.loads((run[0] / "model" / "config.json").read_text())
    assert (config["decoder_start_token_id"], config["eos_token_id"], config["pad_token_id"]) == (2, 3, 0)
    assert config["architectures"] == ["MarianMTModel"]
    texts = [pair.split("\t")[0] for pair in PAIRS[::5]]
    greedy = model.translate(texts, BeamSearchSettings(num_beams=1, max_extra_tokens=4))
    for text, translation in zip(texts, greedy, strict=True):
        input_ids = torch.tensor([model.tokenizer.encode(text).input_ids])
        output_ids = hf_model.generate(
            input_ids,
            max_new_tokens=8,
            num_beams=1,
            do_sample=False,
            suppress_tokens=[0, 1, 2, 4],
            forced_eos_token_id=None,
        )
        token_ids = [token_id for token_id in output_ids[0].tolist() if token_id not in (0, 2, 3)]
        assert translation == "".join(model.tokenizer.tokens[token_id] for token_id in token_ids)


def test_a_folder_of_transformers_keeps_its_decoder_start_token(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    hf_model = transformers.MarianMTModel.from_pretrained(run[0] / "model")
    hf_model.config.decoder_start_token_id = 0
    hf_model.save_pretrained(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((run[0] / "model" / name).read_bytes())
    model = load(tmp_path)
    assert model.report.unexpected_keys == ()
    assert model.predictor is not None
    assert model.predictor.module.task.decoder_start_token_id == 0  # type: ignore[attr-defined]
    assert len(model.translate(["一二"])) == 1


def test_a_translation_model_encodes_and_predicts(model: LoadedModel):
    assert model.encode(["一二", "三"]).shape == (2, 16)
    (prediction,) = model.predict(["一二"])
    assert [prediction.text] == model.translate(["一二"])
    assert model.metadata["search_settings"]["num_beams"] == 2
    assert model.translate(["一二", "", "三四"])[1] == ""


def test_a_translation_model_in_bf16_translates_nearly_the_same(
    run: tuple[Path, list[FinetuneEvent]], model: LoadedModel
):
    rounded = load(run[0] / "model", precision="bf16")
    texts = ["一二", "三四五", "二"]
    assert [len(text) for text in rounded.translate(texts)] == [len(text) for text in model.translate(texts)]
    np.testing.assert_allclose(rounded.encode(texts), model.encode(texts), atol=0.05)


def test_a_translation_model_is_fine_tuned_further(data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    recipe = replace(RECIPE, model=None, epochs=1, evals_per_epoch=1)
    further = replace(request(data, tmp_path / "more", recipe), model=str(run[0] / "model"), vocabulary=None)
    events = list(run_finetune(further))
    assert events[-1].model_folder == tmp_path / "more" / "model"
    assert load(tmp_path / "more" / "model").metadata["base"] == "whole"


def test_its_encoder_is_fine_tuned_for_another_task_and_resumes(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "一二\tno\n三四\tyes\n" * 8, encoding="utf-8")
    whole = FinetuneRequest(
        task="classify",
        model=str(run[0] / "model"),
        train=tmp_path / "train.tsv",
        output=tmp_path / "whole",
        recipe=FinetuneRecipe(batch_size=4, epochs=1),
    )
    resumed = replace(whole, output=tmp_path / "resumed")
    list(run_finetune(whole))
    for stop_after in (2, None):
        list(run_finetune(replace(resumed, stop_after=stop_after)))
    first, second = state(whole.output), state(resumed.output)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    (prediction,) = load(whole.output / "model").predict(["一二"])
    assert prediction.label in ("no", "yes")


def test_parallel_files_give_the_same_run_as_a_table(data: Path, tmp_path: Path):
    sides = [line.split("\t") for line in (data / "train.tsv").read_text(encoding="utf-8").splitlines()]
    for suffix, side in (("old", 0), ("new", 1)):
        (tmp_path / f"train.{suffix}").write_text("\n".join(pair[side] for pair in sides) + "\n", encoding="utf-8")
    parallel = replace(
        request(data, tmp_path / "run", stop_after=1), train=tmp_path / "train.old", dev=None,
        columns={"": {"targets": "new"}},
    )  # fmt: skip
    assert list(parallel.files) == [tmp_path / "train.old", tmp_path / "train.new"]
    (step,) = [event.step for event in run_finetune(parallel) if event.step is not None]
    table = replace(request(data, tmp_path / "table", stop_after=1), dev=None)
    (expected,) = [event.step for event in run_finetune(table) if event.step is not None]
    assert step.losses == expected.losses


def test_a_run_without_a_model_or_a_model_recipe_is_refused(data: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"--recipe with a \[model\], such as transformer"):
        list(run_finetune(request(data, tmp_path, replace(RECIPE, model=None))))


def test_a_translation_is_not_adapted(data: Path, tmp_path: Path):
    recipe = replace(RECIPE, adapt=AdaptSettings(epochs=1))
    with pytest.raises(SettingsError, match="a translation has no texts to adapt a model to; leave out"):
        list(run_finetune(request(data, tmp_path / "run", recipe)))
    assert not (tmp_path / "run").exists()


def test_training_data_that_is_all_too_long_is_refused(data: Path, tmp_path: Path):
    (tmp_path / "train.tsv").write_text("一" * 30 + "\t二\n", encoding="utf-8")
    with pytest.raises(InputError, match="no training example fits into 24 tokens; raise --max-length"):
        list(run_finetune(replace(request(data, tmp_path / "run"), train=tmp_path / "train.tsv")))


@pytest.mark.parametrize("name", ["transformer", "paper-transformer-base"])
def test_the_built_in_recipes_are_transformers(name: str):
    recipe = read_recipe(recipe_path(name, "finetune"), FinetuneRecipe)
    assert recipe.model is not None
    assert recipe.model.config(100).model_type == "marian"
    assert recipe.schedule == "inverse-sqrt"
    assert (recipe.optimizer.beta1, recipe.optimizer.beta2) == (0.9, 0.98)


def test_the_learning_rate_of_the_paper_recipe_is_that_of_the_paper():
    recipe = read_recipe(recipe_path("paper-transformer-base", "finetune"), FinetuneRecipe)
    assert recipe.model is not None
    config = recipe.model.config(37_000)
    assert (config.d_model, config.encoder_layers, config.encoder_attention_heads, config.encoder_ffn_dim) == (
        512,
        6,
        8,
        2048,
    )
    schedule = recipe.make_schedule(100_000)
    for step in (1, 100, 4_000, 16_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert schedule.at(step - 1, 0.0).learning_rate == pytest.approx(expected, rel=2e-3)
