"""The last lines of `make demo`: two fine-tuning runs on the same examples in, a table of scores on dev out.

python release/demo_scores.py PRETRAINED_RUN RANDOM_RUN
"""

from __future__ import annotations

import sys
from pathlib import Path

from bertworks.disk import read_json


def score_lines(pretrained: Path, random_weights: Path) -> list[str]:
    """Return a line per model with its accuracy on dev, the best first."""
    runs = {
        "en-small, pretrained": read_json(pretrained / "run.json", "a finished run"),
        "the same model from random weights": read_json(random_weights / "run.json", "a finished run"),
    }
    baselines = next(iter(runs.values()))["baselines"]
    scores = {title: run["scores"]["dev"]["accuracy"] for title, run in runs.items()}
    scores["TF-IDF and logistic regression"] = baselines["tfidf_logistic_regression"]["dev"]["accuracy"]
    scores["the most frequent class"] = baselines["majority"]["dev"]["accuracy"]
    return [f"{score:7.1%}  {title}" for title, score in sorted(scores.items(), key=lambda item: -item[1])]


if __name__ == "__main__":
    print("accuracy on dev, same examples:")
    print("\n".join(score_lines(*map(Path, sys.argv[1:3]))))
