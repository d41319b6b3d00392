"""The permutation language model: its loss is transformers', and everything that is asked is trained."""

from dataclasses import replace

import pytest
import torch
import transformers

from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.encoders.bert import Bert
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertConfig
from bertworks.encoders.xlnet import Xlnet, config_from_preset, config_to_dict, tensor_names
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import combine_name_tables, load_into
from bertworks.objectives.permutation import PermutationLmObjective
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = replace(
    config_from_preset("tiny", 60),
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (2, 10), generator=generator)
    permutation = torch.zeros_like(ids)
    permutation[0, [2, 5, 6]] = torch.tensor([3, 1, 2])
    permutation[1, [1, 4, 8]] = torch.tensor([2, 3, 1])
    places = torch.nonzero(permutation.flatten()).flatten()
    return Batch(
        ids, torch.zeros_like(ids), torch.tensor([10, 10]), positions=places, targets=ids.flatten()[places],
        permutation=permutation,
    )  # fmt: skip


def test_the_loss_is_that_of_transformers():
    module = PermutationLmObjective(Xlnet(SIZES, torch.Generator().manual_seed(0))).eval()
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**config_to_dict(SIZES, []))).eval()
    with torch.no_grad():
        peer.lm_loss.bias.normal_(generator=torch.Generator().manual_seed(2))
    names = combine_name_tables({"encoder": tensor_names(SIZES), "head": family_of("xlnet").heads["permutation"]})
    load_into(module, dict(peer.state_dict()), names)
    given = batch()
    assert given.positions is not None
    assert given.permutation is not None
    assert given.targets is not None
    told = given.permutation
    may_not = told[:, None, :] >= told.clamp(min=1)[..., None]
    mapping = torch.nn.functional.one_hot(given.positions.view(2, 3) % 10, 10).float()
    with torch.no_grad():
        found = module(given, {"permutation": 1 / 6})
        expected = peer(
            given.input_ids, token_type_ids=given.token_type_ids, perm_mask=may_not.float(), target_mapping=mapping,
            labels=given.targets.view(2, 3),
        ).loss  # fmt: skip
    assert module.counts(given) == {"permutation": 6}
    assert abs(float(found.value) - float(expected)) < 1e-5
    assert found.parts["permutation"].count == 6


def test_everything_that_learns_has_a_gradient():
    module = OBJECTIVES["permutation"](Xlnet(SIZES, torch.Generator().manual_seed(0)), None)
    module(batch(), {"permutation": 1 / 6}).value.backward()
    lacking = [name for name, one in module.named_parameters() if one.requires_grad and one.grad is None]
    assert lacking == []
    assert not module.encoder.pooler.weight.requires_grad


def test_an_encoder_without_a_second_stream_is_refused_when_the_recipe_is_read():
    with pytest.raises(SettingsError, match="'bert' cannot learn by the objective 'permutation'"):
        PretrainRecipe(objective="permutation")
    with pytest.raises(
        SettingsError, match="'xlnet' cannot learn by the objective 'mlm'; choose one of: causal, causal-stream, per"
    ):
        PretrainRecipe(ModelRecipe(family="xlnet"), objective="mlm")
    with pytest.raises(AssertionError):
        PermutationLmObjective(Bert(BertConfig.from_preset("tiny", 60)))
