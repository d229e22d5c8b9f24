#!/usr/bin/env python3
"""Writes tests/data/parts: small random text encoders and VAEs whose configurations take the branches that the golden
part files do not, with what the reference computes for them. Needs torch, diffusers and transformers."""

import copy
import json
import pathlib
import sys

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "parts"


def randomised(model):
    """Norms and biases start at one and zero, which would hide a mistake in them."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def save(name, config, model, tensors):
    weights = {f"weight.{key}": value for key, value in model.state_dict().items() if key != "encoder.embed_tokens.weight"}
    save_file({key: value.contiguous().clone() for key, value in {**weights, **tensors}.items()}, FOLDER / f"{name}.safetensors")
    (FOLDER / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")


def t5(name, feed_forward_proj, seed):
    torch.manual_seed(seed)
    config = dict(vocab_size=40, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=2, feed_forward_proj=feed_forward_proj,
                  relative_attention_num_buckets=12, relative_attention_max_distance=20)
    model = randomised(T5EncoderModel(T5Config(**config)))
    ids = torch.randint(0, 40, (2, 31))
    tensors = {"input.ids": ids, "output.hidden": model(ids).last_hidden_state}
    tensors["output_bfloat16.hidden"] = copy.deepcopy(model).to(torch.bfloat16)(ids).last_hidden_state.float()
    half = copy.deepcopy(model).to(torch.float16)
    for block in half.encoder.block:  # as loading in float16 does
        block.layer[-1].DenseReluDense.wo.float()
    tensors["output_float16.hidden"] = half(ids).last_hidden_state.float()
    save(name, config, model, tensors)


def clip(name, seed):
    torch.manual_seed(seed)
    config = dict(vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                  max_position_embeddings=20, hidden_act="gelu", layer_norm_eps=1e-3, eos_token_id=7)
    model = randomised(CLIPTextModel(CLIPTextConfig(**config)))
    ids = torch.randint(8, 50, (3, 20))
    ids[0, 11:] = 7  # the end token again as padding
    ids[1, 19] = 7
    output = model(ids)  # the third has no end token
    tensors = {"input.ids": ids, "output.hidden": output.last_hidden_state, "output.pooled": output.pooler_output}
    tensors["output_bfloat16.hidden"] = copy.deepcopy(model).to(torch.bfloat16)(ids).last_hidden_state.float()
    save(name, config, model, tensors)


def vae(name, seed, **options):
    torch.manual_seed(seed)
    levels = len(options["block_out_channels"])
    config = dict(down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels, **options)
    model = randomised(AutoencoderKL(**config))
    image = torch.randn(2, config.get("in_channels", 3), 11, 14)  # sides that no level divides
    latents = torch.randn(1, config["latent_channels"], 5, 3)
    posterior = model.encode(image).latent_dist
    noise = torch.randn_like(posterior.mean)
    tensors = {"input.image": image, "input.latents": latents, "input.noise": noise, "output.mean": posterior.mean,
               "output.logvar": posterior.logvar, "output.sample": posterior.mean + posterior.std * noise,
               "output.decoded": model.decode(latents).sample}
    half = copy.deepcopy(model).to(torch.bfloat16)
    tensors["output_bfloat16.decoded"] = half.decode(latents.bfloat16()).sample.float()
    save(name, config, model, tensors)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        t5("t5_relu", "relu", 1)
        t5("t5_gated_silu", "gated-silu", 2)
        clip("clip_gelu", 3)
        vae("vae_quantised", 4, block_out_channels=[6, 12], layers_per_block=1, latent_channels=2, norm_num_groups=3,
            scaling_factor=0.5, in_channels=4, out_channels=2)
        vae("vae_without_attention", 5, block_out_channels=[4, 8, 4], layers_per_block=2, latent_channels=3,
            norm_num_groups=2, act_fn="swish", mid_block_add_attention=False, use_quant_conv=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
