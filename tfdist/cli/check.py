"""`tfdist check`: what is installed, what works, and what mends the rest."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import rich.console
import rich.markup
import rich.table
import typer

from tfdist.cli.facts import collect
from tfdist.cli.facts import Facts
from tfdist.cli.facts import Trial
from tfdist.cli.findings import find
from tfdist.cli.findings import Finding
from tfdist.cli.findings import name_stack
from tfdist.cli.start import Job

_COLOURS = {"failure": "bold red", "warning": "yellow", "note": "dim"}


def check(
    hosts: Annotated[str, typer.Option("-H", "--hosts", help="Also try these hosts, such as a,b.")] = "",
    interface: Annotated[str, typer.Option(help="The network interface between hosts, such as eth0.")] = "",
    ssh_port: Annotated[int, typer.Option(min=0, help="The port of sshd on the hosts.")] = 0,
    timeout_s: Annotated[float, typer.Option(min=1, help="How long a launcher may take.")] = 90.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """Say what is installed, try each engine by a sum of two ranks, and name the command that mends each problem.

    Ends with code 1 if training on several processes would fail.
    """
    names = tuple(filter(None, hosts.split(",")))
    try:
        Job(0, names, ("-m", "tfdist.cli.probe"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = rich.console.Console(soft_wrap=True)
    with rich.console.Console(stderr=True).status("Two ranks are summing, by each launcher that is here ..."):
        facts = collect(names, interface, ssh_port, timeout_s)
    findings = find(facts)
    if as_json:
        typer.echo(json.dumps(as_data(facts, findings), indent=1))
    else:
        console.print(table(facts))
        for finding in findings:
            console.print(f"[{_COLOURS[finding.level]}]{finding.level}[/]  {rich.markup.escape(finding.what)}")
            console.print(f"         [bold]{rich.markup.escape(finding.remedy)}[/]")
    raise typer.Exit(int(any(finding.level == "failure" for finding in findings)))


def as_data(facts: Facts, findings: list[Finding]) -> dict[str, object]:
    """What `--json` prints."""
    listed = [dataclasses.asdict(finding) for finding in findings]
    return {"stack": name_stack(facts), **dataclasses.asdict(facts), "findings": listed}


def table(facts: Facts) -> rich.table.Table:
    """What is here, a line each."""
    rows = rich.table.Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows.add_row("stack", f"[bold]{name_stack(facts)}[/]: Python {facts.python}, {_join(facts)}")
    rows.add_row("devices", f"{', '.join(facts.devices)}; {facts.cpus} cores; /dev/shm {facts.shared_bytes / 2**30:.1f} GiB")
    links = [f"{link.name} MTU {link.mtu_bytes}{_rate(link.rate_mbit)}" for link in facts.interfaces]
    rows.add_row("network", ", ".join(links) or "none but loopback")
    for trial in facts.trials:
        rows.add_row(trial.launcher, rich.markup.escape(describe(trial)))
    return rows


def describe(trial: Trial) -> str:
    """What came of a trial, in a line."""
    if trial.found is None:
        return f"FAILED: {trial.error}"
    found = trial.found
    verdict = "right" if found["sum_is_right"] else "WRONG"
    names = ", ".join(found["hosts"])
    return (
        f"the sum of {found['ranks']} ranks on {names} is {verdict}, by {found['sums_by']}; {found['sum_bytes'] / 1e6:.1f} MB in "
        f"{1e3 * found['sum_s']:.1f} ms, {8e-9 * found['bytes_per_s']:.1f} Gbit/s a rank"
    )


def _join(facts: Facts) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts.packages.items())


def _rate(rate_mbit: int) -> str:
    return f" {rate_mbit / 1000:g} Gbit/s" if rate_mbit else ""
