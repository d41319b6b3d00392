"""The training loop: micro-batches do not change a step, its values are right, and a seed gives the same bits."""

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.loss import Loss, LossPart
from bertworks.objectives.mlm import MlmModule
from bertworks.parallel.process_group import world_size
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

VOCAB_SIZE, HIDDEN_SIZE, LENGTH = 60, 16, 12
NO_DROPOUT_CONFIG = BertConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN_SIZE,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
DROPOUT_CONFIG = BertConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN_SIZE,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
# Masked tokens of each of eight sequences: very unequal, so that a mean of means would be wrong.
NUM_MASKED = (1, 9, 2, 1, 1, 7, 3, 1)


pytestmark = pytest.mark.usefixtures("one_thread")


def model(config: BertConfig, seed: int = 0) -> MlmModule:
    generator = torch.Generator().manual_seed(seed)
    return MlmModule(Bert(config, generator), generator)


def micro_batches(step: int, sizes: Sequence[int]) -> list[Batch]:
    """The eight sequences of a step, in micro-batches of these sizes."""
    generator = torch.Generator().manual_seed(step)
    all_ids = torch.randint(1, VOCAB_SIZE, (8, LENGTH), generator=generator)
    all_targets = torch.randint(1, VOCAB_SIZE, (8, LENGTH), generator=generator)
    batches, start = [], 0
    for size in sizes:
        indices = range(start, start + size)
        positions = [(i - start) * LENGTH + position for i in indices for position in range(1, 1 + NUM_MASKED[i])]
        input_ids = all_ids[start : start + size]
        batches.append(
            Batch(
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                lengths=torch.full((size,), LENGTH),
                attention="bidirectional",
                positions=torch.tensor(positions),
                targets=torch.cat([all_targets[i, 1 : 1 + NUM_MASKED[i]] for i in indices]),
                labels={"nsp": torch.tensor([i % 2 for i in indices])},
            )
        )
        start += size
    assert start == 8
    return batches


def run(module: MlmModule, sizes: Sequence[int], num_steps: int = 4, seed: int = 0) -> list[Step]:
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
    single, split = model(NO_DROPOUT_CONFIG), model(NO_DROPOUT_CONFIG)
    for expected, actual in zip(run(single, (8,)), run(split, sizes), strict=True):
        assert expected.losses.keys() == actual.losses.keys() == {"mlm", "nsp"}
        for name, loss in expected.losses.items():
            assert abs(loss - actual.losses[name]) < 1e-6
        assert abs(expected.grad_norm - actual.grad_norm) < 1e-5
        assert (actual.number, actual.num_tokens) == (expected.number, expected.num_tokens)
        assert actual.learning_rate == expected.learning_rate
    for name, values in single.state_dict().items():
        assert float((values - split.state_dict()[name]).abs().max()) < 1e-6, name


def test_losses_are_means_over_all_targets_of_the_step_not_means_of_means():
    module = model(NO_DROPOUT_CONFIG)
    untouched = copy.deepcopy(module)
    step = run(module, (1, 7), num_steps=1)[0]
    (batch,) = micro_batches(0, (8,))
    with torch.no_grad():
        parts = untouched(batch, {"mlm": 1.0, "nsp": 1.0}).parts
    assert parts["mlm"].count == sum(NUM_MASKED) == 25
    assert abs(step.losses["mlm"] - float(parts["mlm"].total) / 25) < 1e-6
    assert abs(step.losses["nsp"] - float(parts["nsp"].total) / 8) < 1e-6


class WeightedSum(nn.Module):
    """One weight w; the loss of a batch is w times the sum of its ids, with one target per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.scales: list[Mapping[str, float]] = []
        self.seeds: list[int] = []

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"sum": len(batch.input_ids), "empty": 0}

    def forward(self, batch: Batch, scales: Mapping[str, float], seeds: DropoutSeeds | None = None) -> Loss:
        assert seeds is not None
        self.scales.append(dict(scales))
        self.seeds.append(int(seeds.base))
        total = self.weight * batch.input_ids.sum()
        zero = torch.tensor(0.0)
        parts = {"sum": LossPart(total.detach(), len(batch.input_ids)), "empty": LossPart(zero, 0)}
        return Loss(total * scales["sum"] + zero * scales["empty"], parts)


def make_batch(sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> Batch:
    input_ids = torch.tensor(sequences)
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def build_training(
    module: WeightedSum, schedule: StepSchedule, requests: list[tuple[int, int]], seed: int = 0
) -> Training:
    def get_batches(phase: int, step: int) -> list[Batch]:
        requests.append((phase, step))
        return [make_batch([[1, 2]], [2]), make_batch([[3, 0], [4, 5], [6, 0]], [1, 2, 1])]

    return Training(
        module=module,
        trainable=module,
        optimizer=BertAdam(module, AdamSettings(clip=0.0)),
        schedule=schedule,
        get_batches=get_batches,
        seed=seed,
    )


def test_values_of_a_step_by_hand():
    """Ids sum to 3 and 18, four sequences: the loss is w * 21 / 4 = 10.5 at w = 2, and its gradient 5.25."""
    module = WeightedSum()
    step = next(train(build_training(module, StepSchedule((2,), 0, 1e-3), []), TrainState()))
    assert module.scales == [{"sum": 0.25, "empty": 1.0}] * 2
    assert step.losses == {"sum": 10.5}  # a part without targets has no mean
    assert step.grad_norm == 5.25
    assert (step.number, step.phase, step.num_tokens) == (1, 0, 6)
    assert step.learning_rate == 0.5e-3  # the first of two steps, without warmup
    # Adam's first update is the learning rate, whatever the gradient.
    assert abs(float(module.weight.detach()) - (2.0 - 0.5e-3)) < 1e-6


def test_the_train_state_advances_and_steps_are_counted_by_phase():
    train_state, requests = TrainState(), []
    steps = list(train(build_training(WeightedSum(), StepSchedule((2, 3), 1, 1e-3), requests), train_state))
    assert requests == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [step.phase for step in steps] == [0, 0, 1, 1, 1]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.num_tokens for step in steps] == [6, 12, 18, 24, 30]
    assert (train_state.step, train_state.num_tokens, train_state.phase_steps) == (5, 30, {0: 2, 1: 3})
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert train_state.seconds == seconds[-1]


def test_training_resumes_from_its_train_state():
    requests: list[tuple[int, int]] = []
    train_state = TrainState(step=3, seconds=5.0, num_tokens=100, phase_steps={0: 2, 1: 1})
    steps = list(train(build_training(WeightedSum(), StepSchedule((2, 3), 1, 1e-3), requests), train_state))
    assert requests == [(1, 1), (1, 2)]
    assert [step.number for step in steps] == [4, 5]
    assert [step.num_tokens for step in steps] == [106, 112]
    assert steps[0].seconds > 5.0


def test_a_finished_run_loads_no_batches():
    requests: list[tuple[int, int]] = []
    assert list(train(build_training(WeightedSum(), StepSchedule((2,), 1, 1e-3), requests), TrainState(step=2))) == []
    assert requests == []


def test_dropout_seeds_differ_by_step_micro_batch_and_seed_and_repeat_for_the_same():
    def seeds(seed: int) -> list[int]:
        module = WeightedSum()
        list(train(build_training(module, StepSchedule((3,), 1, 1e-3), [], seed), TrainState()))
        return module.seeds

    assert len(set(seeds(0))) == 6  # three steps of two micro-batches
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_a_resumed_step_has_the_same_dropout_seeds():
    full, resumed = WeightedSum(), WeightedSum()
    list(train(build_training(full, StepSchedule((3,), 1, 1e-3), []), TrainState()))
    list(train(build_training(resumed, StepSchedule((3,), 1, 1e-3), []), TrainState(step=2)))
    assert resumed.seeds == full.seeds[4:]


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_dropout_masks():
    def trained(seed: int) -> tuple[list[float], dict[str, torch.Tensor]]:
        module = model(DROPOUT_CONFIG)
        return [step.losses["mlm"] for step in run(module, (4, 4), seed=seed)], module.state_dict()

    losses, state = trained(0)
    same_losses, same_state = trained(0)
    assert losses == same_losses
    assert all(torch.equal(values, same_state[name]) for name, values in state.items())
    other_losses, other_state = trained(1)
    assert losses[0] != other_losses[0]  # the same weights and batches: only the dropout masks differ
    assert not torch.equal(state["encoder.token_embeddings.weight"], other_state["encoder.token_embeddings.weight"])


def test_training_sets_training_mode():
    module = model(DROPOUT_CONFIG).eval()
    run(module, (8,), num_steps=1)
    assert module.training


def test_the_world_size_of_a_single_process_is_one():
    assert world_size() == 1
