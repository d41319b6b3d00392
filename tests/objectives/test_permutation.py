"""The permutation language model: its loss equals transformers', and only an XLNet has it."""

import pytest
import torch
import transformers

from bertworks.commands.pretrain.recipe import ModelRecipe, PretrainRecipe
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.config import config_to_dict
from bertworks.encoders.families import family_of
from bertworks.encoders.xlnet import Xlnet, XlnetConfig, tensor_names
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import combine_name_tables, load_into
from bertworks.objectives.permutation import PermutationLmModule
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = XlnetConfig(vocab_size=60, d_model=16, n_layer=2, n_head=2, d_inner=64, n_positions=32)


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 60, (2, 10), generator=generator)
    permutation = torch.zeros_like(input_ids)
    permutation[0, [2, 5, 6]] = torch.tensor([3, 1, 2])
    permutation[1, [1, 4, 8]] = torch.tensor([2, 3, 1])
    positions = torch.nonzero(permutation.flatten()).flatten()
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=torch.tensor([10, 10]),
        positions=positions,
        targets=input_ids.flatten()[positions],
        permutation=permutation,
    )


def test_the_loss_equals_that_of_transformers():
    module = PermutationLmModule(Xlnet(CONFIG, torch.Generator().manual_seed(0))).eval()
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**config_to_dict(CONFIG, []))).eval()
    with torch.no_grad():
        peer.lm_loss.bias.normal_(generator=torch.Generator().manual_seed(2))
    names = combine_name_tables({"encoder": tensor_names(CONFIG), "head": family_of("xlnet").heads["permutation"]})
    load_into(module, dict(peer.state_dict()), names)
    batch = make_batch()
    assert batch.positions is not None
    assert batch.permutation is not None
    assert batch.targets is not None
    order = batch.permutation
    perm_mask = order[:, None, :] >= order.clamp(min=1)[..., None]
    mapping = torch.nn.functional.one_hot(batch.positions.view(2, 3) % 10, 10).float()
    with torch.no_grad():
        loss = module(batch, {"permutation": 1 / 6})
        expected = peer(
            batch.input_ids, token_type_ids=batch.token_type_ids, perm_mask=perm_mask.float(), target_mapping=mapping,
            labels=batch.targets.view(2, 3),
        ).loss  # fmt: skip
    assert module.counts(batch) == {"permutation": 6}
    assert abs(float(loss.value) - float(expected)) < 1e-5
    assert loss.parts["permutation"].count == 6


def test_an_encoder_without_a_query_stream_is_refused_when_the_recipe_is_read():
    with pytest.raises(SettingsError, match="'bert' cannot be trained with the objective 'permutation'"):
        PretrainRecipe(objective="permutation")
    with pytest.raises(
        SettingsError,
        match="'xlnet' cannot be trained with the objective 'mlm'; choose one of: causal, c",
    ):
        PretrainRecipe(model=ModelRecipe(family="xlnet"), objective="mlm")
    with pytest.raises(AssertionError):
        PermutationLmModule(Bert(BertConfig.from_preset("tiny", 60)))
