"""`bertworks vectors`: train static word vectors, score them, look words up, and turn one format into another."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.cli.options import Field, Format, Sources, Workers
from bertworks.cli.progress import show_progress
from bertworks.commands import word_vectors as running
from bertworks.embeddings.static import Neighbor, StaticVectors
from bertworks.embeddings.static_files import FORMATS, read_vectors
from bertworks.embeddings.static_settings import KINDS, GloveSettings, Word2VecSettings
from bertworks.embeddings.static_words import REACHES, WordSettings
from bertworks.errors import SettingsError
from bertworks.metrics.word_vectors import SectionScore, Similarity, total
from bertworks.text.sources import ReadSettings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Static word vectors: one vector a word, whatever it means in its place. VECTORS is a folder of `vectors "
    "train`, or a file of word2vec (text or binary) or GloVe, packed or not.",
)

Vectors = Annotated[Path, typer.Argument(help="A folder of `vectors train`, or a file of word2vec or GloVe.")]
Top = Annotated[int, typer.Option(help="How many words.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
_KIND_DEFAULT = "; by default what suits the kind."


@app.command()
def train(
    sources: Sources,
    output: Annotated[Path, typer.Option(help="The folder to write the vectors to.")],
    kind: Annotated[str, typer.Option(help=f"One of: {', '.join(KINDS)}.")] = "skip-gram",
    vector_size: Annotated[int, typer.Option(help="Numbers a vector.")] = 100,
    window: Annotated[int | None, typer.Option(help=f"Words on each side that count as near{_KIND_DEFAULT}")] = None,
    epochs: Annotated[int | None, typer.Option(help=f"How often all is seen{_KIND_DEFAULT}")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help=f"The learning rate at the beginning{_KIND_DEFAULT}")
    ] = None,
    min_count: Annotated[int, typer.Option(help="Rarer words get no vector.")] = 5,
    max_words: Annotated[int, typer.Option(help="So many words at most, the most frequent; 0 takes all.")] = 400_000,
    cased: Annotated[bool, typer.Option("--cased", help="Tell capital letters from small ones.")] = False,
    punctuation: Annotated[bool, typer.Option("--punctuation", help="Signs are words too.")] = False,
    reach: Annotated[str, typer.Option(help=f"Where windows end: {' or '.join(REACHES)}.")] = REACHES[0],
    negative: Annotated[int | None, typer.Option(help="Random words against each true one (Word2Vec).")] = None,
    sample: Annotated[float | None, typer.Option(help="Words of a larger share are thinned out (Word2Vec).")] = None,
    x_max: Annotated[float | None, typer.Option(help="Pairs met so often weigh the most (GloVe).")] = None,
    alpha: Annotated[float | None, typer.Option(help="How weights grow up to there (GloVe).")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="Memory for counting pairs, in MiB (GloVe).")] = None,
    seed: Annotated[int, typer.Option(help="Same text, settings and seed: the same bytes.")] = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="For training. Word2Vec with more than one gives other vectors each time.")
    ] = 1,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Learn a vector for each word of the SOURCEs: GloVe, or Word2Vec as skip-gram or CBOW (needs gensim).

    A single SOURCE may be a corpus folder of `bertworks prepare`: then the documents it does not hold out are read.
    English is cut at whatever is no letter or digit, Chinese by jieba. Words that are left out are counted.
    """
    given = {
        "window": window,
        "epochs": epochs,
        "rate": learning_rate,
        "negative": negative,
        "sample": sample,
        "x_max": x_max,
        "alpha": alpha,
        "memory_mb": memory_mb,
    }
    training = replace(_settings(kind, given), vector_size=vector_size, seed=seed, threads=threads)
    cutting = WordSettings(cased, punctuation, reach, min_count, max_words)
    reading = ReadSettings(format=format, field=field)
    request = running.VectorsRequest(tuple(sources), output, kind, training, cutting, reading)
    with show_progress() as watch:
        vectors = running.train_vectors(request, workers, watch)
    _show_training_report(vectors, output, as_json)


@app.command("eval")
def evaluate(
    vectors: Vectors,
    files: Annotated[list[Path], typer.Argument(help="Lists: two words and a score a line, or four words a line.")],
    as_json: AsJson = False,
) -> None:
    """Score VECTORS on lists that people made.

    Two words and a score a line (WordSim-353, SimLex-999): Spearman's correlation of cosines and scores, over the pairs
    of which both words have a vector. Four words a line, with lines like ": family" that begin a section (the Google
    analogies): the share of questions a : b = c : ? whose answer is nearest to b - a + c, by section.
    How many pairs and questions were left out for want of a vector is said each time.
    """
    scores = running.evaluate_vectors(read_vectors(vectors), files)
    if as_json:
        print(json.dumps({name: _score_to_dict(score) for name, score in scores.items()}, ensure_ascii=False))
        return
    for name, score in scores.items():
        if isinstance(score, Similarity):
            print(f"{name}: Spearman {score.spearman:.4f} over {score.num_known:,} of {score.num_pairs:,} pairs")
        else:
            print(f"{name}:")
            Console().print(_section_table(score))


@app.command()
def nearest(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(help="One or more words.", metavar="WORD…")],
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Print the words whose vectors are nearest to those of each WORD, with the cosine of the angle between them."""
    table = read_vectors(vectors)
    found = {word: table.most_similar(word, top) for word in words}
    if as_json:
        print(json.dumps({word: _neighbors_to_dicts(near) for word, near in found.items()}, ensure_ascii=False))
        return
    for word, near in found.items():
        if len(found) > 1:
            print(f"{word}:")
        _show_neighbors(near)


@app.command()
def analogy(
    vectors: Vectors,
    first: Annotated[str, typer.Argument(help="man, say")],
    second: Annotated[str, typer.Argument(help="king")],
    third: Annotated[str, typer.Argument(help="woman")],
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Print what is to THIRD as SECOND is to FIRST: the words nearest to SECOND - FIRST + THIRD."""
    near = read_vectors(vectors).analogy(first, second, third, top)
    if as_json:
        print(json.dumps(_neighbors_to_dicts(near), ensure_ascii=False))
        return
    _show_neighbors(near)


@app.command()
def senses(
    word: Annotated[str, typer.Argument(help="A word that means several things.")],
    file: Annotated[Path, typer.Argument(help="A table of sentences (text) and what the word means there (label).")],
    models: Annotated[list[str], typer.Argument(help="Folders of word vectors, or any models.", metavar="MODEL…")],
    output: Annotated[Path, typer.Option(help="The picture to write, an SVG file.")],
    layers: Annotated[str, typer.Option(help="From which layers of a model, as `embed --layers` has them.")] = "last",
) -> None:
    """Draw where the vectors of WORD lie in the sentences of FILE, by each MODEL.

    By static vectors a word is one point, whatever it means; by a model that reads the sentence, it is as many as there
    are sentences, and senses lie apart as far as the model tells them.
    """
    from bertworks.commands import senses as drawing  # with torch

    for panel in drawing.senses(drawing.SensesRequest(word, file, tuple(models), output, layers)):
        found = panel.projection
        print(
            f"{panel.name}: {found.num_distinct_vectors} different vectors; nearest other sentence of the same sense "
            f"{found.nearest_neighbor_accuracy:.0%}; mean cosine {found.within_similarity:.2f} within a sense, {found.across_similarity:.2f} between"
        )
    print(f"the picture: {output}")


@app.command()
def convert(
    vectors: Vectors,
    output: Annotated[Path, typer.Option(help="The file or folder to write.")],
    format: Annotated[str, typer.Option(help=f"One of: {', '.join(FORMATS)}.")] = "folder",  # noqa: A002
) -> None:
    """Write VECTORS in another format: those of word2vec and GloVe, which other tools read, or a folder of ours.

    Text has the fewest digits that read back as the same numbers, so that nothing is lost on the way.
    """
    table = running.convert_vectors(vectors, output, format)
    print(f"{len(table):,} words of width {table.vector_size}: {output}")


def _settings(kind: str, options: dict[str, Any]) -> GloveSettings | Word2VecSettings:
    """Return the settings of a kind with what was given; an option that it does not have is refused."""
    if kind not in KINDS:
        raise SettingsError(f"kind '{kind}' is unknown; choose one of: {', '.join(KINDS)}")
    known = {field.name for field in fields(KINDS[kind])}
    said = {name: value for name, value in options.items() if value is not None}
    for name in said:
        if name not in known:
            raise SettingsError(f"--{name.replace('_', '-')} means nothing to {kind}; leave it out")
    return replace(KINDS[kind], **said)


def _show_training_report(vectors: StaticVectors, output: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**vectors.metadata, "words": len(vectors), "width": vectors.vector_size}, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(
        f"{len(vectors):,}", f"words with a vector of width {vectors.vector_size} ({vectors.metadata['kind']})"
    )
    table.add_row(f"{vectors.metadata['corpus']['words_with_a_vector']:,}", "words of text were learned from")
    for name, count in vectors.metadata["counts"].items():
        table.add_row(f"{count:,}", Text(name))
    Console().print(table)
    threads = vectors.metadata["settings"]["threads"]
    if threads > 1 and vectors.metadata["kind"] != "glove":
        print(f"trained with {threads} threads: another run will not give the same vectors")
    print(f"vectors: {output}")


def _section_table(scores: list[SectionScore]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("section")
    for name in ("right", "known", "questions", "accuracy"):
        table.add_column(name, justify="right")
    for score in [*scores, total(scores)]:
        numbers = (score.num_correct, score.num_known, score.num_questions)
        table.add_row(Text(score.section), *(f"{number:,}" for number in numbers), f"{score.accuracy:.1%}")
    return table


def _score_to_dict(score: Similarity | list[SectionScore]) -> Any:
    if isinstance(score, Similarity):
        return asdict(score)
    return [{**asdict(one), "accuracy": one.accuracy} for one in [*score, total(score)]]


def _neighbors_to_dicts(neighbors: list[Neighbor]) -> list[dict[str, Any]]:
    return [one._asdict() for one in neighbors]


def _show_neighbors(neighbors: list[Neighbor]) -> None:
    for one in neighbors:
        print(f"{one.cosine:7.4f}  {one.word}")
