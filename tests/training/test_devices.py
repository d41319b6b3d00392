"""Devices and precision: what is refused, how fp16 finds its scale, and how near half precision stays to full."""

import copy

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.objectives.mlm import MlmObjective
from bertworks.sampling.batch import Batch
from bertworks.training.devices import LossScaler, Precision, device_of
from bertworks.training.evaluation import evaluate
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

CPU = torch.device("cpu")
SIZES = BertConfig(50, 32, 2, 4, 64, 32)

pytestmark = pytest.mark.usefixtures("one_thread")


def module_of(sizes: BertConfig = SIZES) -> MlmObjective:
    generator = torch.Generator().manual_seed(0)
    return MlmObjective(Bert(sizes, generator), generator)


def batch_of_random_pieces(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (4, 12), generator=generator)
    places = torch.tensor([1, 14, 15, 30, 47])
    labels = {"pair": torch.tensor([0, 1, 1, 0])}
    lengths = torch.full((4,), 12)
    return Batch(ids, torch.zeros_like(ids), lengths, positions=places, targets=ids.flatten()[places], labels=labels)


def training_of(module: MlmObjective, precision: Precision, num_steps: int) -> Training:
    optimizer = BertAdam(module, AdamSettings())
    pace = StepSchedule((num_steps,), 1, 1e-3)
    return Training(
        module=module,
        trainable=module,
        optimizer=optimizer,
        schedule=pace,
        get_batches=lambda *_: [batch_of_random_pieces()],
        seed=0,
        precision=precision,
    )


def test_auto_is_the_first_device_that_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_of("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == CPU


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"this machine has no cuda.*choose --device cpu"):
        device_of("cuda")
    with pytest.raises(SettingsError, match="no device 'gpu'; choose one of: auto, cpu, cuda, mps, xla"):
        device_of("gpu")


def test_a_tpu_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_xla", None)
    with pytest.raises(MissingDependencyError, match="torch_xla"):
        device_of("xla")


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingsError, match="no precision 'int8'; choose one of: fp32, bf16, fp16"):
        Precision("int8", CPU)


def test_the_scale_is_halved_by_an_overflow_and_doubled_after_two_thousand_good_steps():
    scaling = LossScaler(scale=8.0)
    assert scaling.update(float("inf"))
    assert scaling == LossScaler(4.0, 0)
    assert not any(scaling.update(1.0) for _ in range(1_999))
    assert scaling == LossScaler(4.0, 1_999)
    assert not scaling.update(1.0)
    assert scaling == LossScaler(8.0, 0)


def test_slopes_that_overflow_unscaled_are_no_fault_of_the_scale():
    scaling = LossScaler(scale=1.0)
    assert not scaling.update(float("nan"))
    assert scaling.scale == 1.0


@pytest.mark.parametrize(("name", "bound"), [("bf16", 2**-6), ("fp16", 2**-9)])
def test_half_precision_gives_nearly_the_same_loss_and_slopes(name: str, bound: float):
    """bf16 keeps 8 bits of a number and fp16 11: the bounds are four units of their last place."""
    whole, half = module_of(), module_of()
    batch, seeds = batch_of_random_pieces(), DropoutSeeds(torch.tensor(5, dtype=torch.int32))
    scales = {"masked": 1 / 5, "pair": 1 / 4}
    exact = whole(batch, scales, seeds)
    with Precision(name, CPU).autocast():
        near = half(batch, scales, seeds)
    exact.value.backward()
    near.value.backward()
    assert abs(near.value.item() - exact.value.item()) < bound * exact.value.item()
    assert {one.grad.dtype for one in half.parameters()} == {torch.float32}
    slopes = [torch.cat([one.grad.flatten() for one in module.parameters()]) for module in (whole, half)]
    assert float((slopes[1] - slopes[0]).norm()) < bound * float(slopes[0].norm())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_run_in_half_precision_learns(name: str):
    module = module_of()
    losses = [step.losses["masked"] for step in train(training_of(module, Precision(name, CPU), 30), TrainState())]
    assert losses[-1] < losses[0] - 0.5
    scores = evaluate(module, [batch_of_random_pieces()], Precision(name, CPU))
    assert scores.losses["masked"] < losses[0] - 0.5


def test_an_overflow_leaves_parameters_and_moments_alone_and_is_told():
    module = module_of()
    before = copy.deepcopy(module.state_dict())
    training = training_of(module, Precision("fp16", CPU), 3)
    standing = TrainState(loss_scaler=LossScaler(scale=2.0**60))  # no slope of fp16 survives that
    step = next(train(training, standing))
    assert step.has_overflow
    assert standing.num_overflows == 1
    assert standing.loss_scaler.scale == 2.0**59
    assert training.optimizer.num_steps == 0
    for name, values in module.state_dict().items():
        assert torch.equal(values, before[name]), name


def test_scaling_does_not_change_a_step():
    """A power of two changes exponents only: in full precision the step is the same to the bit."""
    one, other = module_of(), module_of()
    for module, scale in ((one, 1.0), (other, 1024.0)):
        loss = module(
            batch_of_random_pieces(), {"masked": 0.2, "pair": 0.25}, DropoutSeeds(torch.tensor(1, dtype=torch.int32))
        )
        (loss.value * scale).backward()
    norms = [BertAdam(module, AdamSettings()).step(1e-3, scale) for module, scale in ((one, 1.0), (other, 1024.0))]
    assert norms[0] == norms[1]
    for name, values in one.state_dict().items():
        assert torch.equal(values, other.state_dict()[name]), name


def test_recomputing_layers_gives_the_same_slopes_to_the_bit():
    kept, again = module_of(), module_of()
    again.encoder.activation_checkpointing = True
    seeds = DropoutSeeds(torch.tensor(3, dtype=torch.int32))
    for module in (kept, again):
        module.train()
        module(batch_of_random_pieces(), {"masked": 0.2, "pair": 0.25}, seeds).value.backward()
    for (name, one), other in zip(kept.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_recomputing_keeps_less_between_the_two_ways():
    def saved(module: MlmObjective) -> int:
        sizes = []
        pack = lambda values: sizes.append(values.numel()) or values  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda values: values):
            module(
                batch_of_random_pieces(),
                {"masked": 0.2, "pair": 0.25},
                DropoutSeeds(torch.tensor(3, dtype=torch.int32)),
            )
        return sum(sizes)

    kept, again = module_of(), module_of()
    again.encoder.activation_checkpointing = True
    assert saved(again) < 0.5 * saved(kept)


def test_a_batch_goes_to_a_device_whole():
    batch = batch_of_random_pieces()
    assert batch.to(CPU) is batch
    moved = batch.to(torch.device("meta"))
    for tensor in (
        moved.input_ids,
        moved.token_type_ids,
        moved.lengths,
        moved.positions,
        moved.targets,
        moved.labels["pair"],
    ):
        assert tensor.device.type == "meta"
    assert moved.attention is None
