"""Chapter 11f on a GPU: a step of one row of published shapes with random weights, and each of its kernels alone.

    python gpu_steps.py SHAPE … [--kernels] [--out FOLDER]     # 8b, 35b-a3b, 30b-a3b, 27b, 0.6b

A step is what decoding replays for a token, after 512. --kernels: every kernel of a step is recorded 96 times in a row,
with the weights of all layers in turn; what it takes there is what it adds to the step, as the sums show.
"""
import argparse, json, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
import torch

import alphabook.gpu_functions as functions
import alphabook.gpu_rounds as rounds
import gpu_models as models

def step_times(model, n=64, takes=5):
    "Microseconds of a step, each take the median of three."
    cache = model.new_cache(4096)
    def go():
        cache.n, cache.width = 512, 0
        model.continue_text(cache, 100, n)
    go()
    return [models.seconds(go, 3)[0]/n*1e6 for _ in range(takes)]

def launches(model, state):
    "What a step launches, in order."
    real, seen = functions.launch, []
    users = [m for name, m in sys.modules.items() if name.startswith("alphabook.gpu_") and getattr(m, "launch", None) is real]
    def note(kernel, grid, *args, **more):
        seen.append((kernel, grid, args, more))
        return real(kernel, grid, *args, **more)
    for m in users: m.launch = note
    try: rounds.step(state, -1, False); torch.cuda.synchronize()
    finally:
        for m in users: m.launch = real
    return seen

def kernel_times(model, many=96):
    "For each kernel, grid and constants: launches of a step, and microseconds of one."
    cache, groups = model.new_cache(4096), {}
    cache.n, cache.width = 512, 0
    cache.begin([100])
    for kernel, grid, args, more in launches(model, cache.state):
        numbers = tuple(a for a in args if not isinstance(a, torch.Tensor))
        groups.setdefault((kernel.fn.__name__, grid, numbers, tuple(sorted(more.items()))), []).append((kernel, grid, args, more))
    out = []
    for (name, grid, _, more), found in groups.items():
        again = max(1, many//len(found))
        def chain():
            for _ in range(again):
                for kernel, g, args, m in found: functions.launch(kernel, g, *args, **m)
        chain()
        r = rounds.Recorded(chain, cache.state.pool)
        r.record(); r(); torch.cuda.synchronize()
        us = models.seconds(lambda: [r() for _ in range(4)], 4)[0]/4/again/len(found)*1e6
        out.append(dict(kernel=name, grid=list(grid), launches=len(found), us=round(us, 2),
                        constants={k: v for k, v in more if k in ("TYPE", "C", "RT", "MODE", "warps", "K", "D", "E")}))
    return sorted(out, key=lambda r: -r["launches"]*r["us"])

def main():
    p = argparse.ArgumentParser()
    p.add_argument("shapes", nargs="+"); p.add_argument("--kernels", action="store_true"); p.add_argument("--out", default=".")
    a = p.parse_args()
    for shape in a.shapes:
        model, read = models.synthetic(models.SHAPES[shape])
        us = step_times(model)
        row = dict(model=models.SHAPES[shape], quantization="Q4_K_M", context=512, width=1, arm="decode", value=round(1e6/min(us), 1), unit="tok/s",
                   n=len(us), spread=(max(us) - min(us))/min(us), us=us, bytes=read)
        print(shape, row["value"], "tok/s", flush=True)
        if a.kernels:
            row["kernels"] = kernel_times(model)
            for k in row["kernels"]: print(f"  {k['kernel']:24} {str(k['grid']):14} x {k['launches']:3} {k['us']:8.2f} us  {k['launches']*k['us']:8.0f}  {k['constants']}")
            print("  sum", round(sum(k["launches"]*k["us"] for k in row["kernels"])), "of", round(min(us)), "us", flush=True)
        Path(a.out, f"step-{shape}.json").write_text(json.dumps(row))
        del model
        torch.cuda.empty_cache()

if __name__ == "__main__": main()
