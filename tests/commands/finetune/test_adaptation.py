"""Task-adaptive pretraining: on the training texts alone, bit-identical when resumed, and the start of the task."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from damage import forget_hashes
from encoder_folder import write_random_bert
from safetensors.torch import load_file

from bertworks.commands.finetune import adaptation as adaptation_module
from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.build import masking_of
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.pretrain.build import write_model
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import FolderError
from bertworks.models.folder import read_folder
from bertworks.objectives.mlm import MlmModule
from bertworks.records import HeldOutRecord, StepRecord, read_records
from bertworks.sampling.batch import Batch
from bertworks.sampling.masking import MaskSettings
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import LayerwiseSettings
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

SUBJECTS, GOOD, BAD = "film story music".split(), "fine lovely great".split(), "awful dull poor".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was", "so", *SUBJECTS, *GOOD, *BAD]
TOKENIZER = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    initializer_range=0.15,
)
# 48 examples: 6 steps of 8 in each of 4 epochs.
ADAPT = AdaptSettings(epochs=4, learning_rate=5e-3, batch_size=8)
RECIPE = FinetuneRecipe(batch_size=8, learning_rate=1e-3, epochs=2, max_restarts=0, adapt=ADAPT)
NUM_STEPS = 24

pytestmark = pytest.mark.usefixtures("one_thread")


def write_pretrained(folder: Path) -> Path:
    """Write a BERT with random weights and the heads of MLM and NSP."""
    generator = torch.Generator().manual_seed(0)
    write_model(folder, MlmModule(Bert(CONFIG, generator), generator), TOKENIZER, {"objective": "mlm-nsp"})
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("base") / "model")


def write_reviews(path: Path, count: int, seed: int, labels: Sequence[str] = ("praise", "blame")) -> Path:
    rng = random.Random(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        label, words = rng.choice([(labels[0], GOOD), (labels[1], BAD)])
        rows.append(f"the {rng.choice(SUBJECTS)} was {'so ' * rng.randint(0, 4)}{rng.choice(words)}\t{label}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    counts = {"train": 48, "dev": 24, "test": 16}
    return {
        split: write_reviews(folder / f"{split}.tsv", count, seed) for seed, (split, count) in enumerate(counts.items())
    }


def request_of(
    base: Path, files: dict[str, Path], output: Path, recipe: FinetuneRecipe = RECIPE, task: str = "classify"
) -> FinetuneRequest:
    return FinetuneRequest(task=task, model=str(base), output=output, recipe=recipe, **files)


def finetune(request: FinetuneRequest) -> list[FinetuneEvent]:
    return list(run_finetune(request))


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def run(
    one_thread: None, base: Path, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[FinetuneEvent]]:
    output = tmp_path_factory.mktemp("run") / "run"
    return output, finetune(request_of(base, files, output))


def test_the_adaptation_is_a_phase_of_its_own_before_the_task(run: tuple[Path, list[FinetuneEvent]]):
    output, events = run
    steps = [(event.phase, event.step.number, event.num_steps) for event in events if event.step]
    assert steps[:NUM_STEPS] == [("adapt", number, NUM_STEPS) for number in range(1, NUM_STEPS + 1)]
    assert steps[NUM_STEPS:] == [("finetune", number, 12) for number in range(1, 13)]
    notes = [event.note for event in events]
    assert any("objective mlm, 24 steps (4 epochs of 6), learning rate 0.005" in note for note in notes)
    assert any(note.startswith("the adaptation will take about") for note in notes)
    assert not any("a new one is trained" in note for note in notes)  # the folder has an MLM head
    assert "Adaptation" in (output / "report.html").read_text(encoding="utf-8")


def test_its_records_have_the_loss_on_the_training_texts_and_on_those_of_dev(run: tuple[Path, list[FinetuneEvent]]):
    records = list(read_records(run[0] / "adapt"))
    steps = [record for record in records if isinstance(record, StepRecord)]
    on_dev = [record for record in records if isinstance(record, HeldOutRecord)]
    assert {record.phase for record in [*steps, *on_dev]} == {"adapt"}
    assert [record.step for record in on_dev] == list(range(0, NUM_STEPS + 1, 2))  # a tenth of 24 steps is 2
    assert on_dev[-1].loss < on_dev[0].loss - 0.5
    assert steps[-1].losses["mlm"] < steps[0].losses["mlm"] - 0.5
    # Warmup over 6 % of the steps, rounded to 1, then linear decay to zero at the end.
    assert steps[0].learning_rate == pytest.approx(5e-3)
    assert steps[12].learning_rate == pytest.approx(5e-3 * 11 / 23)
    assert steps[-1].learning_rate == 0


def test_the_adapted_model_replaces_the_checkpoints(run: tuple[Path, list[FinetuneEvent]]):
    adapted = read_folder(run[0] / "adapt" / "model")
    assert adapted.metadata["objective"] == "mlm"
    assert adapted.metadata["recipe"]["adapt"] == {"epochs": 4, "learning_rate": 5e-3, "batch_size": 8}
    assert checkpoints_in(run[0] / "adapt" / "checkpoints") == []


def test_a_resumed_run_is_bit_identical(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    phases = []
    for stop_after in (5, 10, None):
        events = finetune(replace(request, stop_after=stop_after))
        phases.append([event.phase for event in events if event.step])
    assert phases == [["adapt"] * 5, ["adapt"] * 10, ["adapt"] * 9 + ["finetune"] * 12]
    assert weights(run[0] / "adapt") == weights(tmp_path / "run" / "adapt")
    assert weights(run[0]) == weights(tmp_path / "run")
    losses = [
        [(record.step, record.losses) for record in read_records(output / "adapt") if not hasattr(record, "text")]
        for output in (run[0], tmp_path / "run")
    ]
    assert losses[0] == losses[1]


def test_a_run_that_stops_in_the_task_does_not_adapt_again(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (NUM_STEPS, 7):  # the last step of the adaptation; the seventh of the task
        finetune(replace(request, stop_after=stop_after))
    events = finetune(request)
    assert [(event.phase, event.step.number) for event in events if event.step] == [
        ("finetune", number) for number in range(8, 13)
    ]
    assert weights(run[0]) == weights(tmp_path / "run")


def test_only_training_texts_are_trained_on_and_no_labels(
    base: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Batch] = []

    def spy(training: Training, train_state: TrainState) -> Iterator[Step]:
        get_batches = training.get_batches

        def record(phase: int, step: int) -> Sequence[Batch]:
            batches = get_batches(phase, step)
            seen.extend(batches)
            return batches

        return train(replace(training, get_batches=record), train_state)

    monkeypatch.setattr(adaptation_module, "train", spy)
    finetune(request_of(base, files, tmp_path / "run"))
    texts: Counter[tuple[int, ...]] = Counter()
    for batch in seen:
        assert batch.labels == {}
        assert batch.positions is not None
        assert batch.targets is not None
        original = batch.input_ids.flatten().index_put((batch.positions,), batch.targets).view_as(batch.input_ids)
        texts.update(
            tuple(sequence[:length].tolist()) for sequence, length in zip(original, batch.lengths, strict=True)
        )
    train_texts = [line.split("\t")[0] for line in files["train"].read_text().splitlines()[1:]]
    expected = Counter(tuple(TOKENIZER.encode(text).input_ids) for text in train_texts)
    assert texts == Counter({text: 4 * count for text, count in expected.items()})  # once in each of four epochs


def test_other_labels_and_another_dev_file_adapt_to_the_same_weights(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    others = {
        "train": write_reviews(tmp_path / "train.tsv", 48, 0, ("x", "y")),
        "dev": write_reviews(tmp_path / "dev.tsv", 9, 7, ("y", "x")),
    }
    finetune(request_of(base, others, tmp_path / "run"))
    assert weights(tmp_path / "run" / "adapt") == weights(run[0] / "adapt")
    assert weights(tmp_path / "run") != weights(run[0])


def test_the_task_begins_with_the_adapted_weights(
    files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    """Fine-tuning from the adapted model folder, without an adaptation, gives the same model."""
    recipe = replace(RECIPE, adapt=AdaptSettings())
    finetune(request_of(run[0] / "adapt" / "model", files, tmp_path / "run", recipe))
    assert weights(tmp_path / "run") == weights(run[0])
    assert not (tmp_path / "run" / "adapt").exists()


def test_an_auxiliary_loss_begins_with_the_adapted_head(
    files: dict[str, Path], base: Path, run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    recipe = replace(RECIPE, mlm_weight=0.1)
    finetune(request_of(base, files, tmp_path / "run", recipe))
    adapted = run[0] / "adapt" / "model"
    finetune(request_of(adapted, files, tmp_path / "other", replace(recipe, adapt=AdaptSettings())))
    assert weights(tmp_path / "run") == weights(tmp_path / "other")


def test_a_restart_after_a_collapse_uses_the_adapted_encoder(base: Path, files: dict[str, Path], tmp_path: Path):
    # The learning rate of the task is too low to learn anything, and the whole encoder is frozen.
    frozen = LayerwiseSettings(num_frozen_layers=CONFIG.num_hidden_layers)
    recipe = replace(RECIPE, learning_rate=1e-12, epochs=1, max_restarts=1, layerwise=frozen)
    events = finetune(request_of(base, files, tmp_path / "run", recipe))
    assert any("collapsed" in event.warning for event in events)
    assert sum(event.phase == "adapt" for event in events if event.step) == NUM_STEPS
    restarted = checkpoints_in(tmp_path / "run" / "restart-1" / "checkpoints")[-1] / "model.safetensors"
    adapted = tmp_path / "run" / "adapt" / "model" / "model.safetensors"
    assert torch.equal(
        load_file(restarted)["encoder.token_embeddings.weight"],
        load_file(adapted)["bert.embeddings.word_embeddings.weight"],
    )
    assert not (tmp_path / "run" / "restart-1" / "adapt").exists()


def test_an_encoder_is_adapted_before_it_is_frozen(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    finetune(request_of(base, files, tmp_path / "run", replace(RECIPE, feature_layers="last", learning_rate=1e-3)))
    frozen = load_file(tmp_path / "run" / "model" / "model.safetensors")
    adapted = load_file(run[0] / "adapt" / "model" / "model.safetensors")
    encoder_names = [name for name in adapted if name.startswith("bert.") and "pooler" not in name]
    assert len(encoder_names) > 30
    assert all(torch.equal(frozen[name], adapted[name]) for name in encoder_names)


def test_a_model_without_an_mlm_head_gets_a_new_one(files: dict[str, Path], tmp_path: Path):
    base = write_random_bert(tmp_path / "base", CONFIG, TOKENIZER)
    events = finetune(request_of(base, files, tmp_path / "run"))
    assert any(event.note == "the model has no weights of the mlm head: a new one is trained" for event in events)
    on_dev = [record for record in read_records(tmp_path / "run" / "adapt") if isinstance(record, HeldOutRecord)]
    assert on_dev[-1].loss < on_dev[0].loss - 0.5


def test_the_bias_of_a_new_mlm_head_is_the_frequency_of_tokens_in_the_training_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adaptation_module, "train", lambda training, train_state: iter(()))
    base = write_random_bert(tmp_path / "base", CONFIG, TOKENIZER)
    train_file, dev_file = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train_file.write_text("text\tlabel\nthe film was fine\tpraise\nthe story\tblame\n")
    dev_file.write_text("text\tlabel\nso dull\tblame\n")
    finetune(request_of(base, {"train": train_file, "dev": dev_file}, tmp_path / "run"))
    bias = load_file(tmp_path / "run" / "adapt" / "model" / "model.safetensors")["cls.predictions.bias"]
    # Six tokens and one more of each of the 17; [CLS] and [SEP] are never predicted, and "so" is only in dev.
    counts = dict.fromkeys(TOKENS, 1) | {"the": 3, "film": 2, "was": 2, "fine": 2, "story": 2}
    expected = torch.tensor(list(counts.values())) / 23
    assert torch.allclose(bias.softmax(0), expected, atol=1e-6)


def test_other_training_texts_are_refused_in_the_same_folder(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (3, 30):  # a checkpoint of the adaptation; then its model
        finetune(replace(request, stop_after=stop_after))
        changed = replace(request, train=write_reviews(tmp_path / "train.tsv", 40, 5))
        with pytest.raises(
            FolderError, match=r"adapt/.* was made with other data or settings; choose another --output"
        ):
            finetune(changed)


def test_texts_of_unknown_tokens_have_no_targets(base: Path, tmp_path: Path):
    path, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\n☃\tpraise\n")
    path.write_text("text\tlabel\n" + "☃ ☃\tpraise\nthe film was fine\tblame\n" * 4)
    recipe = replace(RECIPE, adapt=replace(ADAPT, batch_size=1))
    events = finetune(request_of(base, {"train": path, "dev": dev}, tmp_path / "run", recipe))
    assert not any("on dev texts" in event.note for event in events)
    losses = [event.step.losses for event in events if event.step and event.phase == "adapt"]
    assert sum(not loss for loss in losses) == 16  # half of 8 examples, in four epochs
    assert all(loss["mlm"] > 0 for loss in losses if loss)


def test_without_dev_nothing_is_measured(base: Path, files: dict[str, Path], tmp_path: Path):
    finetune(request_of(base, {"train": files["train"]}, tmp_path / "run"))
    assert all(isinstance(record, StepRecord) for record in read_records(tmp_path / "run" / "adapt"))
    assert read_folder(tmp_path / "run" / "adapt" / "model").metadata["scores"] == {}


def test_tokens_are_masked_as_in_pretraining(base: Path, tmp_path: Path):
    assert masking_of(read_folder(base)) == MaskSettings()
    folder = write_pretrained(tmp_path / "model")
    metadata = json.loads((folder / "bertworks.json").read_text())
    metadata["recipe"] = {"masking": {"mask_prob": 0.2, "whole_words": True}}
    (folder / "bertworks.json").write_text(json.dumps(metadata))
    forget_hashes(folder)
    assert masking_of(read_folder(folder)) == MaskSettings(mask_prob=0.2, whole_words=True)
