"""`image`: what anybody and what these credentials may pull, told apart in one row for each image."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.oci_registry import DIGEST, PASSWORD, USER, OciRegistry, oci_registry

from cosmos3_serve.checks.image import check_image, login_for, named_images
from cosmos3_serve.checks.preflight import preflight
from cosmos3_serve.checks.registry import ImageRef
from cosmos3_serve.checks.report import Row
from cosmos3_serve.errors import UsageError


def docker_config(folder: Path, host: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """The environment of somebody who ran `docker login` there."""
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
    return {"DOCKER_CONFIG": str(folder)}


async def check(registry: OciRegistry, environ: dict[str, str], **flags: Any) -> Row:
    return await check_image(ImageRef.parse(registry.image), environ, offline=False, timeout_s=5, **flags)


@pytest.mark.parametrize(
    ("how", "password", "status", "words"),
    [
        ({}, None, "PASS", "by anybody"),
        ({"demands": "bearer", "anonymous": False}, PASSWORD, "PASS", "with the credentials at hand alone"),
        ({"demands": "bearer", "anonymous": False}, None, "FAIL", "cannot be pulled"),
        ({"demands": "bearer", "anonymous": False}, "old", "FAIL", "cannot be pulled"),
        ({"demands": "bearer"}, "old", "WARN", "not with the credentials"),
        ({"answer": (404, {})}, None, "FAIL", "404"),
        ({"digest": "sha256:" + "1" * 64}, PASSWORD, "FAIL", "another digest"),
        ({"answer": (429, {})}, None, "WARN", "429"),
        ({"answer": (500, {})}, PASSWORD, "WARN", "500"),
    ],
)
async def test_both_questions_make_one_row(
    tmp_path: Path, how: dict[str, Any], password: str | None, status: str, words: str
) -> None:
    with oci_registry(**how) as registry:
        environ = {"DOCKER_CONFIG": str(tmp_path)}
        if password:
            environ = docker_config(tmp_path, registry.host, password=password)
        row = await check(registry, environ)
    assert row.status == status and words in row.summary, row
    assert row.details[0].startswith("without credentials:") and len(row.details) == 2
    assert bool(row.remedy) is (status != "PASS")
    assert password is None or password not in str(row)


async def test_offline_asks_nobody() -> None:
    with oci_registry() as registry:
        image = ImageRef.parse(registry.image)
        assert (await check_image(image, {}, offline=True, timeout_s=5)).status == "SKIP"
        assert registry.asked == []


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"auths": []}', '{"auths": {"h": {"auth": "%%"}}}', '{"auths": {"h": {}}}']
)
def test_a_config_that_cannot_be_read_is_no_login(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert login_for("h", {"DOCKER_CONFIG": str(tmp_path)}) is None


def test_whose_credentials_a_registry_gets(tmp_path: Path) -> None:
    environ = docker_config(tmp_path, "https://index.docker.io/v1/") | {"NGC_API_KEY": "nvapi-x"}
    assert login_for("docker.io", environ) == (USER, PASSWORD)
    assert login_for("nvcr.io", environ) == ("$oauthtoken", "nvapi-x")
    assert login_for("nvcr.io.evil.example", environ) is None
    assert login_for("registry.example", environ) is None


def test_which_images_are_asked_for() -> None:
    one, two = f"a.example/x@{DIGEST}", f"a.example/y@{DIGEST}"
    assert [str(i) for i in named_images([one, two, one], {"NPA_TASK_IMAGE": "z"}, required=True)] == [one, two]
    assert [str(i) for i in named_images([], {"NPA_TASK_IMAGE": one}, required=True)] == [one]
    assert named_images([], {}, required=False) == ()
    with pytest.raises(UsageError, match="no image is named"):
        named_images([], {}, required=True)
    with pytest.raises(UsageError, match="no digest"):
        named_images([], {"NPA_TASK_IMAGE": "a.example/x:latest"}, required=False)


async def test_each_image_has_its_row() -> None:
    with oci_registry() as good, oci_registry(answer=(403, {})) as bad:
        images = (ImageRef.parse(good.image), ImageRef.parse(bad.image))
        report = await preflight(("image",), {"DOCKER_CONFIG": "/nowhere"}, images=images)
    assert [row.status for row in report.rows] == ["PASS", "FAIL"] and report.exit_code == 3
    assert [row.status for row in (await preflight(("image",), {})).rows] == ["SKIP"]
