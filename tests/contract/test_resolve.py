import pytest

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, VIDEO_NEGATIVE_PROMPT, diffusers_profile
from cosmos3_serve.contract.resolve import ResolvedSample, resolve_batch, resolve_sample
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.errors import ModeNotSupported, ValidationFailed

DIFFUSERS = diffusers_profile("0.42.1")
TINY = diffusers_profile("0.42.1", tiny=True)
MP4, PNG = "s3://b/v.mp4", "s3://b/i.png"
ACTION = {"vision_path": PNG, "domain_name": "av", "action_path": "s3://b/a.json"}
NEEDS = {
    "image2image": {"vision_path": PNG},
    "image2video": {"vision_path": PNG},
    "video2video": {"vision_path": MP4},
    "audio_image2video": {"vision_path": PNG, "sound_path": "s3://b/a.wav"},
    "forward_dynamics": ACTION,
    "inverse_dynamics": {"vision_path": MP4, "domain_name": "av"},
    "wam": {"vision_path": PNG, "domain_name": "av"},
    "reasoner": {"prompt": "why?"},
}


def resolve(profile=FRAMEWORK_PROFILE, **fields):
    return resolve_sample(SampleOverrides(name="a", **fields), profile, seed=77)


def test_the_72_fields():
    gone = {"defaults_file", "prompt_path", "prompt_upsampling"}
    assert set(ResolvedSample.model_fields) == set(FIELD_NAMES) - gone | {"native_prompt_upsampling"}
    assert len(ResolvedSample.model_fields) == 72


# The pinned framework's own: steps, guidance, shift, aspect ratio, frames
ROWS = {
    "text2image": (50, 4.0, 3.0, "1,1", 1),
    "image2image": (35, 6.0, 5.0, None, 1),
    "text2video": (35, 6.0, 10.0, "16,9", 189),
    "image2video": (35, 6.0, 10.0, "16,9", 189),
    "video2video": (35, 6.0, 10.0, "16,9", 189),
    "audio_image2video": (35, 6.0, 10.0, "16,9", 189),
    "forward_dynamics": (30, 1.0, 10.0, "16,9", 189),
    "inverse_dynamics": (30, 1.0, 10.0, "16,9", 189),
    "wam": (30, 1.0, 10.0, "16,9", 189),
    "reasoner": (1, 0.0, 0.0, None, 1),
}


@pytest.mark.parametrize("mode", list(ModelMode))
def test_mode_defaults(mode):
    sample = resolve(model_mode=mode, **NEEDS.get(mode, {}))
    got = (sample.num_steps, sample.guidance, sample.shift, sample.aspect_ratio, sample.num_frames)
    assert got == ROWS[mode]
    assert sample.resolution == (None if mode in ("image2image", "reasoner") else "720")
    assert sample.seed == 77
    kind = "image" if mode in ("text2image", "image2image") else "video"
    template = f"This {kind} is of {{height}}x{{width}} resolution."
    assert sample.resolution_template == (None if mode == "reasoner" else template)
    assert sample.enable_sound is (mode == "audio_image2video")
    assert sample.negative_metadata_mode == ("none" if mode == "reasoner" else "same")
    # the framework brings its own long text for video: not ours to fill in
    own_text = mode in ("text2video", "image2video", "video2video", "audio_image2video", "reasoner")
    assert sample.negative_prompt == (None if own_text else "")


def test_common_defaults():
    sample = resolve(num_frames=1)
    assert (sample.fps, sample.video_save_quality, sample.image_save_quality) == (24, 10, 95)
    assert (sample.sigma_max, sample.normalize_cfg, sample.guidance_interval) == (80.0, False, None)
    assert (sample.image_size, sample.action_chunk_size, sample.view_point) == (256, 16, "ego_view")
    assert (sample.control_guidance, sample.max_frames, sample.max_new_tokens) == (1.0, None, None)
    assert (sample.prompt, sample.extra, sample.num_outputs, sample.model) == ("", {}, 1, "")
    assert (sample.prompt_upsampler_max_tokens, sample.prompt_upsampler_seed) == (20000, 3407)
    assert (sample.duration_template or "").startswith("The video is {duration:.1f} seconds")


def test_reasoner_defaults():
    sample = resolve(model_mode="reasoner", prompt="why?")
    assert (sample.max_new_tokens, sample.do_sample, sample.temperature) == (1024, False, 1.0)
    assert (sample.top_k, sample.top_p, sample.video_fps) == (None, None, None)
    assert (sample.repetition_penalty, sample.presence_penalty) == (1.0, 0.0)
    assert (sample.fps, sample.sigma_max, sample.video_save_quality, sample.image_save_quality) == (1, 0.0, 0, 0)
    assert sample.modality == "reasoner"
    assert (sample.inverse_duration_template, sample.inverse_resolution_template) == ("", "")
    seen = resolve(model_mode="reasoner", prompt="why?", vision_path="s3://b/a.png")
    assert seen.condition_frame_indexes_vision == [] and not seen.conditioned
    assert resolve(model_mode="reasoner", prompt="x", num_frames=7).num_frames == 7  # not rounded


def test_what_the_client_says_wins():
    sample = resolve(model_mode="text2image", num_steps=3, guidance=0, shift=1, aspect_ratio="9,16", resolution="256",
                     negative_prompt="", seed=5, fps=7, sigma_max=1)  # fmt: skip
    assert (sample.num_steps, sample.guidance, sample.shift, sample.seed, sample.fps) == (3, 0.0, 1.0, 5, 7)
    assert sample.size == (192, 320)
    assert sample.negative_prompt == ""


@pytest.mark.parametrize(("given", "made"), [(1, 1), (2, 5), (6, 9), (100, 101), (189, 189)])
def test_frames_round_up(given, made):
    assert resolve(num_frames=given).num_frames == made


def test_text2image_with_frames_is_a_video():
    sample = resolve(model_mode="text2image", num_frames=5)
    assert (sample.num_frames, sample.modality) == (5, "video")


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"num_frames": 1}, "text2image"),
        ({}, "text2video"),
        ({"vision_path": PNG, "num_frames": 1}, "image2image"),
        ({"vision_path": "s3://b/i%2EJPG"}, "image2video"),
        ({"vision_path": MP4}, "video2video"),
        ({"vision_path": "/staged/3.mp4", "num_frames": 9}, "video2video"),
    ],
)
def test_implicit_mode(fields, mode):
    assert resolve(**fields).model_mode == mode


@pytest.mark.parametrize(
    ("fields", "indexes", "conditioned"),
    [
        ({}, [], False),
        ({"vision_path": PNG}, [0], True),
        ({"vision_path": MP4}, [0, 1], True),
        ({"vision_path": MP4, "condition_frame_indexes_vision": [0]}, [0], True),
        ({"vision_path": MP4, "condition_frame_indexes_vision": []}, [], False),
        ({"model_mode": "image2video"}, [], False),  # upstream runs it unconditioned
    ],
)
def test_condition_frames(fields, indexes, conditioned):
    sample = resolve(**fields)
    assert (sample.condition_frame_indexes_vision, sample.conditioned) == (indexes, conditioned)


EDGE = {"control_path": "s3://b/c.mp4"}


@pytest.mark.parametrize(
    ("hint", "guidance", "control_guidance"),
    [("edge", 3.0, 1.5), ("blur", 3.0, 1.5), ("depth", 3.0, 1.5), ("seg", 3.0, 2.0), ("wsm", 1.0, 3.0)],
)
def test_one_hint_is_tuned(hint, guidance, control_guidance):
    sample = resolve(**{hint: EDGE})
    assert (sample.guidance, sample.control_guidance, sample.shift) == (guidance, control_guidance, 10.0)
    assert sample.modality == "transfer"
    frames = (sample.num_frames, sample.fps, sample.num_video_frames_per_chunk)
    assert frames == ((101, 10, 101) if hint == "wsm" else (189, 24, 93))
    assert (sample.num_conditional_frames, sample.max_frames, sample.emphasize_control_in_prompt) == (1, 5000, True)


def test_the_client_overrides_a_hints_tuning():
    sample = resolve(wsm=EDGE, guidance=2, shift=4, control_guidance=5, num_frames=9, fps=30)
    assert (sample.guidance, sample.shift, sample.control_guidance) == (2.0, 4.0, 5.0)
    assert (sample.num_frames, sample.fps) == (9, 30)


def test_two_hints_are_not_tuned():
    sample = resolve(edge=EDGE, wsm=EDGE)
    assert (sample.guidance, sample.control_guidance, sample.num_frames, sample.fps) == (6.0, 1.0, 189, 24)


def test_hints_get_weights_and_presets():
    sample = resolve(edge=EDGE, blur={**EDGE, "weight": 2, "preset_blur_strength": "high"})
    assert sample.edge.weight == 1.0
    assert sample.edge.preset_edge_threshold == "medium"
    assert (sample.blur.weight, sample.blur.preset_blur_strength) == (2.0, "high")
    assert resolve(depth=EDGE).model_dump(mode="json")["depth"] == {"control_path": "s3://b/c.mp4", "weight": 1.0}


def test_audio_forces_sound():
    fields = {**NEEDS["audio_image2video"], "enable_sound": False}
    assert resolve(model_mode="audio_image2video", **fields).enable_sound is True


def test_upsampling_becomes_native():
    assert resolve(prompt_upsampling=True).native_prompt_upsampling is True
    assert resolve().native_prompt_upsampling is False


def test_diffusers_has_a_negative_prompt_of_its_own():
    assert resolve(DIFFUSERS).negative_prompt == VIDEO_NEGATIVE_PROMPT
    assert len(VIDEO_NEGATIVE_PROMPT) < 300
    assert resolve(DIFFUSERS, num_frames=1).negative_prompt == ""
    assert resolve(DIFFUSERS, negative_prompt="mine").negative_prompt == "mine"


def test_tiny_defaults_hold_unless_asked_otherwise():
    sample = resolve(TINY)
    assert (sample.resolution, sample.num_frames, sample.num_steps, sample.size) == ("256", 25, 4, (320, 192))
    assert resolve(TINY, num_frames=1).num_steps == 4
    sample = resolve(TINY, num_frames=49, num_steps=9, resolution="480")
    assert (sample.resolution, sample.num_frames, sample.num_steps) == ("480", 49, 9)
    sample = resolve(TINY, wsm=EDGE)
    assert (sample.num_frames, sample.num_video_frames_per_chunk, sample.max_frames) == (25, 25, 25)
    assert resolve(TINY, edge=EDGE, max_frames=49).max_frames == 49


def test_action_sample_on_diffusers():
    sample = resolve(DIFFUSERS, model_mode="wam", vision_path=PNG, domain_name=" AV ", action_chunk_size=4)
    assert (sample.domain_name, sample.num_frames, sample.frames, sample.latent_frames) == ("av", 5, 5, 2)
    assert (sample.modality, sample.size) == ("action", (320, 192))


def test_resolving_leaves_the_overrides_alone_and_is_repeatable():
    overrides = SampleOverrides(name="a", edge=EDGE, extra={"k": [1]})
    before = overrides.model_dump()
    one = resolve_sample(overrides, TINY, seed=1)
    assert overrides.model_dump() == before
    assert one == resolve_sample(overrides, TINY, seed=1)


def test_dump_round_trips():
    sample = resolve(TINY, edge=EDGE, guidance=2)
    assert ResolvedSample.model_validate(sample.model_dump(mode="json")) == sample
    assert ResolvedSample.model_validate_json(sample.model_dump_json()) == sample


def test_resolve_batch_draws_only_missing_seeds_and_keeps_order():
    seeds = iter([10, 11])
    samples = [{"name": "a"}, {"name": "b", "seed": 0}, {"name": "c"}]
    resolved = resolve_batch(BatchRequest(samples=samples), TINY, draw_seed=lambda: next(seeds))
    assert [(sample.name, sample.seed) for sample in resolved] == [("a", 10), ("b", 0), ("c", 11)]


def test_resolve_batch_names_every_finding():
    samples = [{"name": "a", "num_outputs": 2}, {"name": "b"}, {"name": "c", "model_mode": "reasoner"}]
    with pytest.raises(ValidationFailed) as caught:
        resolve_batch(BatchRequest(samples=samples), TINY, draw_seed=lambda: 1)
    assert [e.field for e in caught.value.errors] == ["samples[0].num_outputs", "samples[2].model_mode"]
    assert caught.value.stable_code == "validation_failed"
    with pytest.raises(ModeNotSupported) as caught:
        resolve_batch(BatchRequest(samples=samples[2:]), TINY, draw_seed=lambda: 1)
    assert "reasoner service" in caught.value.remedy
