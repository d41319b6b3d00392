"""`bertworks serve`: models in, an HTTP server on a port out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.choices import LOG_FORMATS
from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import Engine, Precision, Ray
from bertworks.errors import MissingDependencyError

if TYPE_CHECKING:
    from bertworks.serving.server import ServeRequest

app = command_app()


@app.command("serve", cls=Command)
def serve_command(
    models: Annotated[
        list[str], typer.Argument(help="Models as NAME=FOLDER, run folders too; or one bundle.", metavar="MODEL…")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File of API keys, one per line; read again when it changes.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Serve HTTPS: PEM file of the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key, not encrypted.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin that may send cross-origin requests; may be repeated.")
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option(help="Training runs to monitor: NAME=FOLDER, or a folder of runs.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds per request, and for its body to arrive.")] = 60.0,
    max_body_bytes: Annotated[int, typer.Option(help="Bytes per request body.")] = 4 * 2**20,
    max_inputs: Annotated[int, typer.Option(help="Inputs per request.")] = 512,
    max_characters: Annotated[int, typer.Option(help="Characters per text.")] = 100_000,
    max_queued_requests: Annotated[int, typer.Option(min=1, help="Queue length; further requests get 429.")] = 1024,
    max_connections_per_address: Annotated[int, typer.Option(min=1, help="Open connections per client.")] = 512,
    rate_limit: Annotated[
        int | None, typer.Option(min=1, help="Requests per minute and API key, or client address; more get 429.")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=8, help="Maximum tokens per batch.")] = None,
    engine: Engine = None,
    precision: Precision = None,
    log_format: Annotated[
        str, choice("log format", LOG_FORMATS, "Warnings and errors as text, or these and each request as JSON.")
    ] = "text",
    otel_endpoint: Annotated[
        str | None, typer.Option(help="URL of an OpenTelemetry collector (OTLP over HTTP) for traces.", metavar="URL")
    ] = None,
    ray: Ray = None,
    replicas: Annotated[int, typer.Option(min=1, help="With --ray: number of replicas.")] = 1,
    replica_cpus: Annotated[float, typer.Option(help="With --ray: CPUs per replica.")] = 1,
) -> None:
    """Serve MODELs over HTTP until stopped: predictions, fill-mask, embeddings, and a web page at /."""
    try:
        from bertworks.serving import server
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "serving models") from None
    from bertworks.engines.batching import TOKEN_BUDGET
    from bertworks.serving.batch_scheduler import QueueLimits
    from bertworks.serving.client_limits import ClientLimits
    from bertworks.serving.run_records import named_runs
    from bertworks.serving.security import Limits
    from bertworks.serving.tls import tls_files

    request = server.ServeRequest(
        models=tuple(models),
        host=host,
        port=port,
        key_file=api_key_file,
        origins=tuple(allow_origin or ()),
        runs=named_runs(runs or ()),
        limits=Limits(max_body_bytes, max_inputs, max_characters, time_limit),
        queue_limits=QueueLimits(max_queued_requests),
        client_limits=ClientLimits(max_connections_per_address, rate_limit),
        tls=tls_files(tls_cert, tls_key),
        log_format=log_format,
        otel_endpoint=otel_endpoint,
        budget=batch_tokens or TOKEN_BUDGET,
        engine=engine,
        precision=precision,
    )
    if ray is not None:
        _serve_on_ray(ray, request, replicas, replica_cpus)
        return
    with server.listen(host, port) as sock:  # before the models, so that a port in use is reported at once
        serving_app = server.load_app(request)
        for served in serving_app.service.models.values():
            say(f"{served.name} ({served.model.precision}): {', '.join(served.capabilities)}")
        address = f"[{host}]" if ":" in host else host
        scheme = "http" if request.tls is None else "https"
        say(f"serving at {scheme}://{address}:{sock.getsockname()[1]} (Ctrl-C stops it)")
        is_interrupted = server.serve(serving_app, sock)
    say("stopped; all accepted requests were answered")
    if is_interrupted:
        raise typer.Exit(130)


def _serve_on_ray(address: str, request: ServeRequest, replicas: int, cpus: float) -> None:
    """Deploy replicas on a cluster and keep them until this command is stopped."""
    from bertworks.parallel.ray_cluster import ray_connection
    from bertworks.serving.replicas import Replicas, deploy_replicas
    from bertworks.training.interrupt import catch_stop_signals

    with (
        ray_connection(address),
        deploy_replicas(request, Replicas(replicas, cpus)) as url,
        catch_stop_signals() as signals,
    ):
        say(f"serving at {url} with {replicas} replicas (Ctrl-C stops them)")
        while not signals:
            time.sleep(0.2)
    say("stopped; all accepted requests were answered")
    raise typer.Exit(130)
