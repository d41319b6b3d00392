"""ERNIE: task type embeddings exist and are added only where the config says so."""

import torch
from random_weights import randomize_parameters

from bertworks.encoders.bert import Bert
from bertworks.encoders.ernie import Ernie, ErnieConfig, tensor_names
from bertworks.sampling.batch import Batch

CONFIG = ErnieConfig(vocab_size=70).resized(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, max_length=40
)


def make_batch() -> Batch:
    input_ids = torch.arange(5, 14)[None]
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([9]))


def test_without_task_types_it_is_a_bert():
    ernie, bert = (randomize_parameters(build(CONFIG)).eval() for build in (Ernie, Bert))
    with torch.no_grad():
        assert torch.equal(ernie(make_batch()).last_hidden_state, bert(make_batch()).last_hidden_state)
    assert not any("task_type" in name for name in tensor_names(CONFIG))


def test_the_embedding_of_the_first_task_type_is_added_to_every_token():
    encoder = randomize_parameters(Ernie(CONFIG.resized(use_task_id=True))).eval()
    assert isinstance(encoder, Ernie)
    batch = make_batch()
    with torch.no_grad():
        before = encoder(batch).last_hidden_state
        components = encoder.embedding_components(batch.input_ids[0], batch.token_type_ids[0])
        summed = encoder.norm(sum(components.values()))
        assert torch.allclose(summed, encoder(batch).hidden_states[0])
        encoder.task_type_embeddings.weight[1:] = 100.0  # of other tasks
        assert torch.equal(encoder(batch).last_hidden_state, before)
        encoder.task_type_embeddings.weight[0] += torch.arange(24)
        assert not torch.allclose(encoder(batch).last_hidden_state, before)
