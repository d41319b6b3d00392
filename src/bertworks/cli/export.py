"""`bertworks export`: a model folder in, one for another engine or of smaller numbers out, with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertworks.exporters import export as exporting

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A model folder, or a name on the hub.")],
    to: Annotated[str, typer.Option(help=f"What to make: {', '.join(exporting.TARGETS)}.")],
    output: Annotated[Path, typer.Option(help="The folder to write.")],
    data: Annotated[
        Path | None, typer.Option(help="A labelled file of the model's task, or texts, to measure the loss on.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the label.")] = None,
    tolerance: Annotated[float | None, typer.Option(min=0, help="The largest difference of any output.")] = None,
    cosine: Annotated[
        float | None, typer.Option(min=-1, max=1, help="The lowest mean cosine of sentence vectors.")
    ] = None,
    points: Annotated[float | None, typer.Option(help="By how many hundredths the dev metric may fall.")] = None,
) -> None:
    """Write MODEL for ONNX Runtime or OpenVINO, in half precision or in 8 bits, and certify what it lost.

    The folder loads like the original. An export that loses more than is allowed is refused.
    """
    columns = {role: column for role, column in (("text", text), ("pair", pair), ("label", label)) if column}
    request = exporting.ExportRequest(model, to, output, data, columns, tolerance, cosine, points)
    done = exporting.export(request)
    before, after = done.bytes_before / 1e6, done.bytes_after / 1e6
    print(f"{done.output}: {after:,.1f} MB, the original has {before:,.1f} MB")
    for line in _format_certificate(done.certificate):
        print(line)


def _format_certificate(certificate: dict[str, Any]) -> list[str]:
    differences = ", ".join(f"{name} {far:.1e}" for name, far in certificate["max_difference"].items())
    lines = [
        f"compared on {certificate['texts']}",
        f"largest differences: {differences}",
        f"cosine of sentence vectors: {certificate['mean_cosine']:.5f} in the mean, {certificate['min_cosine']:.5f} at "
        f"the least",
    ]
    scheme, change = certificate["scheme"], certificate["data"]
    if "kept_in_fp32" in scheme:
        kept = ", ".join(scheme["kept_in_fp32"]) or "none"
        lines.append(f"products in 8 bits: {scheme['products'] - len(scheme['kept_in_fp32'])} of {scheme['products']}")
        lines.append(f"left in full precision: {kept}")
    if change is not None:
        metric = change["metric"]
        lines.append(
            f"{metric} on {change['file']}: {change['before'][metric]:.4f} before, {change['after'][metric]:.4f} after"
        )
    return lines
