"""A small audio autoencoder with random weights, laid out as Cosmos3-Nano's repository has it (`sound_tokenizer/`).

Upstream's own class makes the weights. Its published layout names the decoder's parts; the class numbers them.
"""

import json
import re
from pathlib import Path

HOP, RATE, CHANNELS = 1920, 48000, 64
CONFIG = {
    "model_type": "autoencoder_v2", "sampling_rate": RATE, "stereo": True, "use_wav_as_input": True,
    "normalize_volume": True, "hop_size": HOP, "input_channels": 1, "enc_type": "spec_convnext", "enc_dim": 8,
    "enc_intermediate_dim": 16, "enc_num_layers": 3, "enc_num_blocks": 1, "enc_n_fft": 64, "enc_hop_length": 16,
    "enc_latent_dim": 2 * CHANNELS, "enc_c_mults": [1, 1, 2], "enc_strides": [4, 5, 6], "enc_identity_init": False,
    "enc_use_snake": True, "dec_type": "oobleck", "dec_dim": 4, "dec_c_mults": [1, 1, 2, 2, 4],
    "dec_strides": [4, 4, 4, 5, 6], "dec_use_snake": True, "dec_final_tanh": False, "dec_out_channels": 2,
    "dec_anti_aliasing": False, "dec_use_nearest_upsample": False, "dec_use_tanh_at_final": False,
    "bottleneck_type": "vae", "bottleneck": {"type": "vae"}, "activation": "snakebeta", "snake_logscale": True,
    "anti_aliasing": False, "use_cuda_kernel": False, "causal": False, "padding_mode": "zeros",
    "vocoder_input_dim": CHANNELS,
}  # fmt: skip
UNIT = ("snake1", "conv1", "snake2", "conv2")


def published(name: str) -> str:
    """A parameter's name in the published layout."""
    blocks = len(CONFIG["dec_strides"])  # type: ignore[arg-type]
    if not name.startswith("decoder.layers."):
        return name
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    assert match is not None
    index, rest = int(match[1]), match[2]
    if index == 0 or index > blocks:
        part = {0: "conv1", blocks + 1: "snake1", blocks + 2: "conv2"}[index]
        return f"decoder.{part}.{rest}"
    inner = re.fullmatch(r"layers\.(\d+)\.(.+)", rest)
    assert inner is not None
    place, rest = int(inner[1]), inner[2]
    if place < 2:
        return f"decoder.block.{index - 1}.{('snake1', 'conv_t1')[place]}.{rest}"
    unit = re.fullmatch(r"layers\.(\d+)\.(.+)", rest)
    assert unit is not None
    return f"decoder.block.{index - 1}.res_unit{place - 1}.{UNIT[int(unit[1])]}.{unit[2]}"


def save_random(folder: Path) -> None:
    from cosmos_framework.model.generator.tokenizers.audio.avae_utils.env import AttrDict
    from cosmos_framework.model.generator.tokenizers.audio.avae_utils.models import load_generator
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = AttrDict({**CONFIG, "bottleneck": AttrDict(CONFIG["bottleneck"])})
    state = load_generator("autoencoder_v2", config, "cpu").state_dict()
    tensors = {}
    for name, value in state.items():
        if name.startswith("decoder.") and name.endswith((".alpha", ".beta")):
            value = value.reshape(1, -1, 1)
        tensors[published(name)] = value.detach().contiguous().clone()
    save_file(tensors, str(folder / "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    print(f"audio autoencoder: {sum(t.numel() for t in tensors.values())} parameters, random")
