"""Formats of model folders: old PyTorch conversions, DataParallel, a StaticEmbedding, and their peers' outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from family_models import randomize_weights
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from small_models import CONFIG, TOKENS, write_pretrained, write_sentence_model

import bertworks
from bertworks.encoders.config import config_to_dict
from bertworks.errors import FolderError
from bertworks.models.folder import load_encoder, read_folder
from bertworks.models.folder_sources import open_source
from bertworks.vocabulary.algorithms import wordpiece_backend

# What a bert_config.json does not have.
KEYS = ("model_type", "architectures")
TEXTS = ["the cat sat on the mat.", "good", "", "the unknownword 我喜欢"]


def write_masked_lm(folder: Path) -> transformers.BertForMaskedLM:
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForMaskedLM"]))
    theirs = randomize_weights(transformers.BertForMaskedLM(config))
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return theirs


def test_a_bert_config_is_that_of_a_bert_whose_tensors_have_no_prefix(tmp_path: Path):
    peer = write_masked_lm(tmp_path)
    torch.save(peer.bert.state_dict(), tmp_path / "pytorch_model.bin")
    settings = {key: value for key, value in config_to_dict(CONFIG, []).items() if key not in KEYS}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(FolderError, match=r"config\.json has no model_type; add one of: bert"):
        read_folder(tmp_path)  # it may be a RoBERTa, which has tensors of the same names
    (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
    assert read_folder(tmp_path).config["model_type"] == "bert"


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_bert_config_with_a_bin_is_read_whatever_wrapped_the_model(prefix: str, tmp_path: Path):
    theirs = write_masked_lm(tmp_path)
    torch.save({prefix + name: values for name, values in theirs.state_dict().items()}, tmp_path / "pytorch_model.bin")
    settings = {key: value for key, value in config_to_dict(CONFIG, []).items() if key not in KEYS}
    (tmp_path / "bert_config.json").write_text(json.dumps(settings))
    model = bertworks.load(tmp_path)
    input_ids = torch.tensor([model.tokenizer.encode("the cat sat").input_ids])
    with torch.inference_mode():
        expected = theirs.bert(input_ids).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(model.encode(["the cat sat"])[0], expected, atol=1e-5)
    assert model.mlm_head is not None
    assert model.encoder.config.hidden_act == "gelu"  # that of the conversion, not of Google's code


def test_a_bare_xlnet_is_read(tmp_path: Path):
    config = transformers.XLNetConfig(vocab_size=40, d_model=24, n_layer=2, n_head=3, d_inner=48)
    theirs = randomize_weights(transformers.XLNetModel(config))
    theirs.save_pretrained(tmp_path)
    encoder, report = load_encoder(read_folder(tmp_path))
    assert report.unexpected_keys == ()
    assert torch.equal(encoder.mask_embedding, theirs.mask_emb)


def static_backend(specials: tuple[str, ...]) -> tokenizers.Tokenizer:
    backend = wordpiece_backend(TOKENS, cased=False)
    content = json.loads(backend.to_str())
    kept = [token for token in TOKENS if token in specials or not token.startswith("[")]
    content["model"]["vocab"] = {token: index for index, token in enumerate(kept)}
    content["added_tokens"] = []
    content["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(content))


@pytest.mark.parametrize("specials", [tuple(TOKENS[:5]), ("[PAD]", "[UNK]")])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_static_embedding_has_the_vectors_of_sentence_transformers(
    specials: tuple[str, ...], normalize: bool, tmp_path: Path
):
    backend = static_backend(specials)
    table = torch.randn(backend.get_vocab_size(), 12, generator=torch.Generator().manual_seed(0))
    modules = [StaticEmbedding(backend, embedding_weights=table), *([Normalize()] if normalize else [])]
    peer = SentenceTransformer(modules=modules, device="cpu")
    peer.save(str(tmp_path / "static"))
    model = bertworks.load(tmp_path / "static")
    np.testing.assert_allclose(model.encode(TEXTS), peer.encode(TEXTS), atol=1e-6)
    long = ["the cat sat on the mat and it was good " * 200]
    np.testing.assert_allclose(model.encode(long), peer.encode(long), atol=1e-5)
    np.testing.assert_allclose(model.encode(long, truncate=True), peer.encode(long), atol=1e-5)  # it has no limit
    rows = [(text, "ab"[index % 2]) for index, text in enumerate(filter(None, TEXTS))]
    tuned = bertworks.finetune("classify", model=model, train=rows, output=tmp_path / "run", epochs=1)
    peer = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    np.testing.assert_allclose(tuned.encode(TEXTS), peer.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("settings", [{"model_max_length": 9}, {"model_max_length": 9, "truncation_side": "left"}])
def test_the_length_and_side_of_truncation_are_those_of_the_tokenizer(tmp_path: Path, settings: dict[str, object]):
    folder = write_pretrained(tmp_path / "model")
    (folder / "bertworks.json").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    texts = ["the cat sat", "the cat sat on the mat and it was good, very charming"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(bertworks.load(folder).encode(texts, truncate=True), expected, atol=1e-6)


def test_an_encoder_in_its_own_folder_is_read_as_by_sentence_transformers(tmp_path: Path):
    folder, encoder = tmp_path / "model", tmp_path / "model" / "0_Transformer"
    write_sentence_model(encoder)
    (encoder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    modules = [
        {"idx": index, "name": kind, "path": f"{index}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(("Transformer", "Pooling", "Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (encoder / "1_Pooling").rename(folder / "1_Pooling")
    (encoder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 24, "pooling_mode_mean_tokens": true}'
    )
    texts = ["the cat sat", "the cat sat on the mat and it was good"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(bertworks.load(folder).encode(texts, truncate=True), expected, atol=1e-6)
    bertworks.export(folder, "safetensors-fp16", tmp_path / "exported", difference=1.0)
    assert not (tmp_path / "exported" / "0_Transformer").exists()
    exported = bertworks.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.encode(texts, truncate=True), expected, atol=1e-2)


def test_a_static_embedding_in_its_own_folder_and_that_of_model2vec_are_read(tmp_path: Path):
    table = torch.randn(len(TOKENS), 4, generator=torch.Generator().manual_seed(1))
    weights = torch.rand(len(TOKENS), generator=torch.Generator().manual_seed(2))
    for name, path, tensors in (
        ("old", "0_StaticEmbedding", {"embedding.weight": table}),
        ("model2vec", ".", {"embeddings": table, "weights": weights, "mapping": torch.arange(len(TOKENS))}),
    ):
        folder = tmp_path / name
        (folder / path).mkdir(parents=True, exist_ok=True)
        module = {"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models.StaticEmbedding"}
        (folder / "modules.json").write_text(json.dumps([module]))
        save_file(tensors, folder / path / "model.safetensors")
        wordpiece_backend(TOKENS, cased=False).save(str(folder / path / "tokenizer.json"))
    ids = [TOKENS.index(token) for token in ("the", "cat")]
    expected = table[ids].mean(0)
    np.testing.assert_allclose(bertworks.load(tmp_path / "old").encode(["the cat"])[0], expected, atol=1e-6)
    weighted = (table[ids] * weights[ids, None]).mean(0)
    np.testing.assert_allclose(bertworks.load(tmp_path / "model2vec").encode(["the cat"])[0], weighted, atol=1e-6)


def test_a_folder_without_weights_is_refused(tmp_path: Path):
    with pytest.raises(FolderError, match="has no weights; it needs one of"):
        open_source(tmp_path)


def test_a_sentence_model_that_begins_with_a_router_is_refused_by_its_name(tmp_path: Path):
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.router.Router"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(FolderError, match=r"modules\.json: a model that begins with the module 'Router'"):
        open_source(tmp_path)


def test_the_folder_of_a_run_names_its_model(tmp_path: Path):
    write_pretrained(tmp_path / "run" / "model")
    with pytest.raises(FolderError, match=r"run is the folder of a run; give that of its model: .*run/model$"):
        open_source(tmp_path / "run")
