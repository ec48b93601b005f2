"""`tfdist plan`: how long the sum of a model's gradients will take."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated
from typing import Any

import rich.console
import rich.table
import typer

from tfdist.cli.gradients import gradient_bytes
from tfdist.collectives.buckets import DEFAULT_FUSION_BYTES
from tfdist.collectives.buckets import plan_buckets
from tfdist.collectives.choice import predict_s
from tfdist.collectives.cost import Network
from tfdist.collectives.measure import measure_network
from tfdist.communicators import create_communicator
from tfdist.topology import Topology


def plan(
    model: Annotated[str, typer.Argument(help="A model of keras.applications, a .keras file, or a .json list of sizes in bytes.")],
    network: Annotated[pathlib.Path | None, typer.Option(help="Constants of the network; else they are measured.")] = None,
    save_network: Annotated[pathlib.Path | None, typer.Option(help="Where to write the constants that were measured.")] = None,
    devices_per_host: Annotated[int, typer.Option(min=1, help="Ranks a host in the predictions.")] = 4,
    max_devices: Annotated[int, typer.Option(min=2, max=4096, help="The largest job.")] = 4096,
    fusion_bytes: Annotated[int, typer.Option(min=0, help="The threshold of a bucket.")] = DEFAULT_FUSION_BYTES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in seconds.")] = False,
    plot: Annotated[pathlib.Path | None, typer.Option(help="Where to draw the predictions (needs matplotlib).")] = None,
) -> None:
    """Predict the time of each all-reduce algorithm for a model's gradients, for 2 to 4,096 devices.

    Run it as a job (mpirun -np 4 tfdist plan ResNet50) to measure the network, or give the constants of one.
    """
    try:
        constants, rank = _constants(network)
        if rank:
            return
        sizes_bytes = gradient_bytes(model)
    except (OSError, RuntimeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if save_network is not None:
        save_network.write_text(json.dumps(constants.to_dict(), indent=1) + "\n")
    results = predict(sizes_bytes, constants, devices_per_host, max_devices, fusion_bytes)
    if plot is not None:
        _draw(results, model, plot)
    if as_json:
        about = {"model": model, "gradient_bytes": sum(sizes_bytes), "devices_per_host": devices_per_host}
        typer.echo(json.dumps({**about, "network": constants.to_dict(), "predicted_s": results}, indent=1))
    else:
        _print_table(results, f"{model}: {len(sizes_bytes)} gradients, {sum(sizes_bytes) / 1e6:.1f} MB", constants)


def predict(
    sizes_bytes: list[int], network: Network, devices_per_host: int, max_devices: int, fusion_bytes: int
) -> dict[int, dict[str, float]]:
    """The predicted seconds to sum all buckets, one after the other, by number of devices and algorithm."""
    buckets = plan_buckets(sizes_bytes, ["float32"] * len(sizes_bytes), fusion_bytes)
    bucket_bytes = [sum(sizes_bytes[index] for index in bucket) for bucket in buckets]
    results: dict[int, dict[str, float]] = {}
    devices = 2
    while devices <= max_devices:
        hosts = [range(first, min(first + devices_per_host, devices)) for first in range(0, devices, devices_per_host)]
        times = [predict_s(hosts, size, network) for size in bucket_bytes]
        results[devices] = {name: sum(time_s[name] for time_s in times) for name in times[0]}
        devices *= 2
    return results


def _constants(path: pathlib.Path | None) -> tuple[Network, int]:
    if path is not None:
        return Network.from_dict(json.loads(path.read_text())), 0
    communicator = create_communicator()
    topology = Topology(communicator.gather_host_names(), (1,) * communicator.size)
    return measure_network(communicator, topology), communicator.rank


def _print_table(results: dict[int, dict[str, float]], title: str, network: Network) -> None:
    names = list(dict.fromkeys(name for times in results.values() for name in times))
    table = rich.table.Table(title=f"{title}; predicted ms", caption=_describe(network), caption_justify="left")
    table.add_column("devices", justify="right")
    for name in names:
        table.add_column(name, justify="right", overflow="fold", min_width=8)
    for devices, times in results.items():
        best = min(times.values())
        cells = [f"{1000 * times[name]:.1f}" if name in times else "-" for name in names]
        marked = [f"[bold green]{cell}[/]" if times.get(name) == best else cell for name, cell in zip(names, cells, strict=True)]
        table.add_row(str(devices), *marked)
    rich.console.Console().print(table)


def _describe(network: Network) -> str:
    def link(name: str) -> str:
        values = getattr(network, name)
        return f"{name} hosts: {1e6 * values.latency_s:.0f} us, {values.bytes_per_s / 1e6:.0f} MB/s"

    return f"{link('inside')}; {link('across')}; adds {network.add_bytes_per_s / 1e6:.0f} MB/s. Fastest of each row in green."


def _draw(results: dict[int, dict[str, float]], model: str, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4.5), layout="constrained")
    series: dict[str, list[Any]] = {}
    for devices, times in results.items():
        for name, time_s in times.items():
            series.setdefault(name, []).append((devices, time_s))
    for name, points in series.items():
        panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    panel.set(xscale="log", yscale="log", xlabel="devices", ylabel="predicted time, s", title=f"Sum of the gradients of {model}")
    panel.set_xscale("log", base=2)
    panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
