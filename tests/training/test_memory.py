"""Will it fit? Parameters as published, the estimate of a step against what a step really takes, micro-batches."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.families import family_of
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.memory import largest_micro_batch_size, num_parameters, step_bytes
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

# Encoder and pooler, without heads.
PUBLISHED = [
    ("base", 30_522, 109_482_240),
    ("large", 30_522, 335_141_888),
    ("base", 21_128, 102_267_648),
    ("tiny", 30_522, 4_385_920),
    ("mini", 30_522, 11_170_560),
    ("small", 30_522, 28_763_648),
    ("medium", 30_522, 41_373_184),
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("name", "vocabulary", "count"), PUBLISHED)
def test_parameters_are_as_many_as_published(name: str, vocabulary: int, count: int):
    assert num_parameters(BertConfig.from_preset(name, vocabulary)) == count


def test_parameters_of_any_sizes_are_counted_as_they_are_built():
    sizes = BertConfig(60, 24, 3, 4, 50, 17, type_vocab_size=3)
    assert num_parameters(sizes) == sum(one.numel() for one in Bert(sizes).parameters())


def batch_of_rows(sizes: BertConfig, rows: int, length: int, objective: str) -> Batch:
    """Full rows with about as many places asked as the objective asks: 15 %, a sixth, or all but the last."""
    ids = torch.randint(5, sizes.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(ids.numel())
    asked = {"masked-next": 0.15, "masked": 0.15, "masked-order": 0.15, "permuted": 1 / 6}.get(objective)
    places = numbers[numbers % length < length - 1] if asked is None else numbers[: int(asked * len(numbers))] * 6
    told = torch.zeros(len(numbers), dtype=torch.long)
    told[places] = 1 + places % length
    return Batch(
        ids,
        torch.zeros_like(ids),
        torch.full((rows,), length),
        positions=places,
        targets=ids.flatten()[places],
        labels={"pair": torch.zeros(rows, dtype=torch.long)},
        permutation=told.view(rows, length) if objective == "permuted" else None,
    )


def bytes_taken(sizes: BertConfig, rows: int, length: int, objective: str = "masked-next") -> int:
    """What a second step takes: parameters and moments, and the most that torch then allocates at a time."""
    module = OBJECTIVES[objective](family_of(sizes.model_type).build(sizes, None), None)
    batch = batch_of_rows(sizes, rows, length, objective)
    optimizer = BertAdam(module, AdamSettings())
    steps = train(
        Training(
            module=module,
            trainable=module,
            optimizer=optimizer,
            schedule=StepSchedule((3,), 1, 1e-3),
            get_batches=lambda *_: [batch],
            seed=0,
        ),
        TrainState(),
    )
    next(steps)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        next(steps)
    assert seen.profiler is not None
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    assert events
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    lasting = [*module.parameters(), *optimizer.state().values()]
    return sum(one.numel() * one.element_size() for one in lasting) + most


# Where the table weighs most, where the scores do, where the layers do, and where the pairs of places do.
@pytest.mark.parametrize(
    ("name", "vocabulary", "rows", "length"),
    [
        ("tiny", 30_522, 1, 128),
        ("tiny", 30_522, 16, 128),
        ("mini", 3_000, 8, 128),
        ("tiny", 60, 32, 64),
        ("tiny", 60, 2, 512),
    ],
)
def test_the_estimate_of_a_step_is_near_what_it_takes(name: str, vocabulary: int, rows: int, length: int):
    sizes = BertConfig.from_preset(name, vocabulary)
    taken = bytes_taken(sizes, rows, length)
    assert taken / 1.5 < step_bytes(sizes, rows, length) < taken * 1.5


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        ("roberta", "masked"),
        ("albert", "masked-order"),
        ("openai-gpt", "next"),
        ("xlnet", "permuted"),
        ("elmo", "two-way"),
        ("awd-lstm", "next"),
    ],
)
def test_the_estimate_holds_for_every_family(family: str, objective: str):
    sizes = family_of(family).config_from_preset("tiny", 1_000)
    taken = bytes_taken(sizes, 4, 64, objective)
    assert taken / 1.5 < step_bytes(sizes, 4, 64) < taken * 1.5


def test_sharing_layers_saves_parameters_and_nothing_of_what_layers_keep():
    albert, bert = (family_of(name).config_from_preset("base", 30_000) for name in ("albert", "bert"))
    assert num_parameters(albert) == 11_683_584  # as published
    one, more = (step_bytes(albert, rows, 128) for rows in (1, 9))
    alike, more_alike = (step_bytes(replace(bert, hidden_act="gelu_new"), rows, 128) for rows in (1, 9))
    assert more - one == more_alike - alike


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_estimate_knows_which_activations_keep_more(activation: str):
    sizes = BertConfig(60, 128, 2, 2, 512, hidden_act=activation)
    taken = bytes_taken(sizes, 16, 64)
    assert taken / 1.5 < step_bytes(sizes, 16, 64) < taken * 1.5


def test_more_rows_longer_rows_and_larger_models_take_more():
    tiny, mini = (BertConfig.from_preset(name, 3_000) for name in ("tiny", "mini"))
    assert step_bytes(tiny, 8, 128) < step_bytes(tiny, 16, 128) < step_bytes(mini, 16, 128)
    # The same number of pieces in longer rows: more pairs of places.
    assert step_bytes(tiny, 8, 512) > step_bytes(tiny, 32, 128)


def test_a_micro_batch_is_halved_until_it_fits():
    sizes = BertConfig.from_preset("tiny", 3_000)
    needed = {size: step_bytes(sizes, size, 128) for size in (48, 24, 12, 1)}
    assert largest_micro_batch_size(sizes, 48, 128, needed[48]) == 48
    assert largest_micro_batch_size(sizes, 48, 128, needed[48] - 1) == 24
    assert largest_micro_batch_size(sizes, 48, 128, needed[12]) == 12
    assert largest_micro_batch_size(sizes, 48, 128, needed[1]) == 1
    assert largest_micro_batch_size(sizes, 48, 128, needed[1] - 1) is None
