"""Search: the nearest vectors by hand, and texts of a file with and without vectors on disk."""

from pathlib import Path

import numpy as np
import pytest
from encoder_folder import write_random_bert

from bertworks.commands.search import SearchRequest, nearest, search
from bertworks.encoders.bert import BertConfig
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.vocabulary.tokenizer import Tokenizer

TEXTS = ["w1 w2 w3", "w4 w5", "", "w6 w7 w8", "w9", "w4 w5"]

pytestmark = pytest.mark.usefixtures("one_thread")


def write_model(path: Path, tokenizer: Tokenizer, seed: int) -> None:
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    write_random_bert(path, config, tokenizer, seed)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        write_model(folder / str(seed), tokenizer, seed)
    return folder


@pytest.fixture
def request_of(models: Path, tmp_path: Path) -> SearchRequest:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return SearchRequest(model=str(models / "0"), file=str(tmp_path / "texts.txt"), query="w4 w5", top_k=3)


def test_nearest_compares_by_cosine():
    vectors = np.array([[0.0, 5.0], [3.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [0.1, 0.0], [30.0, 40.0]])
    matches = nearest(np.array([2.0, 0.0], dtype=np.float32), [vectors[:2], vectors[2:5], vectors[5:]], top=4)
    assert [index for index, _ in matches] == [4, 1, 5, 0]  # ties in order
    assert [cosine for _, cosine in matches] == pytest.approx([1.0, 0.6, 0.6, 0.0])


def test_half_precision_vectors_are_compared_in_float32():
    vectors = np.full((1, 4), 300.0, dtype=np.float16)  # a square of 90,000 is beyond half precision
    assert nearest(np.ones(4, dtype=np.float32), [vectors], top=5) == [(0, pytest.approx(1.0))]


def test_the_same_text_is_nearest_and_ties_are_in_file_order(request_of: SearchRequest):
    hits = search(request_of)
    assert [(hit.number, hit.text) for hit in hits[:2]] == [(2, "w4 w5"), (6, "w4 w5")]
    assert [hit.cosine for hit in hits[:2]] == pytest.approx([1.0, 1.0])
    assert len(hits) == 3
    assert hits[2].cosine < 0.999


def test_a_top_above_the_number_of_texts_returns_all(request_of: SearchRequest):
    request = SearchRequest(model=request_of.model, file=request_of.file, query="w9", top_k=50)
    hits = search(request)
    assert sorted(hit.number for hit in hits) == [1, 2, 3, 4, 5, 6]
    assert [hit.cosine for hit in hits] == sorted((hit.cosine for hit in hits), reverse=True)


def with_vectors(request: SearchRequest, path: Path, model: str | None = None) -> SearchRequest:
    return SearchRequest(
        model=model or request.model, file=request.file, query=request.query, top_k=request.top_k, vectors=path
    )


def test_vectors_are_computed_saved_and_reused(request_of: SearchRequest, tmp_path: Path):
    expected = search(request_of)
    path = tmp_path / "v.npy"
    assert search(with_vectors(request_of, path)) == expected
    assert np.load(path).shape == (6, 16)
    modified = path.stat().st_mtime_ns
    assert search(with_vectors(request_of, path)) == expected
    assert path.stat().st_mtime_ns == modified


def test_vectors_of_other_texts_or_models_are_rejected(request_of: SearchRequest, models: Path, tmp_path: Path):
    path = tmp_path / "v.npy"
    search(with_vectors(request_of, path))
    with pytest.raises(FolderError, match="computed with other model"):
        search(with_vectors(request_of, path, str(models / "1")))
    Path(request_of.file).write_text("w1\nw2\nw3\nw4\nw5\nw6\n")
    with pytest.raises(FolderError, match="computed with other texts"):
        search(with_vectors(request_of, path))


def test_foreign_vectors_must_have_the_right_shape(request_of: SearchRequest, tmp_path: Path):
    np.save(tmp_path / "v.npy", np.ones((5, 16), dtype=np.float32))
    with pytest.raises(FolderError, match=r"the shape \(5, 16\), but 6 texts and this model need \(6, 16\)"):
        search(with_vectors(request_of, tmp_path / "v.npy"))
    (tmp_path / "v.npy").write_text("no vectors")
    with pytest.raises(FolderError, match="cannot be read as vectors"):
        search(with_vectors(request_of, tmp_path / "v.npy"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": " "}, "the query is empty"),
        ({"file": "-"}, "not possible with standard input"),
        ({"file": "nowhere.txt"}, "nowhere.txt does not exist"),
    ],
)
def test_invalid_input_is_rejected(request_of: SearchRequest, changes: dict[str, str], message: str):
    arguments = {"file": request_of.file, "query": "w1", **changes}
    with pytest.raises(InputError, match=message):
        search(SearchRequest(model=request_of.model, file=arguments["file"], query=arguments["query"]))


def test_invalid_settings_are_rejected(request_of: SearchRequest, tmp_path: Path):
    with pytest.raises(SettingsError, match="top_k is 0"):
        search(SearchRequest(model=request_of.model, file=request_of.file, query="w1", top_k=0))
    with pytest.raises(SettingsError, match=r"is not a .npy file"):
        search(with_vectors(request_of, tmp_path / "v.bin"))
