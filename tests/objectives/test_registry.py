"""One suite over every objective: names, families, examples and gradients; encoders are not changed."""

from __future__ import annotations

import pytest
import torch

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import CLASS_SUFFIXES, family_of
from bertworks.errors import SettingsError
from bertworks.objectives.objective import Objective, ObjectiveModule
from bertworks.objectives.registry import OBJECTIVES, check_objective, objective_of
from bertworks.sampling.batch import Batch
from bertworks.sampling.streams import Streams

pytestmark = pytest.mark.usefixtures("one_thread")
# A family that each objective is for.
FAMILIES = {
    "mlm-nsp": "bert",
    "mlm-sop": "albert",
    "mlm": "roberta",
    "causal": "bert",
    "causal-stream": "awd-lstm",
    "bilm": "elmo",
    "permutation": "xlnet",
    "permutation-stream": "xlnet",
    "rtd": "electra",
}


@pytest.fixture(params=list(OBJECTIVES.values()), ids=list(OBJECTIVES))
def objective(request: pytest.FixtureRequest) -> Objective:
    assert isinstance(request.param, Objective)
    return request.param


def make_config(objective: Objective) -> EncoderConfig:
    family = FAMILIES[objective.name]
    heads = {} if family in ("elmo", "awd-lstm") else {"num_attention_heads": 2}
    config = family_of(family).config_from_preset("tiny", 60)
    return config.resized(hidden_size=16, num_hidden_layers=2, intermediate_size=64, max_length=16, **heads)


def build(objective: Objective) -> ObjectiveModule:
    config, generator = make_config(objective), torch.Generator().manual_seed(0)
    return objective.build(family_of(config.model_type).build(config, generator), generator)


def make_batch(objective: Objective) -> Batch:
    input_ids = torch.randint(5, 60, (2, 10), generator=torch.Generator().manual_seed(1))
    permutation = torch.zeros_like(input_ids)
    permutation[0, [2, 5]], permutation[1, [1, 4]] = torch.tensor([2, 1]), torch.tensor([1, 2])
    positions = torch.nonzero(permutation.flatten()).flatten()
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.tensor([10, 10]),
        positions=positions,
        targets=input_ids.flatten()[positions],
        labels={"nsp": torch.tensor([0, 1])},
        permutation=permutation if "permutation" in objective.required_heads else None,
    )


def test_every_objective_has_a_family_and_tensor_names_for_its_heads(objective: Objective):
    family = FAMILIES[objective.name]
    check_objective(family, objective.name)
    module = build(objective)
    assert module.kind in CLASS_SUFFIXES
    for head, kind in module.heads.items():
        assert set(family_of(family).heads[kind]) == set(getattr(module, head).state_dict())


def test_stateful_objectives_sample_streams(objective: Objective):
    assert objective.is_stateful == (objective.sampler is Streams)


def test_all_used_parameters_get_a_gradient_and_the_unused_ones_none(objective: Objective):
    module, batch = build(objective), make_batch(objective)
    module(batch, {name: 1 / count for name, count in module.counts(batch).items()}).value.backward()
    unused = {name for name, parameter in module.named_parameters() if parameter.grad is None}
    prefixes = module.unused_parameters
    assert unused == {name for name, _ in module.named_parameters() if prefixes and name.startswith(prefixes)}
    assert all(not parameter.grad.is_sparse for parameter in module.parameters() if parameter.grad is not None)


def test_an_objective_does_not_change_its_encoder(objective: Objective):
    config = make_config(objective)
    encoder = family_of(config.model_type).build(config, torch.Generator().manual_seed(0))
    attention = encoder.attention
    module = objective.build(encoder, None)
    assert encoder.attention == attention
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert module.attention == ("causal" if "causal" in objective.name else attention)


def test_families_have_only_the_objectives_that_they_have_heads_for():
    for model_type, objective in (("elmo", "bilm"), ("bert", "mlm-nsp"), ("bert", "causal"), ("openai-gpt", "causal")):
        check_objective(model_type, objective)
    with pytest.raises(SettingsError, match="'bert' cannot be trained with the objective 'bilm'; choose one of: mlm"):
        check_objective("bert", "bilm")
    with pytest.raises(SettingsError, match="'elmo' cannot be trained with the objective 'mlm'"):
        check_objective("elmo", "mlm")
    with pytest.raises(SettingsError, match="'openai-gpt' cannot be trained with the objective 'causal-stream'"):
        check_objective("openai-gpt", "causal-stream")


def test_an_unknown_objective_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="there is no objective 'electra'; choose one of: mlm-nsp, mlm-sop, mlm"):
        objective_of("electra")
