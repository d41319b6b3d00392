"""Memory estimates: published parameter counts, estimated against measured steps, micro-batch config."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.memory import check_model_fits, largest_micro_batch_size, num_parameters, step_bytes
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


@pytest.mark.parametrize(("name", "vocab_size", "count"), PUBLISHED)
def test_parameter_counts_are_those_published(name: str, vocab_size: int, count: int):
    assert num_parameters(BertConfig.from_preset(name, vocab_size)) == count


def test_parameter_counts_of_any_config_are_those_of_the_module():
    config = BertConfig(
        vocab_size=60,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=50,
        max_position_embeddings=17,
        type_vocab_size=3,
    )
    assert num_parameters(config) == sum(parameter.numel() for parameter in Bert(config).parameters())


def make_batch(config: BertConfig, num_sequences: int, length: int, objective: str) -> Batch:
    """Full sequences with about as many targets as the objective has: 15 %, a sixth, or all but the last position."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(5, config.vocab_size, (num_sequences, length), generator=generator)
    numbers = torch.arange(input_ids.numel())
    ratio = {"mlm-nsp": 0.15, "mlm": 0.15, "mlm-sop": 0.15, "rtd": 0.15, "permutation": 1 / 6}.get(objective)
    positions = numbers[numbers % length < length - 1] if ratio is None else numbers[: int(ratio * len(numbers))] * 6
    order = torch.zeros(len(numbers), dtype=torch.long)
    order[positions] = 1 + positions % length
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.full((num_sequences,), length),
        positions=positions,
        targets=input_ids.flatten()[positions],
        labels={"nsp": torch.zeros(num_sequences, dtype=torch.long)},
        permutation=order.view(num_sequences, length) if objective == "permutation" else None,
    )


def measured_bytes(config: BertConfig, num_sequences: int, length: int, objective: str = "mlm-nsp") -> int:
    """Measure the second step: parameters and moments, and the peak of torch's allocations."""
    module = OBJECTIVES[objective].build(family_of(config.model_type).build(config, None), None)
    batch = make_batch(config, num_sequences, length, objective)
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
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        next(steps)
    assert profiled.profiler is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    state = [*module.parameters(), *optimizer.state().values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in state) + peak


# Dominated by the embeddings, by the logits, by the layers, and by the attention weights.
@pytest.mark.parametrize(
    ("name", "vocab_size", "num_sequences", "length"),
    [
        ("tiny", 30_522, 1, 128),
        ("tiny", 30_522, 16, 128),
        ("mini", 3_000, 8, 128),
        ("tiny", 60, 32, 64),
        ("tiny", 60, 2, 512),
    ],
)
def test_the_estimate_of_a_step_is_close_to_its_measured_memory(
    name: str, vocab_size: int, num_sequences: int, length: int
):
    config = BertConfig.from_preset(name, vocab_size)
    measured = measured_bytes(config, num_sequences, length)
    assert measured / 1.5 < step_bytes(config, num_sequences, length) < measured * 1.5


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        ("roberta", "mlm"),
        ("distilbert", "mlm"),
        ("mpnet", "mlm"),
        ("electra", "rtd"),
        ("deberta-v2", "mlm"),
        ("modernbert", "mlm"),
        ("albert", "mlm-sop"),
        ("openai-gpt", "causal"),
        ("xlnet", "permutation"),
        ("elmo", "bilm"),
        ("awd-lstm", "causal"),
    ],
)
def test_the_estimate_holds_for_every_family(family: str, objective: str):
    config = family_of(family).config_from_preset("tiny", 1_000)
    measured = measured_bytes(config, 4, 64, objective)
    assert measured / 1.5 < step_bytes(config, 4, 64) < measured * 1.5


def test_shared_layers_save_parameters_but_no_activations():
    albert, bert = (family_of(name).config_from_preset("base", 30_000) for name in ("albert", "bert"))
    assert num_parameters(albert) == 11_683_584  # as published
    bert = replace(bert, hidden_act="gelu_new")
    albert_bytes, bert_bytes = (step_bytes(model, 9, 128) - step_bytes(model, 1, 128) for model in (albert, bert))
    assert albert_bytes == bert_bytes


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_estimate_knows_which_activations_save_two_tensors(activation: str):
    config = BertConfig(
        vocab_size=60,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_act=activation,
    )
    measured = measured_bytes(config, 16, 64)
    assert measured / 1.5 < step_bytes(config, 16, 64) < measured * 1.5


def test_more_sequences_longer_sequences_and_larger_models_take_more():
    tiny, mini = (BertConfig.from_preset(name, 3_000) for name in ("tiny", "mini"))
    assert step_bytes(tiny, 8, 128) < step_bytes(tiny, 16, 128) < step_bytes(mini, 16, 128)
    # The same number of tokens in longer sequences: more attention weights.
    assert step_bytes(tiny, 8, 512) > step_bytes(tiny, 32, 128)


def test_the_micro_batch_size_is_halved_until_it_fits():
    config = BertConfig.from_preset("tiny", 3_000)
    needed = {size: step_bytes(config, size, 128) for size in (48, 24, 12, 1)}
    assert largest_micro_batch_size(config, 48, 128, needed[48]) == 48
    assert largest_micro_batch_size(config, 48, 128, needed[48] - 1) == 24
    assert largest_micro_batch_size(config, 48, 128, needed[12]) == 12
    assert largest_micro_batch_size(config, 48, 128, needed[1]) == 1
    assert largest_micro_batch_size(config, 48, 128, needed[1] - 1) is None


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_built():
    config = BertConfig().resized(hidden_size=2**20, num_hidden_layers=1_000, num_attention_heads=1)
    with pytest.raises(SettingsError, match=r"training a model of 13,\S+ parameters needs about \S+ GiB, and \S+ GiB"):
        check_model_fits(config)
    check_model_fits(BertConfig().resized(hidden_size=16, num_hidden_layers=1, num_attention_heads=1))
