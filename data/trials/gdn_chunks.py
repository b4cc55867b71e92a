"""Prompts of recurrent layers on a CPU: the delta rule step by step, as the contract has it, against chunks of 64 steps by matrix products.

    python gdn_chunks.py [--out FOLDER --commit C]         # one thread, in turns; processor time

The chunked form is chapter 07e's without its scan: one chunk after the other, the inverse by one triangular solve, all heads in batched products of
torch's library. It is measured at its best: without the convolution, gates and copies that it would need, and with its inputs where it wants them.
"""
import argparse, datetime, json, os, sys, time
from pathlib import Path

os.environ |= dict(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import numpy as np
import torch

import alphabook.cpu_streams as cpu
from alphabook.tape import recording, set_threads

SHAPES = {"35b-a3b: 16 keys, 32 values of 128": (16, 32, 128), "27b: 16 keys, 48 values of 128": (16, 48, 128), "alphabook-mini: 2 keys, 4 values of 64": (2, 4, 64)}

def chunk(q, k, v, g, beta, S): # [H, T, D], g and beta [H, T], S [H, D value, D key] → o [H, T, D], S
    "T steps at once."
    G = g.cumsum(-1)[..., None]
    D = (G - G.mT).tril().exp().tril()
    kb = k*beta[..., None]
    A = torch.tril(kb @ k.mT*D, -1)
    right = v*beta[..., None] - (kb*G.exp()) @ S.mT
    U = torch.linalg.solve_triangular(A + torch.eye(A.shape[-1]), right, upper=False, unitriangular=True)
    o = (q*G.exp()) @ S.mT + (q @ k.mT*D) @ U
    faded = k*(G[..., -1:, :] - G).exp()
    return o, S*G[..., -1:, :].exp() + U.mT @ faded

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0]); p.add_argument("--out"); p.add_argument("--commit"); p.add_argument("--turns", type=int, default=25)
    a = p.parse_args()
    set_threads(1); torch.set_num_threads(1)
    rng, rows = np.random.default_rng(0), []
    for name, (K, H, D) in SHAPES.items():
        for T in (16, 64):
            k = rng.normal(size=(T, K, D)).astype(np.float32); k /= np.linalg.norm(k, axis=-1, keepdims=True)
            q, v = k[::-1].copy()*np.float32(D**-.5), rng.normal(size=(T, H, D)).astype(np.float32)
            decay, beta = np.exp(-rng.uniform(0, .1, (T, H))).astype(np.float32), rng.uniform(size=(T, H)).astype(np.float32)
            S = rng.normal(size=(H, D, D)).astype(np.float32)
            with recording() as tape: o, after = cpu.gdn(S, q, k, v, decay, beta, True)
            tape.play()
            heads = [torch.from_numpy(np.ascontiguousarray(x)) for x in (np.tile(q, (1, H//K, 1)).swapaxes(0, 1), np.tile(k, (1, H//K, 1)).swapaxes(0, 1), v.swapaxes(0, 1),
                                                                          np.log(decay).T, beta.T, S)]
            got, _ = chunk(*heads)
            off = float(np.abs(got.numpy().swapaxes(0, 1) - o).max()/o.std())
            assert off < 1e-3, off
            times = {"steps": [], "chunks": [], "steps again": []}
            for _ in range(a.turns):
                for arm, f in (("steps", tape.play), ("chunks", lambda: chunk(*heads)), ("steps again", tape.play)):
                    t = time.thread_time(); f(); f(); times[arm].append((time.thread_time() - t)/2*1e6/T)
            for arm, t in times.items():
                rows.append(dict(arm=f"{name}, {arm}", width=T, value=min(t), unit="µs of a core a token", n=len(t), spread=(np.median(t) - min(t))/min(t), differs_by=off if arm == "chunks" else 0.0))
            print(f"{name:40} {T:3} rows, µs a token: " + ", ".join(f"{arm} {min(t):.1f}" for arm, t in times.items()) + f"; largest difference {off:.1e} σ", flush=True)
    if a.out:
        from alphabook.arithmetic import CONTRACT_VERSION
        from alphabook.vectors import available_paths
        head = dict(topic="gdn-chunks", device="cpu", date=datetime.date.today().isoformat(), commit=a.commit, command="python data/trials/gdn_chunks.py --out FOLDER", contract_version=CONTRACT_VERSION,
                    mode="fast", drafter="none", model="the delta rule alone", quantization="none", context=0, threads=1, instructions=available_paths()[-1])
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in rows) + "\n ]\n}\n"
        (Path(a.out)/f"gdn-chunks-{head['date']}.json").write_text(text, encoding="utf-8")

if __name__ == "__main__": main()
