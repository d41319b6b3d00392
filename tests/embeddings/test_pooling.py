"""Pooling by hand, and the pooling settings of sentence-transformers folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize as PeerNormalize
from sentence_transformers.sentence_transformer.modules import Pooling as PeerPooling
from small_models import write_pretrained

import bertworks
from bertworks.embeddings.pooling import POOLINGS, Pooling, read_pooling
from bertworks.errors import FolderError, InputError, SettingsError

WINDOW = np.array([[1.0, 9.0], [3.0, 2.0], [5.0, 4.0]], dtype=np.float32)
ALL = slice(0, 3)


def pool(pooling: Pooling, *windows: tuple[npt.NDArray[np.float32], slice]) -> list[float]:
    count = sum(positions.stop - positions.start for _, positions in windows)
    return pooling.combine([pooling.pool(*window) for window in windows], count).tolist()


@pytest.mark.parametrize(
    ("kind", "vector"),
    [
        ("mean", [3.0, 5.0]),
        ("cls", [1.0, 9.0]),
        ("max", [5.0, 9.0]),
        ("lasttoken", [5.0, 4.0]),
        ("mean_sqrt_len_tokens", pytest.approx([9 / 3**0.5, 15 / 3**0.5])),
        ("weightedmean", pytest.approx([22 / 6, 25 / 6])),  # (1 + 2 * 3 + 3 * 5) / 6, (9 + 2 * 2 + 3 * 4) / 6
    ],
)
def test_pooling_of_one_window(kind: str, vector: list[float]):
    assert pool(Pooling(kinds=(kind,)), (WINDOW, ALL)) == vector


@pytest.mark.parametrize(("kind", "vector"), [("mean", [4.0, 2.0]), ("cls", [4.0, 5.0]), ("max", [5.0, 4.0])])
def test_only_the_given_positions_of_windows_are_pooled(kind: str, vector: list[float]):
    second_window = np.array([[7.0, 1.0], [4.0, 0.0], [99.0, 99.0]], dtype=np.float32)
    # (3, 2), (5, 4) and (4, 0) count: their mean is (4, 2); the first tokens are (1, 9) and (7, 1)
    assert pool(Pooling(kinds=(kind,)), (WINDOW, slice(1, 3)), (second_window, slice(1, 2))) == vector


def test_kinds_are_concatenated_and_normalized_together():
    assert pool(Pooling(kinds=("cls", "max")), (WINDOW, ALL)) == [1.0, 9.0, 5.0, 9.0]
    normalized = pool(Pooling(kinds=("mean",), normalize=True), (WINDOW, ALL))
    assert normalized == pytest.approx([3 / 34**0.5, 5 / 34**0.5])


def test_an_unknown_pooling_is_rejected():
    with pytest.raises(SettingsError, match="no pooling 'median'; choose one of: mean, cls, max, lasttoken"):
        Pooling().with_kind("median")


def test_poolings_have_the_names_of_sentence_transformers():
    assert set(POOLINGS) == set(PeerPooling.POOLING_MODES)


@pytest.mark.parametrize(
    ("alias", "kind", "vector"),
    [
        ("first", "cls", [1.0, 9.0]),
        ("last_token", "lasttoken", [5.0, 4.0]),
        ("mean_sqrt_len", "mean_sqrt_len_tokens", pytest.approx([9 / 3**0.5, 15 / 3**0.5])),
    ],
)
def test_other_names_of_a_pooling_are_read(alias: str, kind: str, vector: list[float]):
    pooling = Pooling().with_kind(alias)
    assert pooling.kinds == (kind,)
    assert pool(pooling, (WINDOW, ALL)) == vector


def test_with_kind_keeps_the_other_settings():
    assert Pooling(normalize=True, max_length=64).with_kind("max") == Pooling(
        kinds=("max",), normalize=True, max_length=64, is_explicit=True
    )


def folder_with(path: Path, modules: list[str], files: dict[str, Any]) -> Path:
    entries = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{module}" if index else "",
            "type": f"some.package.{module}",
        }
        for index, module in enumerate(modules)
    ]
    for name, config in {"modules.json": entries, **files}.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(config), encoding="utf-8")
    return path


def test_minilm_has_normalized_mean_pooling_and_256_positions(minilm: Path):
    assert read_pooling(minilm) == Pooling(kinds=("mean",), normalize=True, max_length=256, is_explicit=True)


def test_a_folder_without_modules_json_has_default_mean_pooling(tmp_path: Path):
    assert read_pooling(tmp_path) == Pooling(kinds=("mean",), normalize=False, max_length=None, is_explicit=False)


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
        ({"pooling_mode": "max"}, ("max",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"embedding_dimension": 8}, ("mean",)),
    ],
)
def test_old_switches_and_new_names_are_both_supported(tmp_path: Path, config: dict[str, Any], kinds: tuple[str, ...]):
    folder = folder_with(tmp_path, ["Transformer", "Pooling"], {"1_Pooling/config.json": config})
    assert read_pooling(folder) == Pooling(kinds=kinds, is_explicit=True)


def test_length_case_and_prompt_are_read(tmp_path: Path):
    files = {
        "1_Pooling/config.json": {},
        "tokenizer_config.json": {"model_max_length": 128},
        "sentence_bert_config.json": {"do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"find": "Find: "}, "default_prompt_name": "find"},
    }
    pooling = read_pooling(folder_with(tmp_path, ["Transformer", "Pooling", "Normalize"], files))
    assert pooling == Pooling(
        kinds=("mean",), normalize=True, max_length=128, lower_case=True, prompt="Find: ", is_explicit=True
    )
    assert pooling.prepare_text("Emma") == "find: emma"


@pytest.mark.parametrize(
    ("modules", "files", "message"),
    [
        (["Transformer", "Pooling", "WordWeights"], {"1_Pooling/config.json": {}}, "module 'WordWeights' is not"),
        (
            ["Transformer", "Pooling", "Normalize"],
            {"1_Pooling/config.json": {}, "2_Normalize/config.json": {"module_input_name": "token_embeddings"}},
            "a Normalize module of other values than the sentence embedding",
        ),
        (["Transformer", "Pooling", "Dense"], {"1_Pooling/config.json": {}}, "2_Dense has no weights"),
        (["Transformer"], {}, "has no Pooling"),
        (["Transformer", "Pooling"], {"1_Pooling/config.json": {"pooling_mode": "median"}}, "pooling 'median'"),
        (["Transformer", "Pooling"], {"1_Pooling/config.json": [1]}, "must contain a JSON object"),
        (["Transformer", "Pooling"], {}, "1_Pooling has no config.json, which states the pooling"),
        (
            ["Transformer", "Pooling"],
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False, "pooling_mode_attention": True}},
            "states pooling_mode_attention, which is not supported",
        ),
        ([], {"modules.json": {"type": "Pooling"}}, "must be a list of modules"),
        (
            ["Transformer", "Pooling"],
            {"1_Pooling/config.json": {}, "config_sentence_transformers.json": {"default_prompt_name": "q"}},
            "has the default prompt 'q'",
        ),
        (
            ["Transformer", "Pooling"],
            {"1_Pooling/config.json": {}, "config_sentence_transformers.json": {"truncate_dim": "8"}},
            "truncate_dim is '8'; it must be a number of components",
        ),
    ],
)
def test_unsupported_settings_are_rejected(tmp_path: Path, modules: list[str], files: dict[str, Any], message: str):
    with pytest.raises(FolderError, match=message):
        read_pooling(folder_with(tmp_path, modules, files))


def test_a_weighted_mean_counts_positions_from_the_beginning_of_the_text():
    """Two windows of a text of four tokens, weights 1 to 4: the second window's first position is that of token 2."""
    pooling = Pooling(kinds=("weightedmean",))
    values = np.array([[1.0], [2.0], [4.0], [8.0]], dtype=np.float32)
    partials = [pooling.pool(values[:2], slice(0, 2)), pooling.pool(values[1:], slice(1, 3), offset=1)]
    assert pooling.combine(partials, 4).tolist() == pytest.approx([(1 + 2 * 2 + 3 * 4 + 4 * 8) / 10])


def save_peer(folder: Path, *modules: Any, prompts: dict[str, str] | None = None) -> SentenceTransformer:
    """A small BERT with these modules of sentence-transformers, saved in `folder`."""
    write_pretrained(folder / "encoder", seed=5)
    transformer = Transformer(str(folder / "encoder"), max_seq_length=12)
    name = None if prompts is None else next(iter(prompts))
    peer = SentenceTransformer(modules=[transformer, *modules], device="cpu", prompts=prompts, default_prompt_name=name)
    peer.save(str(folder / "model"))
    return peer


SENTENCES = ["the cat sat", "good", "it was a very good film and the dog was not bad or dull in paris"]


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_every_pooling_has_the_vectors_of_sentence_transformers(mode: str, include_prompt: bool, tmp_path: Path):
    pooling = PeerPooling(24, pooling_mode=mode, include_prompt=include_prompt)
    peer = save_peer(tmp_path, pooling, prompts={"query": "who is it? "})
    ours = bertworks.load(tmp_path / "model").encode(SENTENCES, truncate=True)
    np.testing.assert_allclose(ours, peer.encode(SENTENCES), atol=1e-5)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_named_prompt_has_the_vectors_of_sentence_transformers(include_prompt: bool, tmp_path: Path):
    pooling = PeerPooling(24, pooling_mode="mean", include_prompt=include_prompt)
    peer = save_peer(tmp_path, pooling, prompts={"query": "who is it? ", "document": "the "})
    model = bertworks.load(tmp_path / "model")
    assert model.prompts == peer.prompts
    for name in ("query", "document"):
        ours = model.encode(SENTENCES, truncate=True, prompt_name=name)
        np.testing.assert_allclose(ours, peer.encode(SENTENCES, prompt_name=name), atol=1e-5)
        transformer = bertworks.BertTransformer(model, truncate=True, prompt_name=name)
        np.testing.assert_array_equal(transformer.fit_transform(SENTENCES), ours)
    with pytest.raises(InputError, match="the model has no prompt 'passage'; its prompts are: document, query"):
        model.encode(SENTENCES, prompt_name="passage")


@pytest.mark.parametrize("activation", [torch.nn.Tanh(), torch.nn.Identity()])
def test_dense_layers_have_the_vectors_of_sentence_transformers(activation: torch.nn.Module, tmp_path: Path):
    torch.manual_seed(0)
    dense = Dense(48, 7, activation_function=activation), Dense(7, 5, bias=False)
    peer = save_peer(tmp_path, PeerPooling(24, pooling_mode=["cls", "mean"]), *dense, PeerNormalize())
    model = bertworks.load(tmp_path / "model")
    np.testing.assert_allclose(model.encode(SENTENCES, truncate=True), peer.encode(SENTENCES), atol=1e-5)
    assert model.encode([]).shape == (0, 5)
    with pytest.raises(FolderError, match=r"2_Dense \(.*\) takes vectors of size 48, but gets 24"):
        model.encode(["the cat"], pooling="max")


def test_modules_have_any_order(tmp_path: Path):
    torch.manual_seed(0)
    norm = LayerNorm(5)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    peer = save_peer(tmp_path, PeerPooling(24), PeerNormalize(), Dense(24, 5), norm, PeerNormalize(), Dense(5, 4))
    model = bertworks.load(tmp_path / "model")
    np.testing.assert_allclose(model.encode(SENTENCES, truncate=True), peer.encode(SENTENCES), atol=1e-5)
    assert not model.pooling.normalize
    assert [module.name.split(" ")[0] for module in model.pooling.modules] == [
        "Normalize", "3_Dense", "4_LayerNorm", "Normalize", "6_Dense",
    ]  # fmt: skip


def test_a_stored_truncate_dim_is_the_size_of_the_vectors(tmp_path: Path):
    peer = save_peer(tmp_path, PeerPooling(24), PeerNormalize())
    peer.truncate_dim = 6
    peer.save(str(tmp_path / "model"))
    model = bertworks.load(tmp_path / "model")
    vectors = model.encode(SENTENCES, truncate=True)
    assert vectors.shape == (3, 6)
    np.testing.assert_allclose(vectors, SentenceTransformer(str(tmp_path / "model")).encode(SENTENCES), atol=1e-5)
    assert model.pooling.untruncated().output_size(24) == 24
    # More components than there are change nothing.
    assert Pooling(truncate_dim=99).output_size(24) == 24


def test_a_cross_encoder_has_modules_but_no_pooling_of_its_own(tmp_path: Path):
    files = {"config_sentence_transformers.json": {"model_type": "CrossEncoder"}}
    assert read_pooling(folder_with(tmp_path, ["Transformer"], files)) == Pooling()


def test_long_texts_have_windows_unless_they_are_truncated_as_in_sentence_transformers(tmp_path: Path):
    peer = save_peer(tmp_path, PeerPooling(24, pooling_mode="mean"))
    model = bertworks.load(tmp_path / "model")
    long = SENTENCES[2:]
    assert np.abs(model.encode(long) - peer.encode(long)).max() > 1e-3
    np.testing.assert_allclose(model.encode(long, truncate=True), peer.encode(long), atol=1e-5)
    np.testing.assert_allclose(bertworks.encode(tmp_path / "model", long, truncate=True), peer.encode(long), atol=1e-5)
