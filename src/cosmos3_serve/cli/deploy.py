"""`cosmos3 deploy …`: render Kubernetes manifests, check them, set them against what runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos3_serve.cli import output, tables
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.errors import ExitCode, InputError

Target = Annotated[str, typer.Option("--target", help="dynamo or kuberay.")]
Profile = Annotated[
    str, typer.Option("--profile", help="round-robin or session-affinity; default: both (kuberay: affinity).")
]
Service = Annotated[str, typer.Option("--service", help="generator or reasoner (kuberay).")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the file of --values.")]
ValuesFile = Annotated[Path | None, typer.Option("--values", help="YAML with the same keys, nested.")]
Version = Annotated[str, typer.Option("--kubernetes-version", help="Whose schemas check.")]
Crds = Annotated[
    list[Path] | None, typer.Option("--crds", help="Operators' own CRDs, a file or a folder: check against them too.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
KUBERNETES = "1.32"


def register(app: typer.Typer) -> None:
    text = "Kubernetes manifests for both services: rendered, checked, compared."
    app.add_typer(command_group("deploy", text, render=render, check=check, diff=diff))


def render(
    target: Target,
    profile: Profile = "",
    service: Service = "",
    sets: Sets = None,
    values: ValuesFile = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="model-cache, deploy, overlay, perf, batch or ingress; default: all."),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output", help="Folder of the files; default: they are printed.")
    ] = None,
    checked: Annotated[
        bool,
        typer.Option("--check", help="Refuse manifests that cannot be applied as they are; nothing is written then."),
    ] = False,
    kubernetes: Version = KUBERNETES,
    crds: Crds = None,
    values_help: Annotated[bool, typer.Option("--values-help", help="List the keys of --set and end.")] = False,
    json: Json = False,
) -> None:
    """Render the manifests of a target.

    An image or a storage class that is not set is a placeholder, which a cluster refuses, and so does --check. Files
    that nothing else needs (perf, batch, ingress) may wait: --check names what they lack, unless --part asks for them.
    """
    from cosmos3_serve.deploy.check import name_of, require_sound
    from cosmos3_serve.deploy.crd import read_definitions
    from cosmos3_serve.deploy.render import unfinished, values_model, write
    from cosmos3_serve.deploy.values import catalogue

    if values_help:
        rows = [{"key": k, "default": d, "meaning": m} for k, d, m in catalogue(values_model(target))]
        if json:
            output.emit({"values": rows})
        else:
            print(tables.markdown(rows, ("key", "default")), end="")
        return
    files = _rendered(target, profile, service, sets, values, part)
    later = unfinished(target, files, part or ()) if checked else {}
    names = {name_of(d) for f in files if f.path in later for d in f.documents}
    every = [d for f in files for d in f.documents]
    objects = (
        require_sound(every, kubernetes=kubernetes, definitions=read_definitions(crds or ()), unfinished=names)
        if checked
        else None
    )
    if output_dir is not None:
        write(files, output_dir)
    if json:
        shown = [{"path": f.path, "part": f.part, "objects": f.documents} for f in files]
        output.emit({"target": target, "files": shown, "checked": objects, "unfinished": later})
    elif output_dir is not None:
        for each in files:
            print(output_dir / each.path)
    else:
        sys.stdout.write("---\n".join(f"# {each.path}\n{each.text()}" for each in files))
    for path, keys in later.items() if not json else ():
        output.console().print(f"{path}: set {', '.join(keys)} before you apply it", markup=False)
    if objects is not None and not json:
        output.console().print(f"{objects} objects checked against Kubernetes {kubernetes}", markup=False)


def check(
    files: Annotated[list[Path], typer.Argument(help="Manifests; - is the standard input.")],
    kubernetes: Version = KUBERNETES,
    crds: Crds = None,
    json: Json = False,
) -> None:
    """Check manifests in files: schemas, placeholders, credentials, contradictions."""
    from cosmos3_serve.deploy.check import require_sound
    from cosmos3_serve.deploy.crd import read_definitions

    documents = [d for path in files for d in _documents(path)]
    count = require_sound(documents, kubernetes=kubernetes, definitions=read_definitions(crds or ()))
    if json:
        output.emit({"valid": True, "objects": count, "kubernetes": kubernetes})
    else:
        print(f"{count} objects are valid (Kubernetes {kubernetes})")


def diff(
    file: Annotated[Path, typer.Argument(help="A manifest, or `kubectl get … -o yaml`; - is the standard input.")],
    target: Target,
    profile: Profile = "",
    service: Service = "",
    sets: Sets = None,
    values: ValuesFile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what only the file sets, a cluster's defaults among it.")
    ] = False,
    json: Json = False,
) -> int:
    """Say where a running or stored object differs from the rendering; exit code 3 where it does."""
    from cosmos3_serve.deploy.diff import difference

    rendered = [d for f in _rendered(target, profile, service, sets, values, None) for d in f.documents]
    found = difference(_documents(file), rendered, everything=everything)
    if json:
        output.emit({"equal": not found, "differences": [each.as_dict() for each in found]})
    else:
        for each in found:
            print("\n".join(each.lines()))
        if not found:
            print("no difference")
    return ExitCode.REFUSED if found else ExitCode.DONE


def _rendered(
    target: str,
    profile: str,
    service: str,
    sets: list[str] | None,
    values: Path | None,
    parts: list[str] | None,
) -> list[Any]:
    from cosmos3_serve.deploy.render import read_values
    from cosmos3_serve.deploy.render import render as run

    file = read_values(values) if values is not None else None
    return list(run(target, profile=profile, service=service, file=file, sets=sets or (), parts=parts or ()))


def _documents(path: Path) -> list[dict[str, Any]]:
    from cosmos3_serve.deploy.yamltext import from_yaml

    if str(path) == "-":
        return from_yaml(sys.stdin.read(), "the standard input")
    try:
        return from_yaml(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path.name} cannot be read: {why}", code="manifest_unreadable") from None
