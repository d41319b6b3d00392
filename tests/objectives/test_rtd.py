"""Replaced token detection against transformers' two ELECTRA models: the loss, every gradient, and what is replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from family_parity import small_config

from bertworks.commands.pretrain.build import tensor_names_of
from bertworks.encoders.electra import Electra, ElectraConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.objectives import rtd
from bertworks.objectives.registry import check_objective
from bertworks.objectives.rtd import RtdModule
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
BATCHES = {"full": (9, 9), "nearly full": (20, 19, 20), "ragged": (17, 3, 3, 8)}
EMBEDDING_SIZES = {"projected": 16, "projected for the generator": 24}


def make_config(embedding_size: int = 16) -> ElectraConfig:
    """A discriminator of hidden size 24 with 3 heads, and a generator of hidden size 8 with one."""
    config = small_config("electra").resized(embedding_size=embedding_size, generator_size=1 / 3)
    assert isinstance(config, ElectraConfig)
    return config


def make_peers(config: ElectraConfig) -> tuple[Any, Any]:
    """transformers' generator and discriminator with random weights and the same embeddings."""
    family, peers = family_of("electra"), []
    generator = torch.Generator().manual_seed(0)
    for name, size in (("ElectraForMaskedLM", config.generator_config), ("ElectraForPreTraining", config)):
        keys = family.config_to_dict(size, [])
        peer_config = transformers.AutoConfig.for_model(**keys, attn_implementation="eager")
        peer = getattr(transformers, name)(peer_config).eval()
        with torch.no_grad():
            for parameter in peer.parameters():
                parameter.normal_(0.05, 0.2, generator=generator)
        peers.append(peer)
    masked_lm, detector = peers
    masked_lm.electra.embeddings = detector.electra.embeddings
    masked_lm.generator_lm_head.weight = detector.electra.embeddings.word_embeddings.weight
    return masked_lm, detector


def make_module(config: ElectraConfig, masked_lm: Any, detector: Any) -> RtdModule:
    module = RtdModule(Electra(config)).eval()
    tensors = {f"generator.{name}": values for name, values in masked_lm.state_dict().items()}
    tied = {name: values for name, values in tensors.items() if ".embeddings." in name or name.endswith("head.weight")}
    tensors = {name: values for name, values in tensors.items() if name not in tied}
    report = load_into(module, {**tensors, **detector.state_dict()}, tensor_names_of(module))
    assert report.unexpected_keys == ()
    assert report.missing_keys == ("electra.pooler.weight", "electra.pooler.bias")
    return module


def make_batch(lengths: tuple[int, ...]) -> Batch:
    """Sequences of these lengths, with every fourth token masked: its id is 4."""
    generator, max_length = torch.Generator().manual_seed(1), max(lengths)
    input_ids = torch.randint(5, 70, (len(lengths), max_length), generator=generator)
    token_type_ids = torch.zeros_like(input_ids)
    for sequence, length in enumerate(lengths):
        token_type_ids[sequence, length // 2 : length] = 1
        input_ids[sequence, length:] = 0
    positions = torch.tensor(
        [
            sequence * max_length + position
            for sequence, length in enumerate(lengths)
            for position in range(1, length, 4)
        ]
    )
    targets = input_ids.flatten()[positions]
    input_ids.view(-1)[positions] = 4
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=torch.tensor(lengths),
        positions=positions,
        targets=targets,
    )


def fixed_samples(batch: Batch) -> torch.Tensor:
    """Every second sample is the original token."""
    assert batch.targets is not None
    return torch.where(torch.arange(len(batch.targets)) % 2 == 0, batch.targets, 69 - batch.targets % 60)


def peer_loss(masked_lm: Any, detector: Any, batch: Batch, samples: torch.Tensor) -> torch.Tensor:
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    inputs = {"attention_mask": mask, "token_type_ids": batch.token_type_ids}
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.positions] = batch.targets
    replaced_ids, is_replaced = batch.input_ids.flatten().clone(), torch.zeros(batch.input_ids.numel()).long()
    replaced_ids[batch.positions] = samples
    is_replaced[batch.positions] = (samples != batch.targets).long()
    generator_loss = masked_lm(batch.input_ids, labels=labels.view_as(mask), **inputs).loss
    detector_loss = detector(replaced_ids.view_as(mask), labels=is_replaced.view_as(mask), **inputs).loss
    return generator_loss + 50 * detector_loss


def mean_scales(module: RtdModule, batch: Batch) -> dict[str, float]:
    return {name: 1 / count for name, count in module.counts(batch).items()}


@pytest.mark.parametrize("embedding_size", EMBEDDING_SIZES.values(), ids=EMBEDDING_SIZES)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_loss_and_gradients_equal_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], embedding_size: int
):
    config, batch = make_config(embedding_size), make_batch(lengths)
    masked_lm, detector = make_peers(config)
    module = make_module(config, masked_lm, detector)
    samples = fixed_samples(batch)
    monkeypatch.setattr(rtd, "sample_tokens", lambda *_: samples)
    expected = peer_loss(masked_lm, detector, batch, samples)
    expected.backward()
    loss = module(batch, mean_scales(module, batch)).value
    loss.backward()
    assert abs(float(loss.detach() - expected.detach())) < 50 * TOLERANCE
    gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    names = tensor_names_of(module)
    assert set(names) - set(gradients) == {"encoder.pooler.weight", "encoder.pooler.bias"}
    written = to_hf_names(gradients, {name: theirs for name, theirs in names.items() if name in gradients})
    for name, values in written.items():
        peer = masked_lm if name.startswith("generator.") else detector
        gradient = peer.get_parameter(name.removeprefix("generator.")).grad
        scale = max(1.0, float(gradient.abs().max()))  # the weight of the detector's part is 50
        assert float((values - gradient).abs().max()) < TOLERANCE * scale, name


def test_a_sample_that_is_the_original_token_is_not_replaced(monkeypatch: pytest.MonkeyPatch):
    batch = make_batch((9, 5))  # positions 1 and 5 of the first sequence, 1 of the second
    module = RtdModule(Electra(make_config()), torch.Generator().manual_seed(0)).eval()
    torch.nn.init.zeros_(module.rtd_head.score.weight)
    torch.nn.init.constant_(module.rtd_head.score.bias, -1.0)  # nothing looks replaced
    replaced, original = F.softplus(torch.tensor(1.0)), F.softplus(torch.tensor(-1.0))
    for num_replaced in (0, 2):
        samples = batch.targets.clone()
        samples[:num_replaced] = 3
        monkeypatch.setattr(rtd, "sample_tokens", lambda *_, samples=samples: samples)
        part = module(batch, mean_scales(module, batch)).parts["rtd"]
        assert part.count == 14
        assert part.correct == 14 - num_replaced
        assert float(part.total) == pytest.approx(float(num_replaced * replaced + (14 - num_replaced) * original))


def test_models_are_selected_by_the_loss_of_the_generator():
    module, batch = RtdModule(Electra(make_config()), None).eval(), make_batch((9, 5))
    loss = module(batch, mean_scales(module, batch))
    assert list(loss.parts) == ["mlm", "rtd"]
    assert module.counts(batch) == {"mlm": 3, "rtd": 14}  # positions 1 and 5 of the first sequence, 1 of the second


def test_samples_follow_the_seeds_of_a_step(monkeypatch: pytest.MonkeyPatch):
    module, batch = RtdModule(Electra(make_config()), torch.Generator().manual_seed(0)), make_batch((20, 20))
    numbers = []
    sample_tokens = rtd.sample_tokens

    def spy(*args: Any) -> torch.Tensor:
        numbers.append(args[3].tolist())
        return sample_tokens(*args)

    monkeypatch.setattr(rtd, "sample_tokens", spy)
    seeds = [DropoutSeeds(torch.tensor(number, dtype=torch.int32)) for number in (5, 5, 6)]
    losses = [float(module(batch, mean_scales(module, batch), seed).value.detach()) for seed in (*seeds, None, None)]
    assert numbers[0] == numbers[1] != numbers[2]
    assert numbers[3] == numbers[4]
    assert losses[0] == losses[1] != losses[2]
    assert losses[3] == losses[4]


def test_only_electra_has_a_generator():
    check_objective("electra", "rtd")
    with pytest.raises(SettingsError, match="'bert' cannot be trained with the objective 'rtd'"):
        check_objective("bert", "rtd")
    bert = family_of("bert").build(small_config("bert"), None)
    with pytest.raises(SettingsError, match="'bert' has no generator for replaced token detection; choose electra"):
        RtdModule(bert)


def test_evaluation_without_gradients_has_the_same_loss():
    module = RtdModule(Electra(make_config()), torch.Generator().manual_seed(0)).eval()
    batch = make_batch((17, 3, 3, 8))
    scales = mean_scales(module, batch)
    trained = module(batch, scales)
    with torch.inference_mode():
        evaluated = module(replace(batch), scales)
    assert float(evaluated.value) == pytest.approx(float(trained.value.detach()), abs=1e-4)
    assert evaluated.parts["mlm"].correct is not None
