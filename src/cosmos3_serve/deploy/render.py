"""Render the files of a target from its profile and values: the entry point of this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cosmos3_serve.deploy.dynamo.recipe import recipe as dynamo_recipe
from cosmos3_serve.deploy.dynamo.values import PROFILES, DynamoValues, Profile
from cosmos3_serve.deploy.kuberay.recipe import recipe as kuberay_recipe
from cosmos3_serve.deploy.kuberay.values import SERVICES, KuberayValues
from cosmos3_serve.deploy.manifest import OPTIONAL, PARTS, ManifestFile
from cosmos3_serve.deploy.values import PLACEHOLDER, Values, catalogue
from cosmos3_serve.deploy.yamltext import one_mapping
from cosmos3_serve.errors import InputError, UsageError

TARGETS: Mapping[str, type[Values]] = {"dynamo": DynamoValues, "kuberay": KuberayValues}
ALL_PROFILES = "all"


def values_model(target: str) -> type[Values]:
    """Raises UsageError (code `deploy_unknown_target`)."""
    model = TARGETS.get(target)
    if model is None:
        raise UsageError(
            f"--target {target!r} is none of {', '.join(TARGETS)}",
            code="deploy_unknown_target",
            remedy="for example --target dynamo",
        )
    return model


def profiles_of(profile: str) -> tuple[Profile, ...]:
    """Raises UsageError (code `deploy_unknown_profile`)."""
    if profile in ("", ALL_PROFILES):
        return PROFILES
    if profile not in PROFILES:
        raise UsageError(
            f"--profile {profile!r} is none of {', '.join(PROFILES)}",
            code="deploy_unknown_profile",
            remedy="for example --profile session-affinity",
        )
    return (profile,)


def read_values(path: Path) -> dict[str, Any]:
    """A values file. Raises InputError (code `deploy_values_file`)."""
    try:
        return one_mapping(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path.name} cannot be read: {why}", code="deploy_values_file") from None


def render(
    target: str,
    *,
    profile: str = "",
    service: str = "",
    file: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> list[ManifestFile]:
    """
    Args:
        profile: one profile; "" or `all`: every one that the target has.
        service: `generator` or `reasoner`, of the target kuberay alone.
        file: values as read from YAML; sets: `key=value` over them.
        parts: only these of `PARTS`; none: all.

    Raises:
        UsageError: target, profile, part, key or value is not one of this package.
    """
    values = values_model(target).load(file, sets)
    wrong = [part for part in parts if part not in PARTS]
    if wrong:
        raise UsageError(
            f"--part {wrong[0]!r} is none of {', '.join(PARTS)}",
            code="deploy_unknown_part",
            remedy="leave it out for all",
        )
    if isinstance(values, KuberayValues):
        files = _kuberay(values, service, profile)
    elif service:
        raise UsageError(
            f"--target {target} has the reasoner alone: --service is for kuberay",
            code="deploy_unknown_service",
            remedy="leave it out",
        )
    else:
        files = dynamo_recipe(cast(DynamoValues, values), profiles_of(profile))
    return [each for each in files if not parts or each.part in parts]


def unfinished(target: str, files: Sequence[ManifestFile], parts: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Paths of optional files that still hold placeholders, with the keys that would replace them.

    Args:
        parts: what was asked for by name: a part that was asked for is not optional.
    """
    wanted = {key: default for key, default, _ in catalogue(values_model(target)) if PLACEHOLDER in default}
    found = {
        each.path: tuple(key for key, default in wanted.items() if default in each.text())
        for each in files
        if each.part in OPTIONAL and each.part not in parts
    }
    return {path: keys for path, keys in found.items() if keys}


def _kuberay(values: KuberayValues, service: str, profile: str) -> list[ManifestFile]:
    if service not in SERVICES:
        raise UsageError(
            f"--service {service!r} is none of {', '.join(SERVICES)}",
            code="deploy_unknown_service",
            remedy="for example --service generator",
        )
    if service == "generator" and profile:
        raise UsageError(
            "the generator has no routing profiles", code="deploy_not_in_profile", remedy="leave --profile out"
        )
    # One service, one routing: what `reasoner serve` has by default, unless a profile is named.
    routing: Profile = profiles_of(profile)[0] if profile not in ("", ALL_PROFILES) else "session-affinity"
    return kuberay_recipe(service, values, routing)


def write(files: Sequence[ManifestFile], folder: Path) -> None:
    """Write the files below `folder`, replacing what is there.

    Raises:
        InputError: code `deploy_not_written`.
    """
    for each in files:
        path = folder / each.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each.text(), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{each.path} cannot be written: {error.strerror}",
                code="deploy_not_written",
                remedy="name a folder that can be written: --output",
            ) from None
