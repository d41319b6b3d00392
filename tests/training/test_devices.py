"""Devices and precision: what is refused, loss scaler, and how close bf16 and fp16 are to fp32."""

import copy

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch
from bertworks.training.devices import LossScaler, Precision, device_of
from bertworks.training.evaluation import evaluate
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

CPU = torch.device("cpu")
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def build_module(config: BertConfig = CONFIG) -> MlmModule:
    generator = torch.Generator().manual_seed(0)
    return MlmModule(Bert(config, generator), generator)


def random_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(1, 50, (4, 12), generator=generator)
    positions = torch.tensor([1, 14, 15, 30, 47])
    labels = {"nsp": torch.tensor([0, 1, 1, 0])}
    lengths = torch.full((4,), 12)
    token_type_ids, targets = torch.zeros_like(input_ids), input_ids.flatten()[positions]
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=lengths,
        positions=positions,
        targets=targets,
        labels=labels,
    )


def build_training(module: MlmModule, precision: Precision, num_steps: int) -> Training:
    optimizer = BertAdam(module, AdamSettings())
    return Training(
        module=module,
        trainable=module,
        optimizer=optimizer,
        schedule=StepSchedule((num_steps,), 1, 1e-3),
        get_batches=lambda *_: [random_batch()],
        seed=0,
        precision=precision,
    )


def test_auto_is_the_first_available_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_of("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == CPU


def test_an_unavailable_device_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"this machine has no cuda.*choose --device cpu"):
        device_of("cuda")
    with pytest.raises(SettingsError, match="no device 'gpu'; choose one of: auto, cpu, cuda, mps, xla"):
        device_of("gpu")


def test_a_tpu_without_torch_xla_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_xla", None)
    with pytest.raises(SettingsError, match="install it with: pip install torch_xla"):
        device_of("xla")


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingsError, match="no precision 'int8'; choose one of: fp32, bf16, fp16"):
        Precision("int8", CPU)


def test_an_overflow_halves_the_scale_and_two_thousand_good_steps_double_it():
    scaler = LossScaler(scale=8.0)
    assert scaler.update(float("inf"))
    assert scaler == LossScaler(4.0, 0)
    assert not any(scaler.update(1.0) for _ in range(1_999))
    assert scaler == LossScaler(4.0, 1_999)
    assert not scaler.update(1.0)
    assert scaler == LossScaler(8.0, 0)


def test_gradients_that_overflow_at_scale_one_are_no_overflow_of_scaling():
    scaler = LossScaler(scale=1.0)
    assert not scaler.update(float("nan"))
    assert scaler.scale == 1.0


@pytest.mark.parametrize(("name", "bound"), [("bf16", 2**-6), ("fp16", 2**-9)])
def test_half_precision_gives_nearly_the_same_loss_and_gradients(name: str, bound: float):
    """bf16 has 8 significant bits and fp16 11: the bounds are four units in the last place."""
    full, half = build_module(), build_module()
    batch, seeds = random_batch(), DropoutSeeds(torch.tensor(5, dtype=torch.int32))
    scales = {"mlm": 1 / 5, "nsp": 1 / 4}
    exact = full(batch, scales, seeds)
    with Precision(name, CPU).autocast():
        rounded = half(batch, scales, seeds)
    exact.value.backward()
    rounded.value.backward()
    assert abs(rounded.value.item() - exact.value.item()) < bound * exact.value.item()
    assert {parameter.grad.dtype for parameter in half.parameters()} == {torch.float32}
    expected, actual = (
        torch.cat([parameter.grad.flatten() for parameter in module.parameters()]) for module in (full, half)
    )
    assert float((actual - expected).norm()) < bound * float(expected.norm())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_training_in_half_precision_reduces_the_loss(name: str):
    module = build_module()
    losses = [step.losses["mlm"] for step in train(build_training(module, Precision(name, CPU), 30), TrainState())]
    assert losses[-1] < losses[0] - 0.5
    scores = evaluate(module, [random_batch()], Precision(name, CPU))
    assert scores.losses["mlm"] < losses[0] - 0.5


def test_an_overflow_changes_neither_parameters_nor_moments_and_is_reported():
    module = build_module()
    before = copy.deepcopy(module.state_dict())
    training = build_training(module, Precision("fp16", CPU), 3)
    train_state = TrainState(loss_scaler=LossScaler(scale=2.0**60))  # every fp16 gradient overflows
    step = next(train(training, train_state))
    assert step.has_overflow
    assert train_state.num_overflows == 1
    assert train_state.loss_scaler.scale == 2.0**59
    assert training.optimizer.num_steps == 0
    for name, values in module.state_dict().items():
        assert torch.equal(values, before[name]), name


def test_loss_scaling_does_not_change_a_step():
    """A power of two changes only exponents: in fp32 the step is bit-identical."""
    unscaled, scaled = build_module(), build_module()
    for module, scale in ((unscaled, 1.0), (scaled, 1024.0)):
        loss = module(random_batch(), {"mlm": 0.2, "nsp": 0.25}, DropoutSeeds(torch.tensor(1, dtype=torch.int32)))
        (loss.value * scale).backward()
    norms = [
        BertAdam(module, AdamSettings()).step(1e-3, scale) for module, scale in ((unscaled, 1.0), (scaled, 1024.0))
    ]
    assert norms[0] == norms[1]
    for name, values in unscaled.state_dict().items():
        assert torch.equal(values, scaled.state_dict()[name]), name


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_activation_checkpointing_gives_bit_identical_gradients(name: str):
    plain, checkpointed = build_module(), build_module()
    checkpointed.encoder.activation_checkpointing = True
    seeds = DropoutSeeds(torch.tensor(3, dtype=torch.int32))
    for module in (plain, checkpointed):
        module.train()
        with Precision(name, CPU).autocast():
            loss = module(random_batch(), {"mlm": 0.2, "nsp": 0.25}, seeds)
        loss.value.backward()
    for (name, expected), actual in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(actual.grad, expected.grad), name


def test_activation_checkpointing_saves_fewer_tensors():
    def num_saved_values(module: MlmModule) -> int:
        counts = []
        pack = lambda values: counts.append(values.numel()) or values  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda values: values):
            module(
                random_batch(),
                {"mlm": 0.2, "nsp": 0.25},
                DropoutSeeds(torch.tensor(3, dtype=torch.int32)),
            )
        return sum(counts)

    plain, checkpointed = build_module(), build_module()
    checkpointed.encoder.activation_checkpointing = True
    assert num_saved_values(checkpointed) < 0.5 * num_saved_values(plain)


def test_all_tensors_of_a_batch_move_to_a_device():
    batch = random_batch()
    assert batch.to(CPU) is batch
    moved = batch.to(torch.device("meta"))
    for tensor in (
        moved.input_ids,
        moved.token_type_ids,
        moved.lengths,
        moved.positions,
        moved.targets,
        moved.labels["nsp"],
    ):
        assert tensor.device.type == "meta"
    assert moved.attention is None
