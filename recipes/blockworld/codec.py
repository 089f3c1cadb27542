"""The video codec's forward passes for training: whole clips at once, channels last.

The stock modules encode and decode in pieces of four frames with caches between them. These passes give the same values
(`check.py`) and hold tensors as [B, T, H, W, C], where a convolution over three frames is one over pictures with the
frames' channels side by side.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def encode(vae: Any, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance [B, C, t, h, w] of frames [B, T, H, W, 3] in 0..1; T is 4n + 1."""
    b, t, height, width, _ = frames.shape
    x = (frames * 2 - 1).view(b, t, height // 2, 2, width // 2, 2, 3)
    x = x.permute(0, 1, 2, 4, 6, 5, 3).reshape(b, t, height // 2, width // 2, 12)
    net = vae.encoder
    x = _conv(net.conv_in, x)
    for block in net.down_blocks:
        y = x
        for resnet in block.resnets:
            y = _residual(resnet, y)
        if block.downsampler is not None:
            y = _down(block.downsampler, y)
        x = y + _average(block.avg_shortcut, x)
    x = _conv(net.conv_out, _norm(net.norm_out, _middle(net.mid_block, x)))
    mean, spread = _conv(vae.quant_conv, x).movedim(-1, 1).chunk(2, 1)
    return mean, spread


def decode(vae: Any, z: Tensor) -> Tensor:
    """Frames [B, T, H, W, 3], about 0..1 and not clamped, of latents [B, C, t, h, w]."""
    net = vae.decoder
    x = _middle(net.mid_block, _conv(net.conv_in, _conv(vae.post_quant_conv, z.movedim(1, -1))))
    for block in net.up_blocks:
        y = x
        for resnet in block.resnets:
            y = _residual(resnet, y)
        if block.upsampler is not None:
            y = _up(block.upsampler, y)
        x = y if block.avg_shortcut is None else y + _copies(block.avg_shortcut, x)
    x = _conv(net.conv_out, _norm(net.norm_out, x))
    b, t, h, w, _ = x.shape
    x = x.view(b, t, h, w, 3, 2, 2).permute(0, 1, 2, 6, 3, 5, 4).reshape(b, t, h * 2, w * 2, 3)
    return (x.float() + 1) / 2


def _conv(module: Any, x: Tensor) -> Tensor:
    """A causal convolution over [B, T, H, W, C]."""
    taps, t = module.kernel_size[0], x.shape[1]
    weight, wide = module.weight, x
    if taps > 1 and t == 1:
        weight = weight[:, :, -1:]  # what is before a single frame is zero
    elif taps > 1:
        padded = F.pad(x, (0, 0, 0, 0, 0, 0, taps - 1, 0))
        wide = torch.cat([padded[:, j : j + t] for j in range(taps)], -1)
    return _plain(weight.transpose(1, 2).flatten(1, 2), module.bias, wide, module._padding[0])


def _plain(weight: Tensor, bias: Tensor, x: Tensor, padding: int, stride: int = 1) -> Tensor:
    b, t = x.shape[:2]
    if weight.shape[-1] == 1:
        return F.linear(x, weight.flatten(1), bias)
    out = F.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), weight, bias, stride=stride, padding=padding)
    return out.permute(0, 2, 3, 1).contiguous().unflatten(0, (b, t))


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.silu(_scaled(module, x))


def _scaled(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.gamma.flatten().to(x.dtype), 1e-12)


def _residual(block: Any, x: Tensor) -> Tensor:
    kept = x if isinstance(block.conv_shortcut, torch.nn.Identity) else _conv(block.conv_shortcut, x)
    x = _conv(block.conv1, _norm(block.norm1, x))
    return _conv(block.conv2, _norm(block.norm2, x)) + kept


def _middle(block: Any, x: Tensor) -> Tensor:
    x = _residual(block.resnets[0], x)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        b, t, h, w, c = x.shape
        y = _scaled(attention.norm, x).view(b * t, 1, h * w, c)
        q, k, v = F.linear(y, attention.to_qkv.weight.flatten(1), attention.to_qkv.bias).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v).view(b, t, h, w, c)
        x = _residual(resnet, x + F.linear(y, attention.proj.weight.flatten(1), attention.proj.bias))
    return x


def _down(module: Any, x: Tensor) -> Tensor:
    conv = module.resample[1]
    x = _plain(conv.weight, conv.bias, F.pad(x, (0, 0, 0, 1, 0, 1)), 0, 2)
    if module.mode != "downsample3d" or x.shape[1] == 1:
        return x
    time = module.time_conv
    count = (x.shape[1] - 3) // 2 + 1
    wide = torch.cat([x[:, j : j + 2 * count - 1 : 2] for j in range(3)], -1)
    later = F.linear(wide, time.weight.transpose(1, 2).flatten(1), time.bias)
    return torch.cat([x[:, :1].to(later.dtype), later], 1)


def _up(module: Any, x: Tensor) -> Tensor:
    if module.mode == "upsample3d" and x.shape[1] > 1:
        # The first frame stays one; the others become two each, and what is before the second is zero.
        later = _conv(module.time_conv, x[:, 1:])
        b, t, h, w, c = later.shape
        later = later.view(b, t, h, w, 2, c // 2).permute(0, 1, 4, 2, 3, 5).reshape(b, 2 * t, h, w, c // 2)
        x = torch.cat([x[:, :1].to(later.dtype), later], 1)
    b, t, h, w, c = x.shape
    x = x[:, :, :, None, :, None].expand(b, t, h, 2, w, 2, c).reshape(b, t, 2 * h, 2 * w, c)
    conv = module.resample[1]
    return _plain(conv.weight, conv.bias, x, 1)


def _average(module: Any, x: Tensor) -> Tensor:
    ft, fs = module.factor_t, module.factor_s
    if ft == fs == 1 and module.in_channels == module.out_channels:
        return x
    x = F.pad(x, (0, 0, 0, 0, 0, 0, (ft - x.shape[1] % ft) % ft, 0))
    b, t, h, w, c = x.shape
    x = x.view(b, t // ft, ft, h // fs, fs, w // fs, fs, c).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(b, t // ft, h // fs, w // fs, module.out_channels, module.group_size).mean(-1)


def _copies(module: Any, x: Tensor) -> Tensor:
    ft, fs = module.factor_t, module.factor_s
    b, t, h, w, _ = x.shape
    x = x.repeat_interleave(module.repeats, -1).view(b, t, h, w, module.out_channels, ft, fs, fs)
    x = x.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, t * ft, h * fs, w * fs, module.out_channels)
    return x[:, ft - 1 :]
