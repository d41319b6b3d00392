"""A model spread over processes learns what a whole one does, and its checkpoints go on with any number of them."""

import json
import os
import pickletools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed
from many_processes import started
from safetensors.torch import load_file
from small_run import RECIPE, assert_close, curve, prepare_corpus, run

import bertworks.commands.pretrain.run
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain
from bertworks.commands.run_facts import count_tokens
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import BertworksError, SettingsError
from bertworks.training.checkpoint import checkpoints_in, load_checkpoint
from bertworks.training.checkpoint_writer import CheckpointWriter
from bertworks.training.devices import Precision
from bertworks.training.loop import Step
from bertworks.training.process_group import process_group
from bertworks.training.sharding import local_rows, shard, to_local

STILL = replace(RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0), batch_size=12, micro_batch_size=2)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("sharded"))


@dataclass(frozen=True)
class Seen:
    """What one process saw."""

    steps: list[Step]
    notes: list[str]
    error: str


def work(requests: list[PretrainRequest], saves_in_background: bool) -> list[Seen]:
    """Do one run after another, as a process of torchrun would. (One group for all saves the time to form it.)"""
    if saves_in_background:
        bertworks.commands.pretrain.run._create_saver = lambda run: CheckpointWriter(
            run.request.output / "checkpoints", run.module, run.digest, in_background=True
        )
    found = []
    with process_group():
        for request in requests:
            steps, notes, error = [], [], ""
            try:
                for told in pretrain(request):
                    steps += [told.step] if told.step else []
                    notes += [told.note] if told.note else []
            except BertworksError as raised:
                error = str(raised)
            found.append(Seen(steps, notes, error))
    return found


def together(world: int, *requests: PretrainRequest, saves_in_background: bool = False) -> list[Seen]:
    """Return what the first of so many processes saw of each run."""
    return started(world, work, list(requests), saves_in_background)[0]


def whole(out: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint, put together."""
    found = load_checkpoint(checkpoints_in(out / "checkpoints")[-1])
    return {**found.model, **found.optimizer}


def chances(out: Path) -> list[float]:
    """Return how likely the best candidates for blanks were, at all steps."""
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    return [chance for line in lines for blank in line["filled"] for _, chance in blank]


def test_two_processes_resume_exactly_and_leave_a_checkpoint_in_parts(corpus, tmp_path):
    recipe = replace(RECIPE, micro_batch_size=2)
    request = PretrainRequest(recipe, corpus, tmp_path / "whole", shard=True)
    parts = replace(request, output=tmp_path / "parts")
    half = replace(request, recipe=replace(recipe, precision="bf16"), output=tmp_path / "half", stop_after=6)
    *_, in_half = together(2, request, replace(parts, stop_after=7), parts, half)
    assert (len(in_half.steps), in_half.error) == (6, "")
    rough = chances(tmp_path / "half")
    assert rough == pytest.approx(chances(tmp_path / "whole")[: len(rough)], abs=0.02)
    one, other = whole(tmp_path / "whole"), whole(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert curve(tmp_path / "whole") == curve(tmp_path / "parts")
    last = checkpoints_in(tmp_path / "whole" / "checkpoints")[-1]
    names = {f"{kind}-0000{number}-of-00002.safetensors" for kind in ("model", "optimizer") for number in (1, 2)}
    assert {path.name for path in last.iterdir()} == names | {"standing.json", "manifest.json"}
    rows = [load_file(last / f"model-0000{number}-of-00002.safetensors")["pair.score.bias"] for number in (1, 2)]
    assert [len(one) for one in rows] == [1, 1]  # each process has one of the two
    for file in last.iterdir():
        with pytest.raises(ValueError):
            list(pickletools.genops(file.read_bytes()))
    peaks = json.loads((tmp_path / "whole" / "run.json").read_text())["peak_gib"]
    assert [0.05 < peak < 50 for peak in peaks] == [True, True]
    model = "model/model.safetensors"
    assert (tmp_path / "whole" / model).read_bytes() == (tmp_path / "parts" / model).read_bytes()
    pooler = load_file(tmp_path / "whole" / model)["bert.pooler.dense.weight"]
    assert torch.equal(pooler, one["encoder.pooler.weight"])


def test_a_checkpoint_of_two_goes_on_with_three_and_then_with_one(corpus, tmp_path):
    alone = run(corpus, tmp_path / "alone", STILL)
    request = PretrainRequest(STILL, corpus, tmp_path / "run", shard=True, stop_after=4)
    (first,) = together(2, request)
    (second,) = together(3, request, saves_in_background=True)
    assert any("processes 2 → 3" in note for note in second.notes)
    rest = list(pretrain(replace(request, shard=False, stop_after=None)))
    assert any("sharded True → False" in one.note for one in rest)
    assert_close(alone, first.steps + second.steps + [one.step for one in rest if one.step])
    held_out = [
        [line["losses"] for line in curve(tmp_path / out) if line["kind"] == "held_out"] for out in ("alone", "run")
    ]
    assert len(held_out[0]) > 1
    for one, other in zip(*held_out, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    samples = [chances(tmp_path / out) for out in ("alone", "run")]
    assert samples[0] == pytest.approx(samples[1], abs=1e-5)
    assert len(set(samples[0])) > 10  # which change from step to step


FAMILIES = {
    "bert": ("masked-next", True),
    "roberta": ("masked", False),
    "albert": ("masked-order", True),
    "openai-gpt": ("next", False),
    "xlnet": ("permuted", True),
    "elmo": ("two-way", False),
}


def gradients(corpus: Path, families: tuple[str, ...], precision: Precision) -> dict[str, tuple[float, float]]:
    """Return by family the largest gradient of a whole module, and the largest difference to one that is spread."""
    with process_group():
        return {family: _gradients(Corpus.open(corpus, None), family, precision) for family in families}


def _gradients(corpus: Corpus, family: str, precision: Precision) -> tuple[float, float]:
    objective, recompute = FAMILIES[family]
    model = ModelRecipe("tiny", hidden_size=16, num_attention_heads=2, max_position_embeddings=32, family=family)
    recipe = replace(RECIPE, model=model, objective=objective, activation_checkpointing=recompute)
    start = resolve_model_init(recipe, corpus.tokenizer, None)
    plain, spread = (build(start, recipe, count_tokens(corpus))[0] for _ in range(2))
    shard(spread, spread.encoder.layers, precision)
    for batch in PretrainBatches(corpus, recipe).get_batches(0, 0):
        for module in (plain, spread):
            seeds = DropoutSeeds(torch.tensor(5 + torch.distributed.get_rank(), dtype=torch.int32))
            module.train()
            with precision.autocast():
                loss = module(batch, dict.fromkeys(module.counts(batch), 1.0), seeds)
            loss.value.backward()
    largest = worst = 0.0
    for one, other in zip(plain.parameters(), spread.parameters(), strict=True):
        if one.grad is not None:
            expected = one.grad.to_dense()
            torch.distributed.all_reduce(expected)
            expected /= torch.distributed.get_world_size()
            largest = max(largest, float(expected.abs().max()))
            apart = (
                to_local(other.grad) - expected[local_rows(other)]
            ).abs()  # of one row only the first process has any
            worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
    return largest, worst


def test_every_family_has_the_gradients_of_a_whole_module(corpus):
    for found in started(2, gradients, corpus, tuple(FAMILIES), Precision()):
        assert found.keys() == FAMILIES.keys()
        for family, (largest, worst) in found.items():
            assert largest > 1e-3, family
            assert worst < 1e-6 * largest, family


def test_in_half_precision_only_the_rounding_of_biases_differs(corpus):
    for found in started(2, gradients, corpus, ("bert",), Precision("bf16")):
        largest, worst = found["bert"]
        assert largest > 1e-3
        assert worst < 0.02 * largest


def disagree(requests: list[PretrainRequest]) -> str:
    (seen,) = work([requests[int(os.environ["RANK"])]], False)
    return seen.error


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"recipe": replace(RECIPE, learning_rate=5e-4)},
            "recipe, rate is 0.001 on .*, but 0.0005 on .*; start all machines",
        ),
        ({"shard": True}, "run, shard is False on .*, but True on"),
    ],
)
def test_machines_that_do_not_mean_the_same_run_are_told_what_differs(corpus, tmp_path, change, told):
    request = PretrainRequest(RECIPE, corpus, tmp_path / "run")
    errors = started(2, disagree, [request, replace(request, **change)])
    assert errors[0] == errors[1]
    with pytest.raises(SettingsError, match=f"the machines do not mean the same run: {told}"):
        raise SettingsError(errors[0])
    assert not (tmp_path / "run").exists()
