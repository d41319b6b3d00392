"""`bertworks export`: a model folder in, one for another engine or of lower precision out, with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertworks.choices import EXPORT_TARGETS
from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import LabelColumn, ModelArgument, PairColumn, TextColumn, columns_of
from bertworks.cli.progress import show_progress

app = command_app()


@app.command("export", cls=Command)
def export_command(
    model: ModelArgument,
    to: Annotated[str, choice("target", EXPORT_TARGETS, "Target format.")],
    output: Annotated[Path, typer.Option(help="Folder to write.")],
    data: Annotated[
        Path | None, typer.Option(help="A labelled file of the model's task, or texts, to compare both models on.")
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    tolerance: Annotated[float | None, typer.Option(min=0, help="Largest difference allowed in any output.")] = None,
    cosine: Annotated[
        float | None, typer.Option(min=-1, max=1, help="Lowest mean cosine allowed for sentence vectors.")
    ] = None,
    points: Annotated[float | None, typer.Option(help="Largest drop allowed of the dev metric, in points.")] = None,
) -> None:
    """Export MODEL to ONNX Runtime or OpenVINO, in fp16 or int8, and certify the difference to the original.

    The folder loads like the original. An export that differs by more than allowed is refused.
    """
    from bertworks.exporters.export import ExportRequest, export

    columns = columns_of(text=text, pair=pair, label=label)
    request = ExportRequest(
        model=model,
        target=to,
        output=output,
        data=data,
        columns=columns,
        difference=tolerance,
        cosine=cosine,
        points=points,
    )
    with show_progress() as on_progress:
        result = export(request, on_progress)
    before, after = result.bytes_before / 1e6, result.bytes_after / 1e6
    say(f"{result.output}: {after:,.1f} MB, the original has {before:,.1f} MB")
    for line in format_certificate(result.certificate):
        say(line)


def format_certificate(certificate: dict[str, Any]) -> list[str]:
    """Return the lines that tell a user what an export changed."""
    differences = ", ".join(f"{name} {value:.1e}" for name, value in certificate["max_difference"].items())
    lines = [
        f"compared on {certificate['texts']}",
        f"largest differences: {differences}",
        f"cosine of sentence vectors: mean {certificate['mean_cosine']:.5f}, minimum {certificate['min_cosine']:.5f}",
    ]
    scheme, change, mlm = certificate["scheme"], certificate["data"], certificate["mlm"]
    if mlm is not None:
        lines.append(
            f"MLM loss on {mlm['num_masked']} masked tokens: {mlm['loss_before']:.4f} before, {mlm['loss_after']:.4f} "
            f"after; the same prediction for {mlm['same_ratio']:.1%}"
        )
    if "max_rounding_error" in scheme:
        lines.append(f"largest rounding error of a weight: {scheme['max_rounding_error']:.1e}")
    if "fp32_linears" in scheme:
        num_linears, in_fp32 = scheme["linears"], scheme["fp32_linears"]
        lines.append(f"linear layers in int8: {num_linears - len(in_fp32)} of {num_linears}")
        lines.append(f"linear layers in fp32: {', '.join(in_fp32) or 'none'}")
    if change is not None:
        metric = change["metric"]
        lines.append(
            f"{metric} on {change['file']}: {change['before'][metric]:.4f} before, {change['after'][metric]:.4f} after"
        )
    return lines
