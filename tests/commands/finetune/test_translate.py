"""Translation from pairs of texts to use: a new model begins, is stopped and goes on to the bit, as Marian."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from small_run import curve, state

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.model import Model, load
from bertworks.settings import read_recipe, recipe_path
from bertworks.tasks.beam_search import BeamSearchSettings
from bertworks.training.optimizer import AdamSettings

pytestmark = pytest.mark.usefixtures("one_thread")
DIGITS = "一二三四五六七八"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Each sign of the source becomes the next one: short, and not to be told without looking at the source.
PAIRS = [f"{one}{two}\t{DIGITS[(DIGITS.index(one) + 1) % 8]}{two}" for one in DIGITS for two in DIGITS]
TUNING = FinetuneRecipe(
    batch_size=16,
    learning_rate=1e-2,
    warmup_steps=8,
    epochs=2,
    schedule="inverse-root",
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


def request(data: Path, out: Path, tuning: FinetuneRecipe = TUNING, stop_after: int | None = None) -> FinetuneRequest:
    return FinetuneRequest(
        "translate", "", data / "train.tsv", out, data / "dev.tsv", recipe=tuning, stop_after=stop_after,
        settings={"searching": BeamSearchSettings(num_beams=2)}, vocabulary=data / "vocabulary",
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FinetuneEvent]]:
    out = tmp_path_factory.mktemp("run") / "whole"
    return out, list(run_finetune(request(data, out)))


@pytest.fixture(scope="module")
def model(run: tuple[Path, list[FinetuneEvent]]) -> Model:
    return load(run[0] / "model")


def test_what_is_left_out_is_told(run: tuple[Path, list[FinetuneEvent]]):
    notes, warnings = [told.note for told in run[1]], [told.warning for told in run[1] if told.warning]
    assert "1 pairs left out: one side is empty" in notes
    assert "1 training examples do not fit into a row of 24 places; nothing is learned from them" in warnings
    assert "64 training examples in 64 rows of at most 24 places. Every piece was read." in notes


def test_dev_is_measured_with_its_loss_and_the_rate_follows_the_root(run: tuple[Path, list[FinetuneEvent]]):
    scores = [told.score for told in run[1] if told.score is not None and told.score.split == "dev"]
    assert all({"bleu", "chrf", "loss"} <= score.metrics.keys() for score in scores)
    losses = [score.metrics["loss"] for score in scores if score.step]
    assert losses[3] < losses[0]  # four times while it learned, and once more at the end, of the best
    rates = [told.step.learning_rate for told in run[1] if told.step is not None]
    assert rates == pytest.approx([*(1e-2 * n / 8 for n in range(1, 9))])
    assert (run[0] / "report.html").is_file()


def test_a_run_that_was_stopped_goes_on_to_the_bit(data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    out = tmp_path / "stopped"
    for stop in (1, 4, None):
        list(run_finetune(request(data, out, stop_after=stop)))
    first, second = state(run[0]), state(out)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert curve(run[0]) == curve(out)
    assert (run[0] / "model" / "model.safetensors").read_bytes() == (out / "model" / "model.safetensors").read_bytes()


def test_a_run_with_other_words_is_not_continued(data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *DIGITS[::-1]]) + "\n", encoding="utf-8")
    with pytest.raises(FolderError, match="other data or settings"):
        list(run_finetune(replace(request(data, run[0]), vocabulary=tmp_path)))


def test_the_folder_is_marian_and_transformers_says_the_same(run: tuple[Path, list[FinetuneEvent]], model: Model):
    peer = transformers.MarianMTModel.from_pretrained(run[0] / "model").eval()
    config = json.loads((run[0] / "model" / "config.json").read_text())
    assert (config["decoder_start_token_id"], config["eos_token_id"], config["pad_token_id"]) == (2, 3, 0)
    assert config["architectures"] == ["MarianMTModel"]
    texts = [pair.split("\t")[0] for pair in PAIRS[::5]]
    greedy = model.translate(texts, BeamSearchSettings(num_beams=1, max_extra_tokens=4))
    for text, found in zip(texts, greedy, strict=True):
        ids = torch.tensor([model.tokenizer.encode(text).input_ids])
        said = peer.generate(
            ids, max_new_tokens=8, num_beams=1, do_sample=False, suppress_tokens=[0, 1, 2, 4], forced_eos_token_id=None
        )
        pieces = [number for number in said[0].tolist() if number not in (0, 2, 3)]
        assert found == "".join(model.tokenizer.tokens[number] for number in pieces)


def test_a_folder_of_transformers_is_read_with_its_own_start(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    peer = transformers.MarianMTModel.from_pretrained(run[0] / "model")
    peer.config.decoder_start_token_id = 0
    peer.save_pretrained(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((run[0] / "model" / name).read_bytes())
    found = load(tmp_path)
    assert found.report.unexpected_keys == ()
    assert found.predictor is not None
    assert found.predictor.module.task.start == 0  # type: ignore[attr-defined]
    assert len(found.translate(["一二"])) == 1


def test_a_model_embeds_and_predicts_as_any_other(model: Model):
    assert model.encode(["一二", "三"]).shape == (2, 16)
    (said,) = model.predict(["一二"])
    assert [said.text] == model.translate(["一二"])
    assert model.metadata["searching"]["beams"] == 2
    assert model.translate(["一二", "", "三四"])[1] == ""


def test_a_translator_is_tuned_further(data: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    tuning = replace(TUNING, model=None, epochs=1, evals_per_epoch=1)
    again = replace(request(data, tmp_path / "more", tuning), model=str(run[0] / "model"), vocabulary=None)
    told = list(run_finetune(again))
    assert told[-1].model_folder == tmp_path / "more" / "model"
    assert load(tmp_path / "more" / "model").metadata["base"] == "whole"


def test_its_encoder_learns_another_task_and_goes_on_where_it_was_stopped(
    run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "一二\tno\n三四\tyes\n" * 8, encoding="utf-8")
    whole = FinetuneRequest(
        "classify",
        str(run[0] / "model"),
        tmp_path / "train.tsv",
        tmp_path / "whole",
        recipe=FinetuneRecipe(batch_size=4, epochs=1),
    )
    stopped = replace(whole, output=tmp_path / "stopped")
    list(run_finetune(whole))
    for stop in (2, None):
        list(run_finetune(replace(stopped, stop_after=stop)))
    first, second = state(whole.output), state(stopped.output)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    (said,) = load(whole.output / "model").predict(["一二"])
    assert said.label in ("no", "yes")


def test_two_files_of_lines_make_the_same_run(data: Path, tmp_path: Path):
    sides = [line.split("\t") for line in (data / "train.tsv").read_text(encoding="utf-8").splitlines()]
    for ending, side in (("old", 0), ("new", 1)):
        (tmp_path / f"train.{ending}").write_text("\n".join(pair[side] for pair in sides) + "\n", encoding="utf-8")
    other = replace(
        request(data, tmp_path / "run", stop_after=1), train=tmp_path / "train.old", dev=None,
        columns={"": {"targets": "new"}},
    )  # fmt: skip
    assert list(other.files) == [tmp_path / "train.old", tmp_path / "train.new"]
    steps = [told.step for told in run_finetune(other) if told.step is not None]
    alike = replace(request(data, tmp_path / "alike", stop_after=1), dev=None)
    (step,) = [told.step for told in run_finetune(alike) if told.step is not None]
    assert steps[0].losses == step.losses


def test_without_a_model_or_a_recipe_for_one_a_run_is_refused(data: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"--recipe with a \[model\], such as transformer"):
        list(run_finetune(request(data, tmp_path, replace(TUNING, model=None))))


def test_pairs_that_are_all_too_long_are_refused(data: Path, tmp_path: Path):
    (tmp_path / "train.tsv").write_text("一" * 30 + "\t二\n", encoding="utf-8")
    with pytest.raises(InputError, match="no training example fits into a row of 24 places"):
        list(run_finetune(replace(request(data, tmp_path / "run"), train=tmp_path / "train.tsv")))


@pytest.mark.parametrize("name", ["transformer", "paper-transformer-base"])
def test_the_recipes_that_come_with_the_package_are_transformers(name: str):
    tuning = read_recipe(recipe_path(name, "finetune"), FinetuneRecipe)
    assert tuning.model is not None
    assert tuning.model.config(100).model_type == "marian"
    assert tuning.schedule == "inverse-root"
    assert (tuning.optimizer.beta1, tuning.optimizer.beta2) == (0.9, 0.98)


def test_the_paper_s_rate_is_that_of_the_paper():
    tuning = read_recipe(recipe_path("paper-transformer-base", "finetune"), FinetuneRecipe)
    assert tuning.model is not None
    sizes = tuning.model.config(37_000)
    assert (sizes.hidden_size, sizes.num_hidden_layers, sizes.num_attention_heads, sizes.intermediate_size) == (
        512,
        6,
        8,
        2048,
    )
    pace = tuning.make_schedule(100_000)
    for step in (1, 100, 4_000, 16_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert pace.at(step - 1, 0.0).learning_rate == pytest.approx(expected, rel=2e-3)
