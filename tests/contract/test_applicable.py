"""Which settings each engine and mode uses, over every field of the settings: nothing is accepted and ignored.

A new field fails here until somebody has said with which value it is tried, and in which modes it has no effect.
"""

import ast
import functools
from pathlib import Path
from typing import Any

import pytest

import cosmos3_serve
from cosmos3_serve.contract.applicable import CODE, refuse_ignored
from cosmos3_serve.errors import UsageError
from cosmos3_serve.settings import GeneratorSettings, ReasonerSettings

SRC = Path(cosmos3_serve.__file__).parent

GENERATOR_MODES: dict[str, dict[str, Any]] = {
    "diffusers": {"engine": "diffusers"},
    "framework": {"engine": "framework"},
    "diffusers, unguarded": {"engine": "diffusers", "guardrails": False},
    "framework, unguarded": {"engine": "framework", "guardrails": False},
    "diffusers on the CPU": {"engine": "diffusers", "device": "cpu"},
}
UNGUARDED = {"diffusers, unguarded", "framework, unguarded"}
DIFFUSERS = {"diffusers", "diffusers, unguarded", "diffusers on the CPU"}
FRAMEWORK = {"framework", "framework, unguarded"}
# Field: a value that is not the default, and the modes that ignore it.
GENERATOR: dict[str, tuple[Any, set[str]]] = {
    "host": ("127.0.0.1", set()),
    "port": (8100, set()),
    "model": ("Mine", set()),
    "checkpoint": ("/models/mine", set()),
    "output_path": (Path("/elsewhere"), set()),
    "world_size": (2, set()),  # refused with --engine diffusers by `check_placement`
    "max_batch_size": (8, set()),
    "batch_wait_timeout_s": (0.2, set()),
    "parallelism_preset": ("latency", DIFFUSERS),
    "guardrails": (False, set()),
    "guardrail_revision": ("5" * 40, UNGUARDED | FRAMEWORK),
    "guardrail_controversial": ("pass", UNGUARDED),
    "guardrail_timeout_s": (9.0, UNGUARDED),
    "allowed_s3_roots": ("s3://b/in", set()),
    "defaults_file": (Path("/d.json"), set()),
    "engine": ("diffusers", set()),
    "max_num_seqs": (2, set()),
    "queue_limit": (9, set()),
    "max_samples": (9, set()),
    "max_body_bytes": (4096, set()),
    "max_input_bytes": (4096, set()),
    "input_timeout_s": (9.0, set()),
    "retention_hours": (9.0, set()),
    "retention_bytes": (9, set()),
    "stall_timeout_s": (9.0, set()),
    "drain_timeout_s": (9.0, set()),
    "framework_args": (("use_cuda_graphs=true",), DIFFUSERS),
    "ray_address": ("head:6379", set()),
    "cache_dir": (Path("/cache"), set()),
    "device": ("cuda", FRAMEWORK),
    "force_unsupported_gpu": (True, set()),  # a permission: without a GPU there is nothing to permit
    "log_level": ("debug", set()),
}
REASONER_MODES: dict[str, dict[str, Any]] = {
    "affinity": {"routing": "session-affinity"},
    "round robin": {"routing": "round-robin"},
    "shared store": {"media_store": "s3://b/p"},
    "range": {"workers": "1:2", "media_store": "s3://b/p"},
}
ROBIN, LOCAL, FIXED = {"round robin"}, {"affinity", "round robin"}, {"affinity", "round robin", "shared store"}
REASONER: dict[str, tuple[Any, set[str]]] = {
    "host": ("127.0.0.1", set()),
    "port": (8100, set()),
    "model": ("tiny", set()),
    "workers": ("1:3", set()),
    "scale_load": (9, FIXED),
    "scale_down_after_s": (9.0, FIXED),
    "gateways": (2, set()),
    "routing": ("round-robin", set()),
    "session_mode": ("hard", ROBIN),
    "session_ttl_s": (9.0, ROBIN),
    "session_headers": (("X-Mine",), ROBIN),
    "precision": ("bf16", set()),
    "max_num_seqs": (2, set()),
    "max_model_len": (2048, set()),
    "max_body_bytes": (4096, set()),
    "max_media_bytes": (4096, set()),
    "videos_per_message": (2, set()),
    "images_per_message": (2, set()),
    "media_allow": (("host:80",), set()),
    "allowed_s3_roots": ("s3://b/in", set()),
    "store_dir": (Path("/store"), set()),
    "store_bytes": (2**21, set()),
    "store_hours": (9.0, set()),
    "media_store": ("s3://b/q", set()),
    "share_caches": (True, set()),
    "media_store_bytes": (2**21, LOCAL),
    "media_store_tenant_bytes": (2**21, LOCAL),
    "vllm_python": (Path("/python"), set()),
    "vllm_args": (("--x",), set()),
    "queue_limit": (9, set()),
    "queue_timeout_s": (9.0, set()),
    "answer_timeout_s": (9.0, set()),
    "replica_tls": (True, set()),
    "hang_timeout_s": (9.0, set()),
    "tool_parser": ("none", set()),
    "start_timeout_s": (9.0, set()),
    "drain_timeout_s": (9.0, set()),
    "ray_address": ("head:6379", set()),
    "name": ("second", set()),
    "cache_dir": (Path("/cache"), set()),
    "log_level": ("debug", set()),
}
TABLES = [(GeneratorSettings, GENERATOR, GENERATOR_MODES), (ReasonerSettings, REASONER, REASONER_MODES)]


@pytest.mark.parametrize(("model", "table"), [row[:2] for row in TABLES])
def test_every_setting_has_its_row(model: type[Any], table: dict[str, Any]) -> None:
    assert table.keys() == model.model_fields.keys()
    assert [name for name, (value, _) in table.items() if value == model.model_fields[name].default] == []


@pytest.mark.parametrize(
    ("model", "name", "value", "mode", "ignored"),
    [
        pytest.param(model, name, value, where, mode in ignoring, id=f"{name}, {mode}")
        for model, table, modes in TABLES
        for name, (value, ignoring) in table.items()
        for mode, where in modes.items()
        if name not in where
    ],
)
def test_a_setting_is_used_or_refused(model: Any, name: str, value: Any, mode: dict[str, Any], ignored: bool) -> None:
    settings = model(**mode, **{name: value})
    if not ignored:
        refuse_ignored(settings)
        return
    with pytest.raises(UsageError) as refused:
        refuse_ignored(settings)
    assert (refused.value.stable_code, refused.value.exit_code) == (CODE, 2)
    assert [error.field for error in refused.value.errors] == [model.flag_name(name)]
    assert model.flag_name(name) in refused.value.detail and refused.value.remedy


def test_the_default_written_down_is_no_fault() -> None:
    """An image or a manifest may name every setting; only a value that would have changed something is refused."""
    for model, _, modes in TABLES:
        for mode in modes.values():
            refuse_ignored(model(**{**{n: f.default for n, f in model.model_fields.items()}, **mode}))


def test_several_are_told_at_once_and_a_batch_beyond_its_wave_is_refused() -> None:
    wrong = GeneratorSettings(engine="diffusers", parallelism_preset="latency", framework_args=("a=b",), max_num_seqs=5)
    with pytest.raises(UsageError) as refused:
        refuse_ignored(wrong)
    assert [e.field for e in refused.value.errors] == ["--parallelism-preset", "--framework-arg", "--max-num-seqs"]
    refuse_ignored(GeneratorSettings(engine="diffusers", max_num_seqs=5, max_batch_size=5))


@functools.cache
def readers() -> dict[str, set[str]]:
    """Setting: files of the generator, relative to its folder, that read `settings.NAME`."""
    found: dict[str, set[str]] = {}
    for path in [*(SRC / "generator").rglob("*.py"), *(SRC / "service").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("settings"):
                name = "max_num_seqs" if node.attr == "inference_batch_limit" else node.attr
                found.setdefault(name, set()).add(path.relative_to(SRC).as_posix().removeprefix("generator/"))
    return found


@pytest.mark.parametrize("name", GENERATOR)
def test_what_only_one_engine_reads_the_other_refuses(name: str) -> None:
    """From the source: a setting whose readers all belong to one engine must be in the other's row above."""
    where = readers().get(name, set())
    assert where, "nothing reads it at all"
    upstream = {path for path in where if path.startswith("engines/framework/")}
    own = {path for path in where if path.startswith("engines/diffusers/") or path == "model.py"}
    ignoring = GENERATOR[name][1]
    if where == upstream:
        assert ignoring >= DIFFUSERS
    if where == own:
        assert ignoring >= FRAMEWORK
