"""A pretraining run: from recipe to model folder; interrupted anywhere, it ends with the same bits."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.runs.prepare import PrepareRequest, prepare
from bertworks.runs.pretrain import PretrainRequest, pretrain
from bertworks.runs.recipe import ModelRecipe, PhaseRecipe, Recipe
from bertworks.tasks.model import load
from bertworks.text.sources import Source
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.loop import Step

WORDS = [
    "river",
    "stone",
    "cloud",
    "garden",
    "window",
    "letter",
    "winter",
    "bread",
    "silver",
    "morning",
    "road",
    "engine",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", *WORDS]
RECIPE = Recipe(
    ModelRecipe("tiny", width=16, num_heads=2, positions=32),
    batch=8,
    micro_batch=4,
    rate=1e-3,
    warmup=3,
    phases=(PhaseRecipe(16, 8, 0.7), PhaseRecipe(32, 4, 0.3)),
    save_every=3,
    evaluate_every=5,
    evaluate_examples=8,
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    draw = random.Random(5)
    documents = [
        "\n".join("The " + " ".join(draw.choices(WORDS, k=draw.randint(3, 7))) + "." for _ in range(6))
        for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return prepare(PrepareRequest((Source(str(folder / "text.txt")),), folder / "vocab.txt", folder / "corpus"), 1)


def run(corpus: Path, out: Path, recipe: Recipe = RECIPE, stop_after: int | None = None) -> list[Step]:
    request = PretrainRequest(recipe, corpus, out, stop_after=stop_after)
    return [told.step for told in pretrain(request) if told.step is not None]


def state(out: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint: weights and optimizer."""
    last = checkpoints_in(out / "checkpoints")[-1]
    return {
        f"{name}/{key}": value
        for name in ("model", "optimizer")
        for key, value in load_file(last / f"{name}.safetensors").items()
    }


def assert_same(one: Path, other: Path) -> None:
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert curve(one) == curve(other)


def curve(out: Path) -> list[tuple[object, ...]]:
    """Return what was recorded, but for the time it took."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["phase"], str(line["losses"]), line.get("rate")) for line in lines]


def test_a_run_ends_with_a_model_that_others_can_load(corpus, tmp_path):
    from transformers import AutoTokenizer, BertForPreTraining

    steps = run(corpus, tmp_path / "run")
    assert [step.number for step in steps] == list(range(1, 13))
    assert [step.phase for step in steps] == [0] * 8 + [1] * 4
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "report.html",
        "model",
    }
    theirs = BertForPreTraining.from_pretrained(tmp_path / "run" / "model").eval()
    ours = load(tmp_path / "run" / "model")
    encoded = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("The river [MASK].", return_tensors="pt")
    assert encoded["input_ids"][0].tolist() == list(ours.tokenizer.encode("The river [MASK].", masks=True).ids)
    scores = theirs(**encoded).prediction_logits[0, 3].detach()
    scores[list(ours.tokenizer.specials.ids)] = float("-inf")
    best = scores.softmax(-1).max()
    assert ours.fill("The river [MASK].", 1).blanks[0][0].probability == pytest.approx(float(best), abs=1e-5)


def test_stopped_and_continued_it_is_the_same_to_the_bit(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    for count in (2, 5, 3):
        run(corpus, tmp_path / "parts", stop_after=count)
    run(corpus, tmp_path / "parts")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_the_same_recipe_gives_the_same_bits_and_another_seed_others(corpus, tmp_path):
    run(corpus, tmp_path / "one")
    run(corpus, tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "two")
    run(corpus, tmp_path / "three", replace(RECIPE, seed=1))
    assert curve(tmp_path / "three") != curve(tmp_path / "one")


def test_micro_batches_change_nothing_but_rounding(corpus, tmp_path):
    still = replace(RECIPE, model=replace(RECIPE.model, dropout=0.0))
    whole = run(corpus, tmp_path / "whole", replace(still, micro_batch=8))
    parts = run(corpus, tmp_path / "parts", replace(still, micro_batch=2))
    for one, other in zip(whole, parts, strict=True):
        assert one.losses == pytest.approx(other.losses, abs=1e-5)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "parts", stop_after=6)
    last = checkpoints_in(tmp_path / "parts" / "checkpoints")[-1]
    damaged = last / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    request = PretrainRequest(RECIPE, corpus, tmp_path / "parts")
    told = list(pretrain(request))
    assert any("step-00000006: optimizer.safetensors is not what was written" in one.warning for one in told)
    assert any("continuing after step 3" in one.note for one in told)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_folder_of_another_recipe_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=2)
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        run(corpus, tmp_path / "run", replace(RECIPE, rate=1e-4))


def test_a_folder_with_something_else_is_refused(corpus, tmp_path):
    (tmp_path / "thesis.doc").write_text("ten years of work")
    with pytest.raises(FolderError, match="already holds something else"):
        run(corpus, tmp_path)


def test_a_corpus_without_the_vocabulary_that_was_asked_for_is_refused(corpus, tmp_path):
    with pytest.raises(FolderError, match="has no pieces of vocabulary 0123"):
        list(pretrain(PretrainRequest(RECIPE, corpus, tmp_path / "run", vocabulary="0123")))


def test_a_length_over_the_positions_is_refused_when_the_recipe_is_read():
    with pytest.raises(SettingsError, match="phase 1 has length 64, but the model has 32 positions"):
        replace(RECIPE, phases=(PhaseRecipe(64, 1),))


def test_a_loss_that_is_no_number_stops_with_the_reason(corpus, tmp_path):
    with pytest.raises(BertworksError, match="learning rate is too high"):
        run(corpus, tmp_path / "run", replace(RECIPE, rate=1e30, warmup=0))


def test_a_budget_ends_on_time_at_rate_zero_and_what_was_done_is_followed_again(corpus, tmp_path):
    recipe = replace(RECIPE, budget="2s", save_every=4)
    steps = run(corpus, tmp_path / "run", recipe)
    assert 2.0 <= steps[-1].seconds < 4.0
    assert steps[-1].rate < 0.1 * RECIPE.rate
    assert [step.phase for step in steps] == sorted(step.phase for step in steps)
    before = curve(tmp_path / "run")
    for path in checkpoints_in(tmp_path / "run" / "checkpoints")[1:]:
        for file in path.iterdir():
            file.unlink()
    run(corpus, tmp_path / "run", recipe)
    assert curve(tmp_path / "run")[: len(before)] == before


KILLED = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_pretrain import RECIPE
from bertworks.runs.pretrain import PretrainRequest, pretrain
phases = (replace(RECIPE.phases[0], steps=60), replace(RECIPE.phases[1], steps=20))
recipe = replace(RECIPE, save_every=1, phases=phases)
for told in pretrain(PretrainRequest(recipe, Path(sys.argv[2]), Path(sys.argv[3]))):
    if told.step is not None:
        print(told.step.number, flush=True)
"""


def start(corpus: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(corpus), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize(("num_kills", "seed"), [(2, 0), pytest.param(20, 1, marks=pytest.mark.soak)])
def test_killed_at_any_moment_it_ends_with_the_same_bits(corpus, tmp_path, num_kills, seed):
    """Every step is saved, so that most of the kills come while a checkpoint is being written."""
    whole = start(corpus, tmp_path / "whole")
    draw = random.Random(seed)
    for _ in range(num_kills):
        process = start(corpus, tmp_path / "parts")
        process.stdout.readline()
        time.sleep(draw.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    last = start(corpus, tmp_path / "parts")
    for process in (last, whole):
        process.communicate()
        assert process.returncode == 0
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_leaves(corpus, tmp_path, number):
    process = start(corpus, tmp_path / "run")
    done = int(process.stdout.readline())
    process.send_signal(number)
    printed, _ = process.communicate()
    last = [done, *map(int, printed.split())][-1]
    assert process.returncode == 0
    assert last < 80
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == f"step-{last:08d}"
