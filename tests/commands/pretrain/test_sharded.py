"""Sharded training equals unsharded training, and its checkpoints resume with any number of processes."""

import json
import os
import pickletools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed
from many_processes import run_processes
from safetensors.torch import load_file
from small_run import RECIPE, assert_close, curve, prepare_corpus, run

import bertworks.commands.pretrain.run
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init
from bertworks.commands.pretrain.recipe import ModelRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.commands.run_info import count_tokens
from bertworks.corpus.corpus import Corpus
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import BertworksError, SettingsError
from bertworks.parallel.process_group import process_group
from bertworks.training.checkpoint import checkpoints_in, load_checkpoint
from bertworks.training.checkpoint_writer import CheckpointWriter
from bertworks.training.devices import Precision
from bertworks.training.loop import Step
from bertworks.training.sharding import local_rows, shard, to_local

WITHOUT_DROPOUT = replace(
    RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0), batch_size=12, micro_batch_size=2
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("sharded"))


@dataclass(frozen=True)
class Outcome:
    """The events of a run in one process."""

    steps: list[Step]
    notes: list[str]
    error: str


def work(requests: list[PretrainRequest], saves_in_background: bool) -> list[Outcome]:
    """Do one run after another, as a process of torchrun would. (One process group for all saves time.)"""
    if saves_in_background:
        bertworks.commands.pretrain.run._create_saver = lambda run: CheckpointWriter(
            run.request.output / "checkpoints", run.module, run.digest, in_background=True
        )
    outcomes = []
    with process_group():
        for request in requests:
            steps, notes, error = [], [], ""
            try:
                for event in run_pretrain(request):
                    steps += [event.step] if event.step else []
                    notes += [event.note] if event.note else []
            except BertworksError as raised:
                error = str(raised)
            outcomes.append(Outcome(steps, notes, error))
    return outcomes


def run_sharded(world_size: int, *requests: PretrainRequest, saves_in_background: bool = False) -> list[Outcome]:
    """Do the runs in several processes; return their outcomes in the main process."""
    return run_processes(world_size, work, list(requests), saves_in_background)[0]


def last_tensors(output: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint, merged from its shards."""
    checkpoint = load_checkpoint(checkpoints_in(output / "checkpoints")[-1])
    return {**checkpoint.model, **checkpoint.optimizer}


def sample_probabilities(output: Path) -> list[float]:
    """Return the probabilities of the best candidates of all masked samples."""
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    return [probability for line in lines for candidates in line["predictions"] for _, probability in candidates]


def test_two_processes_resume_exactly_and_write_a_sharded_checkpoint(corpus, tmp_path):
    recipe = replace(RECIPE, micro_batch_size=2)
    request = PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "whole", shard=True)
    resumed = replace(request, output=tmp_path / "resumed")
    bf16 = replace(request, recipe=replace(recipe, precision="bf16"), output=tmp_path / "bf16", stop_after=6)
    *_, outcome = run_sharded(2, request, replace(resumed, stop_after=7), resumed, bf16)
    assert (len(outcome.steps), outcome.error) == (6, "")
    bf16_probabilities = sample_probabilities(tmp_path / "bf16")
    expected = sample_probabilities(tmp_path / "whole")[: len(bf16_probabilities)]
    assert bf16_probabilities == pytest.approx(expected, abs=0.02)
    tensors, resumed_tensors = last_tensors(tmp_path / "whole"), last_tensors(tmp_path / "resumed")
    assert tensors.keys() == resumed_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], resumed_tensors[name])] == []
    assert curve(tmp_path / "whole") == curve(tmp_path / "resumed")
    last = checkpoints_in(tmp_path / "whole" / "checkpoints")[-1]
    names = {f"{kind}-0000{number}-of-00002.safetensors" for kind in ("model", "optimizer") for number in (1, 2)}
    assert {path.name for path in last.iterdir()} == names | {"state.json", "manifest.json"}
    shards = [load_file(last / f"model-0000{number}-of-00002.safetensors") for number in (1, 2)]
    (bias,) = (name for name in shards[0] if name.endswith("_head.score.bias"))
    assert [len(shard_tensors[bias]) for shard_tensors in shards] == [1, 1]  # each has one of two rows
    for file in last.iterdir():
        with pytest.raises(ValueError):
            list(pickletools.genops(file.read_bytes()))
    peaks = json.loads((tmp_path / "whole" / "run.json").read_text())["peak_gib"]
    assert [0.05 < peak < 50 for peak in peaks] == [True, True]
    model = "model/model.safetensors"
    assert (tmp_path / "whole" / model).read_bytes() == (tmp_path / "resumed" / model).read_bytes()
    pooler = load_file(tmp_path / "whole" / model)["bert.pooler.dense.weight"]
    assert torch.equal(pooler, tensors["encoder.pooler.weight"])


def test_averaged_weights_of_a_sharded_model_are_those_of_an_unsharded_one(corpus, tmp_path):
    recipe = replace(WITHOUT_DROPOUT, ema_decay=0.9)
    run(corpus, tmp_path / "unsharded", recipe)
    request = PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "whole", shard=True)
    resumed = replace(request, output=tmp_path / "resumed")
    outcomes = run_sharded(2, request, replace(resumed, stop_after=7), resumed)
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    tensors, resumed_tensors = last_tensors(tmp_path / "whole"), last_tensors(tmp_path / "resumed")
    assert tensors.keys() == resumed_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], resumed_tensors[name])] == []
    assert curve(tmp_path / "whole") == curve(tmp_path / "resumed")
    for name, values in last_tensors(tmp_path / "unsharded").items():
        assert torch.allclose(tensors[name], values, atol=1e-5), name
    models = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "unsharded")]
    assert all(torch.allclose(values, models[1][name], atol=1e-5) for name, values in models[0].items())
    assert torch.equal(models[0]["bert.pooler.dense.weight"], tensors["ema/encoder.pooler.weight"])
    held_out, expected = (
        [line["losses"]["mlm"] for line in curve(tmp_path / name) if line["kind"] == "held_out"]
        for name in ("whole", "unsharded")
    )
    assert held_out == pytest.approx(expected, abs=1e-4)


def test_checkpoint_of_two_processes_resumes_with_three_and_then_with_one(corpus, tmp_path):
    steps = run(corpus, tmp_path / "unsharded", WITHOUT_DROPOUT)
    request = PretrainRequest(recipe=WITHOUT_DROPOUT, corpus=corpus, output=tmp_path / "run", shard=True, stop_after=4)
    (first,) = run_sharded(2, request)
    (second,) = run_sharded(3, request, saves_in_background=True)
    assert any("world_size 2 → 3" in note for note in second.notes)
    last = list(run_pretrain(replace(request, shard=False, stop_after=None)))
    assert any("sharded True → False" in event.note for event in last)
    assert_close(steps, first.steps + second.steps + [event.step for event in last if event.step])
    outputs = (tmp_path / "unsharded", tmp_path / "run")
    held_out = [[line["losses"] for line in curve(output) if line["kind"] == "held_out"] for output in outputs]
    assert len(held_out[0]) > 1
    for expected, losses in zip(*held_out, strict=True):
        assert losses == pytest.approx(expected, abs=1e-5)
    expected, probabilities = map(sample_probabilities, outputs)
    assert probabilities == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 10  # they change from step to step


# family -> objective, activation_checkpointing
FAMILIES = {
    "bert": ("mlm-nsp", True),
    "roberta": ("mlm", False),
    "albert": ("mlm-sop", True),
    "openai-gpt": ("causal", False),
    "xlnet": ("permutation", True),
    "elmo": ("bilm", False),
}


def gradients(corpus: Path, families: tuple[str, ...], precision: Precision) -> dict[str, tuple[float, float]]:
    """Return by family the largest gradient of a whole module, and the largest difference of a sharded one."""
    with process_group():
        return {family: _gradients(Corpus.open(corpus, None), family, precision) for family in families}


def _gradients(corpus: Corpus, family: str, precision: Precision) -> tuple[float, float]:
    objective, activation_checkpointing = FAMILIES[family]
    num_heads = None if family in ("elmo", "awd-lstm") else 2
    model = ModelRecipe(
        size="tiny", hidden_size=16, num_attention_heads=num_heads, max_position_embeddings=32, family=family
    )
    recipe = replace(RECIPE, model=model, objective=objective, activation_checkpointing=activation_checkpointing)
    model_init = resolve_model_init(recipe, corpus.tokenizer, None)
    whole, sharded = (build(model_init, recipe, count_tokens(corpus))[0] for _ in range(2))
    shard(sharded, sharded.encoder.layers, precision)
    for batch in PretrainBatches(corpus, recipe).get_batches(0, 0):
        for module in (whole, sharded):
            seeds = DropoutSeeds(torch.tensor(5 + torch.distributed.get_rank(), dtype=torch.int32))
            module.train()
            with precision.autocast():
                loss = module(batch, dict.fromkeys(module.counts(batch), 1.0), seeds)
            loss.value.backward()
    largest = worst = 0.0
    for parameter, local in zip(whole.parameters(), sharded.parameters(), strict=True):
        if parameter.grad is not None:
            expected = parameter.grad.to_dense()
            torch.distributed.all_reduce(expected)
            expected /= torch.distributed.get_world_size()
            largest = max(largest, float(expected.abs().max()))
            # Of a tensor with one row only the first process has any.
            difference = (to_local(local.grad) - expected[local_rows(local)]).abs()
            worst = max(worst, float(difference.max()) if difference.numel() else 0.0)
    return largest, worst


def test_sharded_gradients_of_every_family_equal_those_of_the_whole_module(corpus):
    for results in run_processes(2, gradients, corpus, tuple(FAMILIES), Precision()):
        assert results.keys() == FAMILIES.keys()
        for family, (largest, worst) in results.items():
            assert largest > 1e-3, family
            assert worst < 1e-6 * largest, family


def test_sharded_gradients_in_bf16_differ_only_by_rounding(corpus):
    for results in run_processes(2, gradients, corpus, ("bert",), Precision("bf16")):
        largest, worst = results["bert"]
        assert largest > 1e-3
        assert worst < 0.02 * largest


def run_own_request(requests: list[PretrainRequest]) -> str:
    """Run the request of this rank; return the error."""
    (outcome,) = work([requests[int(os.environ["RANK"])]], False)
    return outcome.error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"recipe": replace(RECIPE, learning_rate=5e-4)},
            "recipe, learning_rate is 0.001 on .*, but 0.0005 on .*; start all nodes",
        ),
        ({"shard": True}, "options, shard is False on .*, but True on"),
    ],
)
def test_different_requests_are_refused_in_every_process(corpus, tmp_path, change, message):
    request = PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run")
    errors = run_processes(2, run_own_request, [request, replace(request, **change)])
    assert errors[0] == errors[1]
    with pytest.raises(SettingsError, match=f"the nodes do not run the same thing: {message}"):
        raise SettingsError(errors[0])
    assert not (tmp_path / "run").exists()
