"""The loop: how a step is split changes nothing, its figures are right, and the same seed gives the same bits."""

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.loss import Loss, LossPart
from bertworks.objectives.mlm import MlmObjective
from bertworks.parallel.process_group import world_size
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

VOCABULARY, WIDTH, LENGTH = 60, 16, 12
PLAIN = BertConfig(VOCABULARY, WIDTH, 2, 2, 32, 32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DROPPING = BertConfig(VOCABULARY, WIDTH, 2, 2, 32, 32)
# How many places are hidden in each of eight rows: very unequal, so that a mean of means would be wrong.
HIDDEN = (1, 9, 2, 1, 1, 7, 3, 1)


pytestmark = pytest.mark.usefixtures("one_thread")


def model(sizes: BertConfig, seed: int = 0) -> MlmObjective:
    generator = torch.Generator().manual_seed(seed)
    return MlmObjective(Bert(sizes, generator), generator)


def micro_batches(step: int, sizes: Sequence[int]) -> list[Batch]:
    """The eight rows of a step, cut into micro-batches of these sizes."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, VOCABULARY, (8, LENGTH), generator=generator)
    targets = torch.randint(1, VOCABULARY, (8, LENGTH), generator=generator)
    found, start = [], 0
    for size in sizes:
        rows = range(start, start + size)
        places = [(row - start) * LENGTH + at for row in rows for at in range(1, 1 + HIDDEN[row])]
        wanted = torch.cat([targets[row, 1 : 1 + HIDDEN[row]] for row in rows])
        labels = {"pair": torch.tensor([row % 2 for row in rows])}
        own = ids[start : start + size]
        lengths = torch.full((size,), LENGTH)
        found.append(Batch(own, torch.zeros_like(own), lengths, "both", torch.tensor(places), wanted, labels))
        start += size
    assert start == 8
    return found


def run(module: MlmObjective, sizes: Sequence[int], num_steps: int = 4, seed: int = 0) -> list[Step]:
    training = Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings()),
        schedule=StepSchedule((num_steps,), 2, 1e-3),
        get_batches=lambda phase, step: micro_batches(step, sizes),
        seed=seed,
    )
    return list(train(training, TrainState()))


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (2, 1, 5), (1,) * 8])
def test_splitting_a_step_into_micro_batches_changes_nothing(sizes: tuple[int, ...]):
    whole, split = model(PLAIN), model(PLAIN)
    for one, other in zip(run(whole, (8,)), run(split, sizes), strict=True):
        assert one.losses.keys() == other.losses.keys() == {"masked", "pair"}
        for name, loss in one.losses.items():
            assert abs(loss - other.losses[name]) < 1e-6
        assert abs(one.grad_norm - other.grad_norm) < 1e-5
        assert (one.number, one.learning_rate, one.num_tokens) == (other.number, other.learning_rate, other.num_tokens)
    for name, values in whole.state_dict().items():
        assert float((values - split.state_dict()[name]).abs().max()) < 1e-6, name


def test_losses_are_means_over_all_answers_of_the_step_not_means_of_means():
    module = model(PLAIN)
    untouched = copy.deepcopy(module)
    step = run(module, (1, 7), num_steps=1)[0]
    (whole,) = micro_batches(0, (8,))
    with torch.no_grad():
        parts = untouched(whole, {"masked": 1.0, "pair": 1.0}).parts
    assert parts["masked"].count == sum(HIDDEN) == 25
    assert abs(step.losses["masked"] - float(parts["masked"].total) / 25) < 1e-6
    assert abs(step.losses["pair"] - float(parts["pair"].total) / 8) < 1e-6


class Counted(nn.Module):
    """One weight w; the loss of a batch is w * the sum of its ids, and it has as many answers as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.scales: list[Mapping[str, float]] = []
        self.seeds: list[int] = []

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"some": len(batch.input_ids), "none": 0}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        assert seeds is not None
        self.scales.append(dict(scales))
        self.seeds.append(int(seeds.base))
        total = self.weight * batch.input_ids.sum()
        nothing = torch.tensor(0.0)
        parts = {"some": LossPart(total.detach(), len(batch.input_ids)), "none": LossPart(nothing, 0)}
        return Loss(total * scales["some"] + nothing * scales["none"], parts)


def plain_batch(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> Batch:
    ids = torch.tensor(rows)
    return Batch(ids, torch.zeros_like(ids), torch.tensor(lengths))


def counted_training(module: Counted, pace: StepSchedule, asked: list[tuple[int, int]], seed: int = 0) -> Training:
    def draw(phase: int, step: int) -> list[Batch]:
        asked.append((phase, step))
        return [plain_batch([[1, 2]], [2]), plain_batch([[3, 0], [4, 5], [6, 0]], [1, 2, 1])]

    return Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings(clip=0.0)),
        schedule=pace,
        get_batches=draw,
        seed=seed,
    )


def test_figures_of_a_step_by_hand():
    """Ids sum to 3 and 18, four rows: the loss is w * 21 / 4 = 10.5 at w = 2, and its slope 5.25."""
    module = Counted()
    step = next(train(counted_training(module, StepSchedule((2,), 0, 1e-3), []), TrainState()))
    assert module.scales == [{"some": 0.25, "none": 1.0}] * 2
    assert step.losses == {"some": 10.5}  # a part without answers has no mean
    assert step.grad_norm == 5.25
    assert (step.number, step.phase, step.num_tokens) == (1, 0, 6)
    assert step.learning_rate == 0.5e-3  # the first of two steps, without warm-up
    # Adam's first update is the rate, whatever the slope.
    assert abs(float(module.weight.detach()) - (2.0 - 0.5e-3)) < 1e-6


def test_the_standing_advances_and_phases_count_their_own_steps():
    standing, asked = TrainState(), []
    steps = list(train(counted_training(Counted(), StepSchedule((2, 3), 1, 1e-3), asked), standing))
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [step.phase for step in steps] == [0, 0, 1, 1, 1]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.num_tokens for step in steps] == [6, 12, 18, 24, 30]
    assert (standing.step, standing.num_tokens, standing.phase_steps) == (5, 30, {0: 2, 1: 3})
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert standing.seconds == seconds[-1]


def test_a_run_that_stands_somewhere_goes_on_from_there():
    asked: list[tuple[int, int]] = []
    standing = TrainState(step=3, seconds=5.0, num_tokens=100, phase_steps={0: 2, 1: 1})
    steps = list(train(counted_training(Counted(), StepSchedule((2, 3), 1, 1e-3), asked), standing))
    assert asked == [(1, 1), (1, 2)]
    assert [step.number for step in steps] == [4, 5]
    assert [step.num_tokens for step in steps] == [106, 112]
    assert steps[0].seconds > 5.0


def test_a_run_that_is_over_draws_nothing():
    asked: list[tuple[int, int]] = []
    assert list(train(counted_training(Counted(), StepSchedule((2,), 1, 1e-3), asked), TrainState(step=2))) == []
    assert asked == []


def test_dropout_seeds_differ_by_step_micro_batch_and_seed_and_repeat_for_the_same():
    def seeds(seed: int) -> list[int]:
        module = Counted()
        list(train(counted_training(module, StepSchedule((3,), 1, 1e-3), [], seed), TrainState()))
        return module.seeds

    assert len(set(seeds(0))) == 6  # three steps of two micro-batches
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_a_resumed_step_drops_what_it_would_have_dropped():
    whole, late = Counted(), Counted()
    list(train(counted_training(whole, StepSchedule((3,), 1, 1e-3), []), TrainState()))
    list(train(counted_training(late, StepSchedule((3,), 1, 1e-3), []), TrainState(step=2)))
    assert late.seeds == whole.seeds[4:]


def test_the_same_seed_gives_the_same_bits_and_another_seed_drops_others():
    def trained(seed: int) -> tuple[list[float], dict[str, torch.Tensor]]:
        module = model(DROPPING)
        return [step.losses["masked"] for step in run(module, (4, 4), seed=seed)], module.state_dict()

    losses, state = trained(0)
    again, same = trained(0)
    assert losses == again
    assert all(torch.equal(values, same[name]) for name, values in state.items())
    other_losses, other = trained(1)
    assert losses[0] != other_losses[0]  # the same weights and rows: only what is dropped differs
    assert not torch.equal(state["encoder.pieces.weight"], other["encoder.pieces.weight"])


def test_the_module_learns_in_training_mode():
    module = model(DROPPING).eval()
    run(module, (8,), num_steps=1)
    assert module.training_settings


def test_one_process_is_one():
    assert world_size() == 1
