"""Muon for layer matrices: equal to torch's on each matrix, Adam for all else; its state is restored exactly."""

import pytest
import torch
from torch import nn

from bertworks.encoders import precision
from bertworks.encoders.families import family_of
from bertworks.errors import FolderError, SettingsError
from bertworks.training import muon
from bertworks.training.muon import is_layer_matrix, orthogonalize
from bertworks.training.optimizer import AdamSettings, BertAdam, LayerwiseSettings

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = AdamSettings(name="muon", clip=0.0)


def encoder(seed: int = 0) -> nn.Module:
    family = family_of("bert")
    return family.build(family.config_from_preset("tiny", 50), torch.Generator().manual_seed(seed))


def set_gradients(module: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_the_matrices_of_layers_are_those_of_muon():
    names = [name for name, parameter in encoder().named_parameters() if is_layer_matrix(name, parameter)]
    kinds = ("attention.query_key_value", "attention.out", "intermediate", "output")
    assert names == [f"layers.{layer}.{kind}.weight" for layer in range(2) for kind in kinds]


def test_each_matrix_is_updated_as_by_torch(monkeypatch: pytest.MonkeyPatch):
    """Query, key and value are stacked in one parameter, and three matrices. torch computes in bf16."""
    monkeypatch.setattr(precision, "has_native_bf16", lambda: True)
    module = encoder()
    stacked = module.get_parameter("layers.0.attention.query_key_value.weight")
    single = module.get_parameter("layers.1.output.weight")
    parts = [part.clone() for part in stacked.detach().chunk(3)] + [single.detach().clone()]
    reference = torch.optim.Muon(parts, lr=1e-2, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    optimizer = BertAdam(module, SETTINGS)
    for step in range(3):
        set_gradients(module, step)
        for part, grad in zip(parts, [*stacked.grad.chunk(3), single.grad], strict=True):
            part.grad = grad.clone()
        reference.step()
        optimizer.step(1e-2)
    assert torch.equal(stacked, torch.cat(parts[:3]))
    assert torch.equal(single, parts[3])


@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (16, 16)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_an_orthogonalized_matrix_has_its_singular_vectors_and_values_near_one(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
):
    """The quintic iteration moves each singular value by itself, so the factors stay those of the matrix."""
    left, _, right = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    values = torch.linspace(0.2, 2, min(shape), dtype=torch.float64)
    result = orthogonalize((left * values @ right).float(), dtype)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3
    torch.testing.assert_close(result.double(), left * values @ right, atol=tolerance, rtol=0)


def test_a_processor_without_bf16_computes_in_fp32(monkeypatch: pytest.MonkeyPatch):
    """Emulated bf16 takes seconds for each step."""
    dtypes = []
    monkeypatch.setattr(muon, "orthogonalize", lambda matrix, dtype: dtypes.append(dtype) or matrix)
    for has_bf16 in (False, True):
        monkeypatch.setattr(precision, "has_native_bf16", lambda has_bf16=has_bf16: has_bf16)
        module = encoder()
        set_gradients(module, 0)
        BertAdam(module, SETTINGS).step(1e-3)
    assert set(dtypes[: len(dtypes) // 2]) == {torch.float32}
    assert set(dtypes[len(dtypes) // 2 :]) == {torch.bfloat16}


def test_all_else_is_updated_by_adam():
    with_muon, with_adam = encoder(), encoder()
    optimizers = [BertAdam(with_muon, SETTINGS), BertAdam(with_adam, AdamSettings(clip=0.0))]
    for module, optimizer in zip((with_muon, with_adam), optimizers, strict=True):
        set_gradients(module, 0)
        optimizer.step(1e-2)
    for (name, left), right in zip(with_muon.named_parameters(), with_adam.parameters(), strict=True):
        assert torch.equal(left, right) != is_layer_matrix(name, left), name


def test_the_restored_state_continues_bit_identically():
    whole, resumed = encoder(), encoder(1)
    first, second = BertAdam(whole, SETTINGS), BertAdam(resumed, SETTINGS)
    assert first.state() == {}
    for step in range(4):
        if step == 2:
            resumed.load_state_dict(whole.state_dict())
            second.restore(first.state(), 2)
        for module, optimizer in ((whole, first), (resumed, second))[: 1 + (step >= 2)]:
            set_gradients(module, step)
            optimizer.step(1e-2)
    assert all(torch.equal(left, right) for left, right in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert "momentum_buffer/layers.0.output.weight" in first.state()


def test_the_state_of_another_optimizer_is_refused():
    module = encoder()
    adam = BertAdam(module, AdamSettings())
    set_gradients(module, 0)
    adam.step(1e-2)
    with pytest.raises(FolderError, match="no optimizer state 'momentum_buffer/layers"):
        BertAdam(module, SETTINGS).restore(adam.state(), 1)


def test_settings_that_muon_cannot_follow_are_refused():
    with pytest.raises(SettingsError, match="one learning rate for all layers: use adam"):
        BertAdam(encoder(), SETTINGS, LayerwiseSettings(layer_lr_decay=0.9))
    with pytest.raises(SettingsError, match="for models with Transformer layers"):
        BertAdam(nn.Linear(2, 2), SETTINGS)
    with pytest.raises(SettingsError, match="no optimizer 'lamb'; choose one of: adam, muon"):
        AdamSettings(name="lamb")


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_embeddings_have_a_learning_rate_of_their_own(name: str):
    """The first step of Adam is the learning rate in size, whatever the gradient."""
    module = nn.Module()
    module.encoder = encoder()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    settings = AdamSettings(name=name, clip=0.0, weight_decay=0.0, eps=1e-12)
    optimizer = BertAdam(module, settings, LayerwiseSettings(embedding_lr_ratio=5.0))
    set_gradients(module, 0)
    optimizer.step(1e-3)
    for parameter_name, expected in {
        "encoder.token_embeddings.weight": 5e-3,
        "encoder.position_embeddings.weight": 5e-3,
        "encoder.layers.0.norm.weight": 1e-3,
        "encoder.pooler.weight": 1e-3,
    }.items():
        change = (module.get_parameter(parameter_name).detach() - before[parameter_name]).abs()
        assert float(change.median()) == pytest.approx(expected, rel=1e-3), parameter_name
