"""The table at the end of `make demo`: accuracies of two runs and their baselines, the best first."""

import json
from pathlib import Path

from demo_scores import score_lines


def write_run(folder: Path, accuracy: float) -> Path:
    baselines = {"majority": {"dev": {"accuracy": 0.17}}, "tfidf_logistic_regression": {"dev": {"accuracy": 0.8}}}
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"scores": {"dev": {"accuracy": accuracy}}, "baselines": baselines}))
    return folder


def test_models_and_baselines_are_sorted_by_their_accuracy(tmp_path):
    lines = score_lines(write_run(tmp_path / "tuned", 0.9), write_run(tmp_path / "random", 0.55))
    assert lines == [
        "  90.0%  en-small, pretrained",
        "  80.0%  TF-IDF and logistic regression",
        "  55.0%  the same model from random weights",
        "  17.0%  the most frequent class",
    ]
