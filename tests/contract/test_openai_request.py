"""OpenAI's requests as samples: what is acted on, what is refused by name, and how forms and JSON agree."""

import base64
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import image_generate_params, video_create_params

from cosmos3_serve.contract import openai_fields
from cosmos3_serve.contract.media import SIZES, Resolution
from cosmos3_serve.contract.openai_request import Kind, read_request, request_field, sizes
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.errors import InvalidRequest

PNG = b"\x89PNG pixels"
DATA = "data:image/png;base64," + base64.b64encode(PNG).decode()


def refused(body: object, kind: Kind = "video", **options: Any) -> dict[str, str]:
    """Field to remedy of every finding."""
    with pytest.raises(InvalidRequest) as found:
        read_request(body, kind, **options)
    assert found.value.status == 400
    return {item.field: item.remedy for item in found.value.errors}


def sample(kind: Kind = "video", **fields: Any) -> dict[str, Any]:
    return read_request({"prompt": "a ball", **fields}, kind).sample


def test_every_field_that_is_acted_on_reaches_the_sample() -> None:
    made = sample(
        negative_prompt="blur", size="1280x720", num_frames=29, fps=24, num_inference_steps=35, guidance_scale=6.5,
        flow_shift=10.0, seed=7, generate_sound=True, extra_params={"condition_video_keep": "last"},
    )  # fmt: skip
    assert made == {
        "prompt": "a ball", "negative_prompt": "blur", "resolution": "720", "aspect_ratio": "16,9", "num_frames": 29,
        "fps": 24, "num_steps": 35, "guidance": 6.5, "shift": 10.0, "seed": 7, "enable_sound": True,
        "condition_video_keep": "last",
    }  # fmt: skip
    SampleOverrides.model_validate({"name": "video", **made})


def test_a_form_of_texts_is_the_same_sample_as_json() -> None:
    form = sample(num_frames="29", fps="24", num_inference_steps="35", guidance_scale="6.5", seed="7", width="832",
                  height="480", extra_params='{"condition_video_keep": "last"}')  # fmt: skip
    json = sample(num_frames=29, fps=24, num_inference_steps=35, guidance_scale=6.5, seed=7, size="832x480",
                  extra_params={"condition_video_keep": "last"})  # fmt: skip
    checked = [SampleOverrides.model_validate({"name": "v", **made}) for made in (form, json)]
    assert checked[0] == checked[1]


def test_a_picture_has_one_frame() -> None:
    assert sample("image", size="256x256")["num_frames"] == 1
    assert refused({"prompt": "a", "num_frames": 5}, "image") == {"num_frames": "leave it out"}


@pytest.mark.parametrize(
    ("fields", "frames"),
    [({"seconds": "4"}, 96), ({"seconds": 4, "fps": 10}, 40), ({"seconds": "0.5", "fps": "30"}, 15), ({}, None)],
)
def test_seconds_are_frames(fields: dict[str, Any], frames: int | None) -> None:
    assert sample(**fields).get("num_frames") == frames


def test_every_size_of_every_tier_is_known_and_no_other() -> None:
    for tier in Resolution:
        for ratio, (width, height) in SIZES[tier].items():
            resolution, aspect = sizes()[f"{width}x{height}"]
            assert SIZES[resolution][aspect] == (width, height) and aspect == ratio
    for size in ("100x100", "1280x704", "720X1280", "1280x720 ", "0x0", "x", ""):
        remedy = refused({"prompt": "a", "size": size})["size"]
        assert "1280x720" in remedy and "256x256" in remedy and "1280x704" not in remedy


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": " "}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": ["a"]}, "prompt"),
        ({"model": 1}, "model"), ({"response_format": "file"}, "response_format"),
        ({"width": 1280}, "width"), ({"width": 1280, "height": 720, "size": "1280x720"}, "width"),
        ({"seconds": "4", "num_frames": 5}, "seconds"), ({"seconds": "nan"}, "seconds"),
        ({"seconds": "1e99"}, "seconds"), ({"extra_params": "{"}, "extra_params"),
        ({"seconds": True}, "seconds"), ({"seconds": 0}, "seconds"), ({"seconds": 4, "fps": 0}, "fps"),
        ({"num_frames": 1}, "num_frames"), ({"extra_params": []}, "extra_params"),
        ({"extra_params": {"vision_path": "s3://b/k"}}, "extra_params.vision_path"),
        ({"enable_sound": True, "generate_sound": True}, "generate_sound"),
        ({"input_reference": "https://example.com/a.png"}, "input_reference"),
        ({"input_reference": {"file_id": "file-1"}}, "input_reference.file_id"),
        ({"input_reference": "data:image/png;base64,@@"}, "input_reference"),
        ({"input_reference": DATA, "image_reference": DATA}, "image_reference"),
        ({"video_reference": {"image_url": DATA}}, "video_reference.image_url"), ({"n": 2}, "n"), ({"n": True}, "n"),
        ({"stream": True}, "stream"), ({"lora": {}}, "lora"), ({"num_frame": 5}, "num_frame"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str) -> None:
    kind: Kind = "image" if "response_format" in fields else "video"
    assert field in refused({"prompt": "a ball", **fields}, kind)


def test_all_findings_come_at_once() -> None:
    assert set(refused({"size": "1x1", "n": 3, "user": "me"})) == {"prompt", "size", "n", "user"}
    for body in (None, [], "text", 1):
        refused(body)


def test_neutral_values_and_nulls_are_taken() -> None:
    assert sample("image", n=1, quality="auto", background="opaque", style=None, stream=False) == sample("image")
    assert sample(n="1", stream="false") == sample()


@pytest.mark.parametrize(
    "fields",
    [
        {"input_reference": DATA}, {"input_reference": {"image_url": DATA}}, {"input_reference[image_url]": DATA},
        {"image_reference": {"image_url": DATA}}, {"image_reference": '{"image_url": "' + DATA + '"}'},
        {"image_reference": {"image_url": {"url": DATA}}}, {"video_reference": {"video_url": DATA}},
        {"reference_url": DATA},
    ],
)  # fmt: skip
def test_a_reference_may_come_in_every_published_form(fields: dict[str, Any]) -> None:
    asked = read_request({"prompt": "a", **fields}, "video")
    assert asked.reference == PNG and "vision_path" not in asked.sample


def test_a_file_or_an_s3_object_is_a_reference() -> None:
    assert read_request({"prompt": "a"}, "video", file=PNG).reference == PNG
    assert sample(input_reference="s3://bucket/a.png")["vision_path"] == "s3://bucket/a.png"
    assert "image_reference" in refused({"prompt": "a", "image_reference": DATA}, file=PNG)


def test_findings_about_the_sample_name_the_requests_field() -> None:
    places = {"samples[0].num_steps": "num_inference_steps", "samples[0].guidance": "guidance_scale",
              "resolution": "size", "vision_path": "input_reference", "enable_sound": "enable_sound",
              "condition_frame_indexes_vision[0]": "extra_params.condition_frame_indexes_vision[0]"}  # fmt: skip
    assert {place: request_field(place, "video") for place in places} == places


def test_the_tables_know_every_field_of_openai_s_api() -> None:
    images = set(image_generate_params.ImageGenerateParamsBase.__annotations__) | {"stream"}
    videos = set(video_create_params.VideoCreateParams.__annotations__)
    known = set(openai_fields.REFUSED) | set(openai_fields.NEUTRAL)
    assert videos <= set(openai_fields.VIDEO_FIELDS)
    # What OpenAI added for other models than those with pictures of pixels; refused as unknown.
    assert images - set(openai_fields.IMAGE_FIELDS) - known <= {"svg", "complexity", "frame_count", "frame_duration_ms"}


def test_the_tables_name_fields_that_exist() -> None:
    targets = {*openai_fields.VIDEO_SAMPLE_FIELDS.values(), *openai_fields.EXTRA_PARAMS}
    assert targets <= set(FIELD_NAMES)
    assert not set(openai_fields.REFUSED) & set(openai_fields.VIDEO_FIELDS)
    assert get_args(Kind) == ("image", "video")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*openai_fields.VIDEO_FIELDS, *openai_fields.REFUSED]) | st.text(max_size=8)


@given(st.dictionaries(names, json_values, max_size=8), st.sampled_from(["image", "video"]))
def test_whatever_is_sent_is_read_or_refused(body: dict[str, Any], kind: Kind) -> None:
    try:
        read_request(body, kind)
    except InvalidRequest as error:
        assert error.detail
