"""Processes with the environment variables of torchrun, without the seconds that torchrun needs to start them."""

from __future__ import annotations

import multiprocessing
import os
import socket


def run_one(rank, world_size, port, result, function, arguments):
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "LOCAL_RANK": rank,
        "MASTER_PORT": port,
    }
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in numbers.items()}})
    result.send(function(*arguments))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def run_processes(world_size: int, function, *arguments) -> list:
    """Return the results of `function` in each process. A fork server that has loaded torch starts them."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertworks.commands.pretrain.verify_resume", "torch._dynamo"])
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=run_one, args=(rank, world_size, port, pipe[1], function, arguments))
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        assert all(pipe.poll(60) for pipe, _ in pipes), "a process did not finish"
        return [pipe.recv() for pipe, _ in pipes]
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(10)
            process.kill()
            pipe[0].close()
            pipe[1].close()
