"""Search: the nearest vectors by hand, and texts of a file found with and without vectors on disk."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.commands.search import SearchRequest, nearest, search
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.vocabulary.tokenizer import Tokenizer

TEXTS = ["w1 w2 w3", "w4 w5", "", "w6 w7 w8", "w9", "w4 w5"]

pytestmark = pytest.mark.usefixtures("one_thread")


def write_model(path: Path, tokenizer: Tokenizer, seed: int) -> None:
    sizes = BertConfig(
        tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    encoder = Bert(sizes, torch.Generator().manual_seed(seed))
    tensors = to_hf_names(encoder.state_dict(), tensor_names(sizes))
    write_folder(path, config_to_dict(sizes, ["BertModel"]), tensors, tokenizer, {})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        write_model(folder / str(seed), tokenizer, seed)
    return folder


@pytest.fixture
def request_of(models: Path, tmp_path: Path) -> SearchRequest:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return SearchRequest(str(models / "0"), str(tmp_path / "texts.txt"), "w4 w5", top=3)


def test_nearest_is_by_angle_and_not_by_length():
    vectors = np.array([[0.0, 5.0], [3.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [0.1, 0.0], [30.0, 40.0]])
    found = nearest(np.array([2.0, 0.0], dtype=np.float32), [vectors[:2], vectors[2:5], vectors[5:]], top=4)
    assert [number for number, _ in found] == [4, 1, 5, 0]  # of equally near ones the first comes first
    assert [cosine for _, cosine in found] == pytest.approx([1.0, 0.6, 0.6, 0.0])


def test_half_precision_is_compared_in_full():
    vectors = np.full((1, 4), 300.0, dtype=np.float16)  # a square of 90,000 is beyond half precision
    assert nearest(np.ones(4, dtype=np.float32), [vectors], top=5) == [(0, pytest.approx(1.0))]


def test_the_same_text_is_nearest_and_twins_come_in_the_order_of_the_file(request_of: SearchRequest):
    hits = search(request_of)
    assert [(hit.number, hit.text) for hit in hits[:2]] == [(2, "w4 w5"), (6, "w4 w5")]
    assert [hit.cosine for hit in hits[:2]] == pytest.approx([1.0, 1.0])
    assert len(hits) == 3
    assert hits[2].cosine < 0.999


def test_more_than_there_are_gives_all(request_of: SearchRequest):
    wanted = SearchRequest(request_of.model, request_of.file, "w9", top=50)
    hits = search(wanted)
    assert sorted(hit.number for hit in hits) == [1, 2, 3, 4, 5, 6]
    assert [hit.cosine for hit in hits] == sorted((hit.cosine for hit in hits), reverse=True)


def kept(request: SearchRequest, path: Path, model: str | None = None) -> SearchRequest:
    return SearchRequest(model or request.model, request.file, request.query, request.top, path)


def test_vectors_are_made_kept_and_used_again(request_of: SearchRequest, tmp_path: Path):
    plain = search(request_of)
    path = tmp_path / "v.npy"
    assert search(kept(request_of, path)) == plain
    assert np.load(path).shape == (6, 16)
    before = path.stat().st_mtime_ns
    assert search(kept(request_of, path)) == plain
    assert path.stat().st_mtime_ns == before


def test_vectors_of_other_texts_or_models_are_refused(request_of: SearchRequest, models: Path, tmp_path: Path):
    path = tmp_path / "v.npy"
    search(kept(request_of, path))
    with pytest.raises(FolderError, match="made with other model"):
        search(kept(request_of, path, str(models / "1")))
    Path(request_of.file).write_text("w1\nw2\nw3\nw4\nw5\nw6\n")
    with pytest.raises(FolderError, match="made with other texts"):
        search(kept(request_of, path))


def test_foreign_vectors_must_have_the_right_shape(request_of: SearchRequest, tmp_path: Path):
    np.save(tmp_path / "v.npy", np.ones((5, 16), dtype=np.float32))
    with pytest.raises(FolderError, match=r"an array of \(5, 16\), but 6 texts and this model make \(6, 16\)"):
        search(kept(request_of, tmp_path / "v.npy"))
    (tmp_path / "v.npy").write_text("no vectors")
    with pytest.raises(FolderError, match="cannot be read as vectors"):
        search(kept(request_of, tmp_path / "v.npy"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"query": " "}, "the query is empty"),
        ({"file": "-"}, "which standard input cannot be"),
        ({"file": "nowhere.txt"}, "nowhere.txt does not exist"),
    ],
)
def test_bad_input_is_refused(request_of: SearchRequest, changed: dict[str, str], said: str):
    asked = {"file": request_of.file, "query": "w1", **changed}
    with pytest.raises(InputError, match=said):
        search(SearchRequest(request_of.model, asked["file"], asked["query"]))


def test_bad_settings_are_refused(request_of: SearchRequest, tmp_path: Path):
    with pytest.raises(SettingsError, match="top is 0"):
        search(SearchRequest(request_of.model, request_of.file, "w1", top=0))
    with pytest.raises(SettingsError, match=r"is not a .npy file"):
        search(kept(request_of, tmp_path / "v.bin"))
