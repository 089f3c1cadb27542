"""Shareable evidence names nobody: not the stuffed publication, not this machine, whatever hides in which field."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.publication import IMAGE, VIDEO, sample, write_publication

from cosmos3_serve.contract.batch import CheckpointRecord, EngineRecord
from cosmos3_serve.contract.provenance import Provenance
from cosmos3_serve.contract.records import SampleRecord, SampleWave
from cosmos3_serve.errors import IntegrityError, Refusal, UsageError
from cosmos3_serve.review.evidence import evidence_of
from cosmos3_serve.review.evidence_export import check, export_evidence

NAMES = {
    "tenant": "tenant-acme7",
    "project": "project-e00zebra",
    "cluster": "kite-cluster-1",
    "bucket": "quokka-bucket",
    "endpoint": "http://node-17.acme.internal:8123",
    "node": "node-17",
    "user": "jane.doe@acme.example",
    "token": "tok_S3CR3T99zz",
    "prompt": "the secret prototype in hall nine",
    "path": "/mnt/acme/outputs",
    "ip": "10.20.30.40",
    "host": "gpu-host-zeta",
}
ALL = " ".join(NAMES.values())
REVISION = "5e67049cd94acb667786f1e6dd0dab821cb90c97"


def stuffed(root: Path) -> Provenance:
    """A publication with the names in every field that holds text."""
    name, other = NAMES["tenant"], NAMES["cluster"]
    waves = SampleWave(coalesced_id=ALL, inference_id=ALL, coalesced=2, inference_batch=2, neighbours=[other])
    records = [
        SampleRecord(
            name=item,
            state="succeeded",
            code=ALL,
            message=ALL,
            seed=17,
            guardrails={
                "checks": [{"check": ALL, "decision": ALL}, {"check": ALL, "decision": "passed"}],
                NAMES["node"]: ALL,
            },
            timings={"inference": 1.5, NAMES["node"]: 2.0},
            wave=waves,
        )
        for item in (name, other)
    ]
    results = [
        sample(name, IMAGE, prompt=NAMES["prompt"], extra={NAMES["project"]: ALL}, negative_prompt=ALL),
        sample(other, VIDEO, prompt=ALL, vision_path=f"s3://{NAMES['bucket']}/x.png"),
    ]
    return write_publication(
        root,
        results,
        run_id=ALL,
        endpoint=NAMES["endpoint"],
        input_path=f"s3://{NAMES['bucket']}/{NAMES['project']}/batch.json",
        output_path=f"s3://{NAMES['bucket']}/out/",
        model=ALL,
        backend=ALL,
        server_source_revision="a" * 40,
        framework_revision=ALL,
        runtime_image=f"registry.acme.example/{NAMES['tenant']}/image@sha256:{'b' * 64}",
        published_uri=f"s3://{NAMES['bucket']}/out/",
        provenance_uri=NAMES["path"],
        engine=EngineRecord(engine=ALL, revision=ALL),
        checkpoint=CheckpointRecord(id=NAMES["path"], revision=ALL, digest=ALL),
        samples=records,
        client_version=NAMES["ip"],
        throughput_note=ALL,
        phases={"delivery": 0.5, NAMES["node"]: 1.0},
    )


def test_a_publication_full_of_names(tmp_path: Path) -> None:
    stuffed(tmp_path / "pub")
    system = {"accelerators": [{"name": f"NVIDIA H200 {ALL}", "compute_capability": "9.0"}] * 2, "host": ALL}
    (tmp_path / "system.json").write_text(json.dumps(system))
    environ = {"HOSTNAME": NAMES["host"], "AWS_SECRET_ACCESS_KEY": NAMES["token"], "NPA_COSMOS3_RAY_TOKEN": "zz-token"}
    output = tmp_path / "evidence.json"
    export_evidence(str(tmp_path / "pub"), output, system_info=tmp_path / "system.json", environ=environ)
    text = output.read_text().casefold()
    for name in (*NAMES.values(), "acme", "quokka", "zebra", "zz-token", "prototype", "batch-1", str(tmp_path)):
        assert name.casefold() not in text, name
    record = json.loads(output.read_text())
    assert record["gpus"] == [{"family": "H200", "count": 2, "compute_capability": "9.0"}]
    assert (record["image_digest"], record["server_source_revision"]) == (f"sha256:{'b' * 64}", "a" * 40)
    assert [record[key] for key in ("backend", "engine", "engine_revision", "client_version", "checkpoint")] == [
        None
    ] * 5
    assert [(s["index"], s["mode"], s["code"], s["seed"]) for s in record["samples"]] == [
        (0, "text2image", "other", 17),
        (1, "text2video", "other", 17),
    ]
    assert record["samples"][0]["timings_s"] == {"inference": 1.5}
    assert (record["succeeded"], record["phases_s"], len(record["artifacts"])) == (2, {"delivery": 0.5}, 2)
    assert record["samples"][0]["guardrails_applied"] == 1


def test_what_is_true_is_kept(tmp_path: Path) -> None:
    write_publication(
        tmp_path / "pub",
        [sample("still", IMAGE)],
        framework_revision=REVISION,
        backend="cosmos-framework-native-ray-serve",
        engine=EngineRecord(engine="framework", revision=REVISION),
        checkpoint=CheckpointRecord(id="nvidia/Cosmos3-Nano", revision="4" * 40, digest="5" * 64),
        client_version="0.1.0",
    )
    made = export_evidence(str(tmp_path / "pub"), tmp_path / "e.json")  # with this machine's real environment
    assert (made.engine, made.engine_revision, made.checkpoint) == ("framework", REVISION, "nvidia/Cosmos3-Nano")
    assert (made.client_version, made.checkpoint_digest) == ("0.1.0", "5" * 64)
    assert made.provenance_sha256 and made.response_sha256


def test_an_unverified_publication_is_no_evidence(tmp_path: Path) -> None:
    write_publication(tmp_path / "pub", [sample("still", IMAGE)])
    (tmp_path / "pub" / "response.json").write_text("{}")
    with pytest.raises(IntegrityError):
        export_evidence(str(tmp_path / "pub"), tmp_path / "e.json")
    assert not (tmp_path / "e.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_system_info(tmp_path: Path, text: str) -> None:
    write_publication(tmp_path / "pub", [sample("still", IMAGE)])
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UsageError):
        export_evidence(str(tmp_path / "pub"), tmp_path / "e.json", system_info=tmp_path / "s.json")


# ---- the second guard, by itself


@pytest.mark.parametrize(
    "leak",
    [
        NAMES["tenant"],
        "x-tenant-acme7-y",
        "TENANT-ACME7",
        "node-17",
        "10.20.30.40",
        "10.9.9.9",
        "a@b",
        "s3://x",
        "/tmp/x",
    ],
)
def test_a_mistake_in_the_allow_list_is_found(tmp_path: Path, leak: str) -> None:
    record = stuffed(tmp_path)
    document = evidence_of(record, "c" * 64).model_dump(mode="json")
    check(json.dumps(document), [record.model_dump(mode="json")], [])
    for broken in (document | {"client_version": leak}, document | {leak: 1}, document | {"gpus": [{"family": leak}]}):
        with pytest.raises(Refusal) as caught:
            check(json.dumps(broken), [record.model_dump(mode="json")], [])
        assert caught.value.stable_code == "evidence_leak"
        assert leak not in str(caught.value)


def test_names_that_the_operator_denies(tmp_path: Path) -> None:
    write_publication(tmp_path / "pub", [sample("still", IMAGE)], client_version="7.7.7")
    with pytest.raises(Refusal):
        export_evidence(str(tmp_path / "pub"), tmp_path / "e.json", deny=["7.7.7"])
    assert not (tmp_path / "e.json").exists()


def test_short_names_are_not_found_in_hashes_by_chance(tmp_path: Path) -> None:
    record = write_publication(tmp_path, [sample("cafe", IMAGE), sample("a1b2c3", IMAGE)], run_id="deadbeef")
    made = evidence_of(record, "cafea1b2c3deadbeef" + "0" * 46)
    check(json.dumps(made.model_dump(mode="json")), [record.model_dump(mode="json")], [])


# ---- names planted at random, in any field

LETTERS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=3, max_size=9)
NAME = st.one_of(
    st.builds("{}-{}q{}".format, LETTERS, LETTERS, LETTERS),
    st.builds("{}z.{}.internal".format, LETTERS, LETTERS),
    st.builds("user_{}@{}.example".format, LETTERS, LETTERS),
    st.builds("s3://{}w/{}/".format, LETTERS, LETTERS),
    st.builds("/srv/{}/{}".format, LETTERS, LETTERS),
    st.tuples(*[st.integers(0, 255)] * 4).map(lambda parts: ".".join(map(str, parts))),
    st.text(min_size=5, max_size=40).filter(lambda text: not text.isascii() and text.strip() == text),
)


def texts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON value holds text."""
    if isinstance(value, dict):
        return [found for key, child in value.items() for found in texts(child, (*path, key))]
    if isinstance(value, list):
        return [found for index, child in enumerate(value) for found in texts(child, (*path, index))]
    return [path] if isinstance(value, str) else []


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("base")
    return stuffed(place).model_dump(mode="json")


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=200, deadline=None)
@given(name=NAME, data=st.data())
def test_a_planted_name_never_comes_out(base: dict[str, Any], name: str, data: st.DataObject) -> None:
    record = json.loads(json.dumps(base))
    for *path, last in data.draw(st.lists(st.sampled_from(texts(record)), min_size=1, max_size=8, unique=True)):
        place = record
        for part in path:
            place = place[part]
        before = place[last]
        place[last] = name
        try:
            Provenance.model_validate(record)
        except ValueError:  # a field of fixed form refuses it before anybody exports it
            place[last] = before
    parsed = Provenance.model_validate(record)
    text = json.dumps(evidence_of(parsed, "d" * 64).model_dump(mode="json"), ensure_ascii=False)
    assert name.casefold() not in text.casefold()
    check(text, [parsed.model_dump(mode="json")], [name])
