"""ELECTRA: embeddings of the hidden size have no projection, and the generator's sizes."""

import pytest
import torch
import transformers
from random_weights import randomize_parameters

from bertworks.encoders.electra import Electra, ElectraConfig, ElectraGenerator, generator_tensor_names, tensor_names
from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = ElectraConfig(vocab_size=70).resized(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_length=40, embedding_size=24
)


def test_embeddings_of_the_hidden_size_are_not_projected():
    peer_config = transformers.AutoConfig.for_model(**family_of("electra").config_to_dict(CONFIG, []))
    peer = randomize_parameters(transformers.ElectraModel(peer_config)).eval()
    ours = Electra(CONFIG).eval()
    weights = {f"electra.{name}": values for name, values in peer.state_dict().items()}
    report = load_into(ours, weights, tensor_names(CONFIG))
    assert report.unexpected_keys == ()
    assert report.missing_keys == ("electra.pooler.weight", "electra.pooler.bias")
    input_ids = torch.arange(5, 14)[None]
    batch = Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([9]))
    with torch.no_grad():
        difference = ours(batch).to_padded() - peer(input_ids).last_hidden_state
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("generator_size", "expected"), [(0.25, (6, 1, 12)), (0.5, (12, 2, 24)), (0.9, (20, 4, 43)), (0.01, (1, 1, 1))]
)
def test_the_generator_has_a_part_of_each_size_and_whole_heads(generator_size: float, expected: tuple[int, int, int]):
    config = CONFIG.resized(generator_size=generator_size).generator_config
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == expected
    assert (config.num_hidden_layers, config.embedding_size) == (2, 24)
    assert set(generator_tensor_names(config)) == set(ElectraGenerator(config).state_dict())


@pytest.mark.parametrize("generator_size", [0.0, 1.0, -0.5])
def test_a_generator_of_no_size_or_of_the_discriminator_s_is_refused(generator_size: float):
    with pytest.raises(SettingsError, match=r"generator_size is .*; it must be between 0 and 1"):
        CONFIG.resized(generator_size=generator_size)


def test_another_summary_is_refused():
    config_dict = family_of("electra").config_to_dict(CONFIG, [])
    with pytest.raises(SettingsError, match="summary_type is 'last', but only 'first' is supported"):
        family_of("electra").config_from_dict({**config_dict, "summary_type": "last"})
