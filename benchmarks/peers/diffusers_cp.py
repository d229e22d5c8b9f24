#!/usr/bin/env python3
"""Makes one picture in diffusers on N ranks of this machine's CPU and times it.

  torchrun --nproc-per-node 2 diffusers_cp.py CHECKPOINT MODE [--steps 4 --size 512 ...]

MODE: single ulysses ring unified ulysses_anything ring_anything tp
Needs benchmarks/peers/requirements.txt. Prints one JSON row on rank 0; the clock of a whole job runs outside, launcher
included. With --compile the transformer is compiled, and its first step holds the compilation.

diffusers does not run context or tensor parallelism on a CPU as it is. To compare at all, this file replaces: the device
count (0 on a CPU), the attention forward (one that returns a log-sum-exp, for the ring), the uneven all-gather (padded,
which Gloo accepts), and the list of tensor-parallel devices.
"""
import argparse
import json
import os
import resource
import statistics
import time

started = time.time()
import torch
import torch.distributed as dist
import diffusers
import diffusers.hooks.context_parallel as context_parallel
import diffusers.hooks.tensor_parallel as tensor_parallel
import diffusers.models.attention_dispatch as dispatch
from diffusers import ContextParallelConfig, FluxPipeline, TensorParallelConfig


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("mode")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-sequence-length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=0, help="of each rank; 0: cores / ranks")
    parser.add_argument("--prompt", default="a red circle on a blue background")
    parser.add_argument("--output")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def attention_with_lse(ctx, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                       enable_gqa=False, return_lse=False, _save_ctx=True, _parallel_config=None):
    heads_first = [x.permute(0, 2, 1, 3) for x in (query, key, value)]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *heads_first, 0.0, is_causal, attn_mask=attn_mask, scale=scale)
    out = out.permute(0, 2, 1, 3)
    return (out, lse.permute(0, 2, 1)) if return_lse else out


def padded_all_gather(tensor, dim, group):
    tensor = tensor.contiguous()
    sizes = [None] * dist.get_world_size(group)
    dist.all_gather_object(sizes, tensor.shape[dim], group=group)
    pad = list(tensor.shape)
    pad[dim] = max(sizes) - tensor.shape[dim]
    padded = torch.cat([tensor, tensor.new_zeros(pad)], dim=dim).contiguous()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part.narrow(dim, 0, size) for part, size in zip(parts, sizes)], dim=dim)


def allow_cpu():
    dispatch._native_attention_forward_op = attention_with_lse
    context_parallel._all_gather_anything = padded_all_gather
    torch._C._get_accelerator = lambda *_: torch.device("cpu")
    torch.accelerator.device_count = lambda: 1
    tensor_parallel._SUPPORTED_TP_DEVICES = ("cpu",)


def parallel_config(mode, ranks):
    if mode == "single" or ranks == 1:
        return None
    return {
        "ulysses": lambda: ContextParallelConfig(ulysses_degree=ranks),
        "ring": lambda: ContextParallelConfig(ring_degree=ranks),
        "unified": lambda: ContextParallelConfig(ring_degree=2, ulysses_degree=ranks // 2),
        "ulysses_anything": lambda: ContextParallelConfig(ulysses_degree=ranks, ulysses_anything=True),
        "ring_anything": lambda: ContextParallelConfig(ring_degree=ranks, ring_anything=True),
        "tp": lambda: TensorParallelConfig(tp_degree=ranks),
    }[mode]()


def peak_rss_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main():
    args = parse_arguments()
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    allow_cpu()
    torch.set_num_threads(args.threads or max(1, os.cpu_count() // ranks))
    if ranks > 1:
        dist.init_process_group("cpu:gloo")
    pipeline = FluxPipeline.from_pretrained(args.checkpoint, torch_dtype=getattr(torch, args.dtype))
    pipeline.set_progress_bar_config(disable=True)
    config = parallel_config(args.mode, ranks)
    if config is not None:
        pipeline.transformer.enable_parallelism(config=config)
    if args.compile:
        pipeline.transformer = torch.compile(pipeline.transformer)

    loaded, marks = time.time(), []

    def mark(pipe, index, timestep, kwargs):
        marks.append(time.time())
        return kwargs

    image = pipeline(args.prompt, height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=3.5,
                     max_sequence_length=args.max_sequence_length,
                     generator=torch.Generator().manual_seed(args.seed), callback_on_step_end=mark).images[0]
    finished = time.time()
    peaks = [peak_rss_gb()]
    if ranks > 1:
        peaks = [None] * ranks
        dist.all_gather_object(peaks, peak_rss_gb())
    if rank == 0:
        if args.output:
            image.save(args.output)
        steps = [b - a for a, b in zip(marks, marks[1:])] or [marks[0] - loaded]
        print(json.dumps({
            "system": f"diffusers {diffusers.__version__}", "mode": args.mode, "ranks": ranks, "dtype": args.dtype,
            "compiled": args.compile, "size": args.size, "step_median_s": statistics.median(steps),
            "step_min_s": min(steps), "load_s": loaded - started, "until_first_step_done_s": marks[0] - loaded,
            "after_last_step_s": finished - marks[-1], "total_s": finished - started, "peak_rss_gb": peaks}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
