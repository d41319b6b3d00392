"""The tables of the results page: results of rows in, the page with its tables replaced out."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.disk import read_json
from result_rows import MODELS, OPTIONS, ROWS, SETS, STRATEGIES, Score

Results = Mapping[str, Mapping[str, Any]]  # by the name of the row
# The baselines that a fine-tuning run scores, by their column.
BASELINES = ("majority", "tfidf")
METRIC_NAMES = {"exact_match": "exact match", "f1": "F1", "macro_f1": "macro F1", "matthews": "Matthews",
                "spearman": "Spearman", "accuracy": "accuracy"}  # fmt: skip


def format_scores(values: Sequence[float]) -> str:
    """Return mean and standard deviation in percent; of one value the value alone."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def score_cell(results: Results, row: str, score: Score) -> str:
    if row not in ROWS:
        return "–"
    return format_scores(results[row]["scores"][score.split][score.metric]) if row in results else "not yet run"


def bar_cell(results: Results, name: str, score: Score) -> str:
    """Return the bar of a score, and by how much it is missed, rounded up."""
    values = [
        100 * statistics.fmean(results[row]["scores"][score.split][score.metric]) if row in results else None
        for row in (name, f"{name}-random")
    ]
    bar: float | None = score.bar
    text = f"{score.bar:g}"
    if score.margin:
        text = f"{score.margin:g} above random"
        bar = None if values[1] is None else values[1] + score.margin
    if not (score.bar or score.margin):
        return "–"
    if values[0] is None or bar is None:
        return text
    tenths = math.ceil(round(10 * (bar - values[0]), 6))  # without the error of binary fractions
    return f"{text}: missed by {tenths / 10:.1f}" if tenths > 0 else f"{text}: met"


def score_table(results: Results) -> Iterator[str]:
    """Yield a line per set and score: our model, its bar, and what it is compared with."""
    yield "| | examples | ours | bar | random weights | majority | TF-IDF | GloVe | MiniLM | published |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, info in SETS.items():
        result = results.get(name)
        for score in info.scores:
            counts = [f"{result['examples'][split]:,}" for split in ("train", score.split)] if result else ["–"]
            baselines = [
                (result or {}).get("baselines", {}).get(kind, {}).get(score.split, {}).get(score.metric)
                for kind in BASELINES
            ]
            cells = [
                f"{info.title}, {METRIC_NAMES[score.metric]} ({score.split})",
                " / ".join(counts),
                score_cell(results, name, score),
                bar_cell(results, name, score),
                score_cell(results, f"{name}-random", score),
                *("–" if value is None else f"{100 * value:.1f}" for value in baselines),
                *(score_cell(results, f"{name}-{group}", score) for group in ("glove", "minilm")),
                score.published,
            ]
            yield f"| {' | '.join(cells)} |"


def feature_table(results: Results) -> Iterator[str]:
    yield "| | dev F1 | test F1 | BERT-Base, dev F1 |"
    yield "|---|---|---|---|"
    published = {"conll": ("fine-tuned", "96.4")}
    published |= {f"conll-{strategy}": (f"`{strategy}`", value) for strategy, value in STRATEGIES.items()}
    for row, (title, value) in published.items():
        scores = [score_cell(results, row, score) for score in SETS["conll"].scores]
        yield f"| {title} | {' | '.join(scores)} | {value} |"


def option_table(results: Results) -> Iterator[str]:
    yield "| | option | without | with |"
    yield "|---|---|---|---|"
    for name, suffix, option, _ in OPTIONS:
        for score in SETS[name].scores:
            title = f"{SETS[name].title}, {METRIC_NAMES[score.metric]} ({score.split})"
            cells = [score_cell(results, row, score) for row in (name, f"{name}-{suffix}")]
            yield f"| {title} | `{option}` | {' | '.join(cells)} |"


TABLES = {
    "scores": (score_table, (*MODELS, "vectors")),
    "features": (feature_table, ("features",)),
    "options": (option_table, ("options",)),
}


def model_table(names: Mapping[str, str]) -> str:
    """Return the held-out scores of our models."""
    lines = ["| | MLM loss | unigram entropy | NSP accuracy |", "|---|---|---|---|"]
    for name, folder in names.items():
        loss, entropy, accuracy = held_out_scores(folder) or ("not yet run", "–", "–")
        lines.append(f"| `{name}` | {loss} | {entropy} | {accuracy} |")
    return "\n".join(lines)


def held_out_scores(name: str) -> tuple[str, str, str] | None:
    """Return MLM loss, unigram entropy and NSP accuracy: from the run of a model, or from the card of its package."""
    from bertworks.packages import packaged_model
    from bertworks.reports.pretrain_run import read_pretrain_run

    folder = packaged_model(name) or Path(name)
    if not (folder / "bertworks.json").is_file():
        return None
    loss = read_json(folder / "bertworks.json", "the metadata of a model")["scores"]["held_out_loss"]
    if (folder.parent / "metrics.jsonl").is_file():
        run = read_pretrain_run(folder.parent)
        best = min(run.history.held_out, key=lambda record: abs(record.loss - loss))
        return f"{loss:.2f}", f"{run.run_info['unigram_entropy']:.2f}", f"{100 * (best.pair_accuracy or 0):.1f}"
    card = (folder.parents[1] / "README.md").read_text(encoding="utf-8")
    entropy = re.search(r"unigram entropy, for comparison: ([\d.]+)", card)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines() if line.startswith("| ")]
    titles = next((cells for cells in lines if "MLM loss" in cells and "NSP accuracy" in cells), [])
    rows = [dict(zip(titles, cells, strict=True)) for cells in lines if len(cells) == len(titles) and titles]
    rows = [row for row in rows if row["MLM loss"] == f"{loss:.3f}"]
    accuracy = rows[-1]["NSP accuracy"].rstrip(" %") if rows else "–"
    return f"{loss:.2f}", f"{float(entropy[1]):.2f}" if entropy else "–", accuracy


def fill_page(page: str, results: Results, models: Mapping[str, str]) -> str:
    """Return the page with its tables, and the commands below them, replaced; the text does not change."""
    for name, (table, groups) in TABLES.items():
        commands = [row.command for row in ROWS.values() if row.group in groups]
        page = replace_between(page, name, "\n".join([*table(results), "", "```console", *commands, "```"]))
    minutes = sum(result["minutes"] for result in results.values())
    summary = f"{len(results)} of {len(ROWS)} rows are finished; they took {minutes:.0f} minutes."
    return replace_between(replace_between(page, "models", model_table(models)), "total", summary)


def replace_between(page: str, name: str, text: str) -> str:
    """Return the page with the text between the two markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page needs exactly one line '{begin}' and one line '{end}'; add them")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"
