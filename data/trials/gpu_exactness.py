"""What the contract costs on a GPU: its kernels, the same kernels set free, and kernels that were written without it.

    python gpu_exactness.py time --seconds 180 --out FOLDER    # on a GPU; rows to FOLDER/gpu-exactness.json all the time
    python gpu_exactness.py small                              # with TRITON_INTERPRET=1: what the free kernels say, beside the exact ones
    python gpu_exactness.py results --out FOLDER --commit C    # the published schema from what `time` left

Free means: contraction on, sums in any order the compiler likes, the chip's own exp2 and square root. The kernels written without the contract
read the same tiles: `dp4a` multiplies on the ordinary cores and adds floats lane by lane until a row is done; `mma` uses the int8 tensor cores
with one float scale per 32; `f16` unpacks weights to float16 for the float tensor cores; `flash` is attention on tensor cores with a running
maximum. Each is timed in several launch plans, and the fastest of all of them is what exactness is compared with.
"""
import argparse, json, os, subprocess, sys, tempfile, time, traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
import numpy as np
import torch
import triton
import triton.language as tl

from alphabook import gpu_acts, gpu_attention, gpu_functions, gpu_heads, gpu_hybrid, gpu_leaves, gpu_matrices, gpu_norms, gpu_products
from alphabook.gpu_functions import PLAIN, begin, gdc_launch_dependents, gdc_wait
from alphabook.gpu_leaves import decode, group_scale, half, load_tile, of, operand, pair
from alphabook.gpu_weights import packing

MODULES = [m for name, m in sys.modules.items() if name.startswith("alphabook.gpu_")]

# ---------------------------------------------------------------- the same kernels, set free
@triton.jit
def free_exp(x): return tl.exp(x)

@triton.jit
def free_sigmoid(x): return 1.0/(1.0 + tl.exp(0.0 - x))

@triton.jit
def free_fold(x): return tl.sum(x, axis=1)

@triton.jit
def free_in_order(v, acc, M: tl.constexpr, C: tl.constexpr): return acc + tl.sum(tl.reshape(v, [M, C]), axis=1)

@triton.jit
def free_root_mean(s, n, eps): return tl.rsqrt(s/n + eps)

def free_launch(kernel, grid, *args, warps=4, stages=None, registers=None, **constants):
    "As chapter 10b, but multiplications and additions may become one."
    early = gpu_functions.use_pdl()
    options = {k: v for k, v in dict(num_stages=stages, maxnreg=registers).items() if v}
    if early: options["launch_pdl"] = True
    kernel[grid](*args, **constants, PDL=early, num_warps=warps, enable_fp_fusion=True, **options)

def set_free():
    "From now on, in this process, before any kernel was compiled."
    for module, name, free in ((gpu_functions, "exp", free_exp), (gpu_functions, "sigmoid", free_sigmoid), (gpu_norms, "fold", free_fold),
                               (gpu_attention, "fold_groups", free_fold), (gpu_leaves, "in_order", free_in_order),
                               (gpu_norms, "root_mean", free_root_mean), (gpu_functions, "launch", free_launch)):
        exact = getattr(module, name)
        for m in MODULES:
            if getattr(m, name, None) is exact: setattr(m, name, free)

# ---------------------------------------------------------------- products without the contract
@triton.jit
def dp4a(a, b):
    "Σ of four products of bytes."
    if PLAIN:
        out = tl.zeros_like(a + b)
        for i in tl.static_range(4): out += ((a << (24 - 8*i)) >> 24)*((b << (24 - 8*i)) >> 24)
        return out
    else: return tl.inline_asm_elementwise("dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)

@triton.jit
def lane_scale(P, J: tl.constexpr, i, TYPE: tl.constexpr):
    "The scale of group J of 32, or of its half i, as a float, [C, 128]."
    NP: tl.constexpr = of(TYPE, "bits") + of(TYPE, "has_min")
    UP: tl.constexpr = 8 - of(TYPE, "bits") if of(TYPE, "kind") == "s" else 0
    if of(TYPE, "group") == 16: return ((P[NP + J//2] << (24 - 8*(J % 2*2 + i))) >> 24).to(tl.float32)*(1.0/(1 << UP))
    elif of(TYPE, "has_scale"): return group_scale(P[NP + J//4], J % 4, TYPE).to(tl.float32)
    else: return half(P[of(TYPE, "bits") + J//2] >> (16*(J % 2)), TYPE)*(1.0/(1 << UP))

@triton.jit
def lane_leaf(P, p_q, p_xs, p_ms, t, i, TYPE: tl.constexpr, S: tl.constexpr):
    "What a superblock adds in every lane [C, 128]."
    END: tl.constexpr = of(TYPE, "bits") + of(TYPE, "has_min") + (of(TYPE, "groups")//4 if of(TYPE, "has_scale") else 0)
    BITS: tl.constexpr = of(TYPE, "bits")
    for J in tl.static_range(8):
        v = dp4a(decode(P, J, TYPE), tl.load(p_q + J//2*(S*16) + t*4 + J % 2*2 + i)).to(tl.float32)
        x = lane_scale(P, J, i, TYPE)*tl.load(p_xs + J*S)
        if J == 0: s = v*x
        else: s = s + v*x
    if of(TYPE, "block") == 256: s = s*half(P[END], TYPE)
    if of(TYPE, "has_min"):
        m = tl.zeros_like(s)
        for b in tl.static_range(4): m += ((P[BITS] >> (8*b)) & 255).to(tl.float32)*tl.load(p_ms + i*4 + b)
        s = s - half(P[END] >> 16, TYPE)*m
    return s

@triton.jit(do_not_specialize=["N", "T", "NB"])
def k_dp4a(p_w, p_q, p_xs, p_ms, p_y, N, T, NB, S: tl.constexpr, TYPE: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr):
    "y[W, N]: a program takes rows of 16 tiles in turn, C superblocks at a time."
    s, e = tl.arange(0, C), tl.arange(0, 128)[None, :]
    g, t, r, i = e//16, e//4 % 4, e//2 % 2, e % 2
    row, G0, STRIDE, passes = r*8 + g, tl.program_id(0), tl.num_programs(0), (NB + C - 1)//C
    n_passes = (T - G0 + STRIDE - 1)//STRIDE*passes
    tile = (tl.minimum(G0, T - 1)*NB + tl.minimum(s, NB - 1))*of(TYPE, "words")
    P = load_tile(p_w, tile, tile[:, None], row, TYPE)
    begin(PDL)
    acc = ()
    for c in tl.static_range(W): acc = acc + (tl.zeros([C, 128], tl.float32),)
    for n in range(n_passes):
        k, m = n % passes*C, n + 1
        tile = (tl.minimum(G0 + m//passes*STRIDE, T - 1)*NB + tl.minimum(m % passes*C + s, NB - 1))*of(TYPE, "words")
        Q = load_tile(p_w, tile, tile[:, None], row, TYPE)
        b, inside = tl.minimum(k + s, NB - 1)[:, None], (k + s < NB)[:, None]
        new = ()
        for c in tl.static_range(W):
            v = lane_leaf(P, p_q + (b*4*S + c)*16, p_xs + b*(8*S) + c, p_ms + (b*S + c)*8, t, i, TYPE, S)
            v = tl.where(inside, v, 0.0) + tl.where(k == 0, 0.0, acc[c])
            new = new + (v,)
            if k + C >= NB:
                y = tl.sum(tl.sum(tl.sum(tl.reshape(v, [C, 8, 4, 2, 2]), axis=4), axis=2), axis=0)               # (8 g, 2 r)
                at = (G0 + n//passes*STRIDE)*16 + tl.arange(0, 8)[:, None] + 8*tl.arange(0, 2)[None, :]
                tl.store(p_y + c*N + at, y, mask=at < N)
        acc = new
        P = Q

@triton.jit
def core_leaf(P, p_x, p_xs, M, ok, TYPE: tl.constexpr, S: tl.constexpr, R: tl.constexpr, NC: tl.constexpr):
    "What a superblock adds, [R, 16, NC], on int8 tensor cores with a float scale per group."
    NP: tl.constexpr = of(TYPE, "bits") + of(TYPE, "has_min")
    BITS: tl.constexpr = of(TYPE, "bits")
    END: tl.constexpr = NP + (of(TYPE, "groups")//4 if of(TYPE, "has_scale") else 0)
    UP: tl.constexpr = 8 - of(TYPE, "bits") if of(TYPE, "kind") == "s" else 0
    s = tl.zeros([R, 16, NC], tl.float32)
    for J in tl.static_range(8):
        if J % 2 == 0: X = pair(tl.load(p_x + J//2*(S*16), mask=ok, other=0), R, NC, of(TYPE, "group") == 16)
        w, x = operand(decode(P, J, TYPE), R), tl.load(p_xs + J*S)*(1.0/(1 << UP))
        if of(TYPE, "group") == 16:
            u = tl.dot(w, X[J % 2*2], out_dtype=tl.int32).to(tl.float32)*group_scale(P[NP + J//2], J % 2*2, TYPE).to(tl.float32)
            v = tl.dot(w, X[J % 2*2 + 1], out_dtype=tl.int32).to(tl.float32)*group_scale(P[NP + J//2], J % 2*2 + 1, TYPE).to(tl.float32)
            s += (u + v)*x
        else:
            v = tl.dot(w, X[J % 2], out_dtype=tl.int32).to(tl.float32)
            if of(TYPE, "has_scale"): s += v*(group_scale(P[NP + J//4], J % 4, TYPE).to(tl.float32)*x)
            else: s += v*(half(P[BITS + J//2] >> (16*(J % 2)), TYPE)*x)
    if of(TYPE, "block") == 256: s = s*half(P[END], TYPE)
    if of(TYPE, "has_min"): s -= half(P[END] >> 16, TYPE)*tl.dot(operand(P[BITS], R).to(tl.float16), M, out_dtype=tl.float32)
    return s

@triton.jit(do_not_specialize=["W", "N", "T", "NB"])
def k_mma(p_w, p_q, p_xs, p_mh, p_y, W, N, T, NB, S: tl.constexpr, TYPE: tl.constexpr, NC: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr):
    "y[W, N]: like `k_dp4a`, NC columns at once."
    s, e, kk, col = tl.arange(0, C), tl.arange(0, NC*16)[None, :], tl.arange(0, 32)[None, :, None], tl.arange(0, NC)[None, None, :]
    row, G0, STRIDE, passes = tl.arange(0, 16)[None, :, None], tl.program_id(0), tl.num_programs(0), (NB + C - 1)//C
    n_passes = (T - G0 + STRIDE - 1)//STRIDE*passes
    tile = (tl.minimum(G0, T - 1)*NB + tl.minimum(s, NB - 1))*of(TYPE, "words")
    P = load_tile(p_w, tile, tile[:, None, None], row, TYPE)
    begin(PDL)
    acc = tl.zeros([C, 16, NC], tl.float32)
    for n in range(n_passes):
        k, m = n % passes*C, n + 1
        tile = (tl.minimum(G0 + m//passes*STRIDE, T - 1)*NB + tl.minimum(m % passes*C + s, NB - 1))*of(TYPE, "words")
        Q = load_tile(p_w, tile, tile[:, None, None], row, TYPE)
        b, inside = tl.minimum(k + s, NB - 1), (k + s < NB)[:, None, None]
        ok = (e >= 0) & (b[:, None] >= 0)
        M = tl.load(p_mh + (b[:, None, None]*S + col)*8 + kk, mask=(kk < 8) & inside, other=0.0)
        v = core_leaf(P, p_q + (b*(4*S*16))[:, None] + e, p_xs + (b*(8*S))[:, None, None] + col, M, ok, TYPE, S, C, NC)
        acc = tl.where(inside, v, 0.0) + tl.where(k == 0, 0.0, acc)
        if k + C >= NB:
            y, n16 = tl.sum(acc, axis=0), (G0 + n//passes*STRIDE)*16 + tl.arange(0, 16)[:, None]                 # (16, NC)
            c = tl.arange(0, NC)[None, :]
            tl.store(p_y + c*N + n16, y, mask=(c < W) & (n16 < N))
        P = Q

@triton.jit(do_not_specialize=["W", "N", "T", "NB"])
def k_f16(p_w, p_x, p_y, W, N, T, NB, S: tl.constexpr, TYPE: tl.constexpr, NC: tl.constexpr, R: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr):
    "y[W, N]: weights as float16 in registers, times float16 activations [NB, 8, S, 32]; types without offsets or Q4_K."
    NP: tl.constexpr = of(TYPE, "bits") + of(TYPE, "has_min")
    BITS: tl.constexpr = of(TYPE, "bits")
    END: tl.constexpr = NP + (of(TYPE, "groups")//4 if of(TYPE, "has_scale") else 0)
    UP: tl.constexpr = 8 - of(TYPE, "bits") if of(TYPE, "kind") == "s" else 0
    s, n = tl.arange(0, R), tl.program_id(0)*(16*R) + tl.arange(0, 16*R)[:, None]
    tile, row_tile = tl.minimum(tl.program_id(0)*R + s, T - 1)*NB, tl.minimum(n//16, T - 1)*NB
    second = tl.arange(0, 32)[None, :]//16
    x_at = tl.arange(0, NC)[:, None]*32 + tl.arange(0, 32)[None, :]
    begin(PDL)
    acc = tl.zeros([16*R, NC], tl.float32)
    for b in tl.range(0, NB, num_stages=STAGES):
        rows = (row_tile + b)*of(TYPE, "words")
        P = load_tile(p_w, (tile + b)*of(TYPE, "words"), rows, n % 16, TYPE)
        if of(TYPE, "block") == 256: d = half(P[END], TYPE)
        for J in tl.static_range(8):
            w = operand(decode(P, J, TYPE), R, True).to(tl.float16)
            if of(TYPE, "group") == 16: f = tl.where(second == 0, group_scale(P[NP + J//2], J % 2*2, TYPE), group_scale(P[NP + J//2], J % 2*2 + 1, TYPE)).to(tl.float32)*d
            elif of(TYPE, "has_scale"): f = group_scale(P[NP + J//4], J % 4, TYPE).to(tl.float32)*d
            else: f = half(P[BITS + J//2] >> (16*(J % 2)), TYPE)
            w = w*(f*(1.0/(1 << UP))).to(tl.float16)
            if of(TYPE, "has_min"):
                m = (tl.load(p_w + rows + of(TYPE, "o_min") + n % 8*4 + n % 16//8*2 + J//4) >> (8*(J % 4))) & 255
                w = w - (half(P[END] >> 16, TYPE)*m.to(tl.float32)).to(tl.float16)
            acc = tl.dot(w, tl.trans(tl.load(p_x + (b*8 + J)*(S*32) + tl.program_id(1)*(NC*32) + x_at)), acc)
    col = tl.program_id(1)*NC + tl.arange(0, NC)[None, :]
    tl.store(p_y + col*N + n, acc, mask=(col < W) & (n < N))

class FreeActs:
    "Activations as the kernels above read them, from rows quantized by the contract: the same integers, one float per 32."
    def __init__(self, x):
        a = gpu_acts.quantize(x)
        self.W, self.S, nb = a.W, -(-a.W//8)*8, -(-a.K//256)
        d = a.d.view(nb, 1, self.S).nan_to_num()
        self.q, self.words = a.q, a.q.view(torch.int32)
        self.xs = (a.a.view(nb, 8, self.S)*d).contiguous()
        self.ms = (a.s.view(nb, 8, self.S)*d).transpose(1, 2).contiguous()                                       # (nb, S, 8)
        self.mh = self.ms.half()
        full = torch.zeros((self.S, nb*256), device=x.device)
        full[:a.W, :a.K] = x
        self.x = full.view(self.S, nb, 8, 32).permute(1, 2, 0, 3).contiguous().half()

def free_product(kind, w, acts, y, C, programs):
    "One of the three, in a launch plan."
    T, NB, S = w.tiles.shape[0], w.tiles.shape[1], acts.S
    programs = min(T, programs or T)
    if kind == "dp4a": free_launch(k_dp4a, (programs,), w.tiles, acts.words, acts.xs, acts.ms, y, w.R, T, NB, S=S, TYPE=w.type, W=acts.W, C=C, warps=C, stages=1)
    elif kind == "mma": free_launch(k_mma, (programs,), w.tiles, acts.words, acts.xs, acts.mh, y, acts.W, w.R, T, NB, S=S, TYPE=w.type, NC=S, C=C, warps=C, stages=1)
    else: free_launch(k_f16, (-(-T//C), -(-acts.W//min(64, S))), w.tiles, acts.x, y, acts.W, w.R, T, NB, S=S, TYPE=w.type, NC=min(64, S), R=C, warps=4, STAGES=programs and 3)
    return y

def plans(kind, W):
    "Launch plans worth trying: superblocks (or tiles) side by side, programs (0: one per tile)."
    if kind == "dp4a": return [(8, 0), (4, 0), (16, 264), (4, 1056)] if W <= 2 else [(8, 0), (4, 0)]
    if kind == "mma": return [(8, 0), (16, 132), (8, 264), (4, 528)]
    return [(4, 3), (8, 3)]

# ---------------------------------------------------------------- attention without the contract
@triton.jit
def k_flash(p_q, p_k, p_v, p_positions, p_m, p_l, p_o, scale, R, group, n_tiles, Q, D: tl.constexpr, M: tl.constexpr, PDL: tl.constexpr):
    "Some tiles of a KV head with a running maximum: grid (row blocks, KV heads, splits)."
    begin(PDL)
    kv, split, splits, one = tl.program_id(1), tl.program_id(2), tl.num_programs(2), tl.full([], 1, tl.int64)
    r, d, j = tl.program_id(0)*M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, 64)
    pos = tl.load(p_positions + tl.minimum(r, R - 1)//group).to(tl.int32)
    last = tl.max(pos, 0)
    q = (tl.load(p_q + (kv*D + d[None, :])*Q + r[:, None], mask=(r < R)[:, None], other=0.0)*(scale*1.4426950408889634)).to(tl.float16)
    m, l, o = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32)
    for t in range(split, last//64 + 1, splits):
        k = tl.load(p_k + (one*kv*n_tiles + t)*D*64 + d[:, None]*64 + j[None, :])
        v = tl.load(p_v + (one*kv*n_tiles + t)*64*D + j[:, None]*D + d[None, :])
        s = tl.where((t*64 + j)[None, :] <= pos[:, None], tl.dot(q, k), float("-inf"))
        top = tl.maximum(m, tl.max(s, 1))
        p, alpha = tl.exp2(s - top[:, None]), tl.exp2(m - top)
        l, o, m = l*alpha + tl.sum(p, 1), tl.dot(p.to(tl.float16), v, o*alpha[:, None]), top
    at = (kv*splits + split)*R + r
    tl.store(p_m + at, m, mask=r < R)
    tl.store(p_l + at, l, mask=r < R)
    tl.store(p_o + at[:, None]*D + d[None, :], o, mask=(r < R)[:, None])

@triton.jit
def k_gather(p_m, p_l, p_o, p_out, R, splits, group, n_head, D: tl.constexpr, SP: tl.constexpr, PDL: tl.constexpr):
    "The splits of a row of a head: grid (rows, KV heads)."
    begin(PDL)
    r, kv, s, d = tl.program_id(0), tl.program_id(1), tl.arange(0, SP), tl.arange(0, D)
    at = (kv*splits + s)*R + r
    m = tl.load(p_m + at, mask=s < splits, other=float("-inf"))
    f = tl.exp2(m - tl.max(m, 0))
    l = tl.sum(tl.load(p_l + at, mask=s < splits, other=0.0)*f, 0)
    o = tl.sum(tl.load(p_o + at[:, None]*D + d[None, :], mask=(s < splits)[:, None], other=0.0)*f[:, None], 0)
    tl.store(p_out + (r//group*n_head + kv*group + r % group)*D + d, o/l)

def flash(q, k, v, positions, n_head, scale, splits):
    "Attention with `splits` programs to a KV head."
    n_kv, tiles, D = k.shape[:3]
    group, W = n_head//n_kv, len(positions)
    R, M = W*group, min(64, max(16, triton.next_power_of_2(W*group)))
    empty = lambda *shape: torch.empty(shape, dtype=torch.float32, device=q.device)
    m, l, o, out = empty(n_kv, splits, R), empty(n_kv, splits, R), empty(n_kv, splits, R, D), empty(W, n_head, D)
    free_launch(k_flash, (-(-R//M), n_kv, splits), q, k, v, positions, m, l, o, float(scale), R, group, tiles, q.shape[2], D=D, M=M, warps=4, stages=2)
    free_launch(k_gather, (R, n_kv), m, l, o, out, R, splits, group, n_head, D=D, SP=triton.next_power_of_2(splits), warps=2)
    return out

# ---------------------------------------------------------------- what is timed
PRODUCTS = [(t, R, K) for t in ("Q4_K", "Q6_K", "Q8_0") for R, K in ((12288, 4096), (4096, 12288))]
WIDTHS = (1, 4, 8, 16, 64)
HEADS = {"8 KV heads of 128, 4 queries each": (8, 4, 128), "2 KV heads of 256, 8 queries each": (2, 8, 256)}
PLACES = (512, 8000, 32000)

def cells():
    "Everything, as (kind, …, rows)."
    out = [("product", *p, W) for p in PRODUCTS for W in WIDTHS]
    out += [("attention", h, n, W) for h in HEADS for n in PLACES for W in (1, 4, 16)]
    return out + [(what, W) for what in ("norm and quantize 4096", "silu gate and quantize 12288", "delta rule, 32 heads of 128") for W in (1, 4, 16)]

def name_of(cell): return f"product {cell[2]}×{cell[3]} {cell[1]}" if cell[0] == "product" else f"attention at {cell[2]}, {cell[1]}" if cell[0] == "attention" else cell[0]

def inputs(shape, scale=1.0): return torch.randn(shape, device="cuda")*scale

def variants(cell, free, few=False):
    "(name, function of a number, how many numbers): what is to be timed; few: as little memory as will do."
    from gpu_products import matrices
    W = cell[-1]
    if cell[0] == "product":
        _, type, R, K, _ = cell
        ws = matrices(type, R, K, 1e6 if few else 200e6)
        x, y = inputs((W, K)), torch.empty((W, R), device="cuda")
        acts = gpu_acts.quantize(x)
        yield "the same kernel", lambda i: gpu_products.product(ws[i % len(ws)], acts, out=y), len(ws)
        if not free: return
        fa = FreeActs(x)
        for kind in ("dp4a",)*(W <= 4) + ("mma",)*(4 <= W <= 16) + ("f16",)*(W >= 16):
            for C, programs in plans(kind, W): yield f"{kind} {C} {programs}", lambda i, kind=kind, C=C, n=programs: free_product(kind, ws[i % len(ws)], fa, y, C, n), len(ws)
    elif cell[0] == "attention":
        (n_kv, group, D), n = HEADS[cell[1]], cell[2]
        tiles = -(-(n + W)//64)
        many = 2 if few else max(2, min(24, int(100e6/(tiles*64*n_kv*D*4))))
        kvs = [(inputs((n_kv, tiles, D, 64)).half(), inputs((n_kv, tiles*64, D)).half()) for _ in range(many)]
        q, positions = gpu_heads.pack_queries(inputs((W, n_kv*group, D)), n_kv), torch.arange(n, n + W, device="cuda")
        yield "the same kernel", lambda i: gpu_attention.attention(q, *kvs[i % many], positions, n_kv*group, 0, D**-.5), many
        if not free: return
        for splits in sorted({min(tiles, s) for s in (132//n_kv, 264//n_kv, 528//n_kv)}):
            yield f"flash {splits}", lambda i, s=splits: flash(q, *kvs[i % many], positions, n_kv*group, D**-.5, s), many
    elif cell[0].startswith("norm"):
        xs, w = inputs((8, W, 4096)), inputs(4096)
        yield "the same kernel", lambda i: gpu_acts.norm_quantize(xs[i % 8], w, 1e-6), 8
    elif cell[0].startswith("silu"):
        xs = inputs((8, W, 12288))
        yield "the same kernel", lambda i: gpu_acts.gated_quantize(xs[i % 8], xs[(i + 1) % 8], "silu"), 8
    else:
        S, k, v = inputs((8, 32, 128, 128)), torch.nn.functional.normalize(inputs((W, 16, 128)), dim=-1), inputs((W, 32, 128))
        decay, beta = torch.rand((W, 32), device="cuda"), torch.rand((W, 32), device="cuda")
        yield "the same kernel", lambda i: gpu_hybrid.gdn(S[i % 8], k*.1, k, v, decay, beta, out=S[(i + 1) % 8]), 8

def child(kind, place, seconds_, part, parts, compile_only):
    "Times of one kind to a file, a cell a line; or every kernel is run once, so that it is compiled."
    from gpu_products import graph_us
    start = time.time()
    if kind == "free": set_free()
    for number, cell in enumerate(cells()):
        if number % parts != part: continue
        if time.time() - start > seconds_: print("out of time before", name_of(cell), cell[-1], flush=True); break
        found = {}
        try:
            for name, run, n in variants(cell, kind == "free", compile_only):
                try:
                    run(0); torch.cuda.synchronize()
                    if not compile_only: found[name] = graph_us(run, max(8, min(24, n)), samples=5, sample_us=1500)
                except Exception: found[name] = traceback.format_exc()[-1500:]; print(name_of(cell), cell[-1], name, found[name], flush=True)
            if found and not compile_only:
                good = [n for n in found if not isinstance(found[n], str)]
                for best in sorted(good, key=lambda n: found[n][0])[:2]:                            # once more: the least of both
                    again = graph_us(next(r for n, r, _ in variants(cell, kind == "free") if n == best), 16, samples=7, sample_us=2000)
                    found[best] = min(found[best], again)
        except Exception: found["error"] = traceback.format_exc()[-1500:]; print(name_of(cell), cell[-1], found["error"], flush=True)
        if not compile_only:
            with open(place, "a") as f: f.write(json.dumps(dict(cell=number, found=found)) + "\n")
        torch.cuda.empty_cache()
    print(kind, part, "ended after", round(time.time() - start), "s", flush=True)

def run_time(out, seconds_, jobs):
    "Compile in many processes, then time exact, free, exact, free, one process after the other."
    start, folder = time.time(), Path(tempfile.mkdtemp())
    def spawn(kind, name, left, part=0, parts=1, *more):
        return subprocess.Popen([sys.executable, __file__, "child", "--kind", kind, "--place", str(folder/name), "--seconds", str(left), "--part", str(part),
                                 "--parts", str(parts), *more])
    half_, share = jobs//4, 0.45*seconds_
    warm = [spawn(kind, "none", share, i, n, "--compile") for kind, n in (("free", jobs - half_), ("exact", half_)) for i in range(n)]
    while any(p.poll() is None for p in warm) and time.time() - start < share + 10: time.sleep(0.5)
    for p in warm:
        if p.poll() is None: p.kill(); p.wait()
    print("compiled after", round(time.time() - start), "s", flush=True)
    def gather(): Path(out, "gpu-exactness.json").write_text(json.dumps({f.stem: [json.loads(l) for l in f.read_text().splitlines()] for f in folder.glob("*.jsonl")}))
    order = [("exact", "exact.jsonl"), ("free", "free.jsonl"), ("exact", "exact again.jsonl")]
    for i, (kind, name) in enumerate(order):
        left = (seconds_ - (time.time() - start) - 3)/(len(order) - i)*(1.25 if kind == "free" else 1)
        if left < 5: print("no time for", name); break
        p = spawn(kind, name, left - 2)
        try: p.wait(left)
        except subprocess.TimeoutExpired: p.kill(); p.wait(); print(name, "stopped", flush=True)
        gather()
    gather()
    table(json.loads(Path(out, "gpu-exactness.json").read_text()))
    print(round(time.time() - start), "s", flush=True)

def rows_of(data):
    "A row per cell: times in µs, what was fastest, and what exactness costs."
    got = {name: {r["cell"]: {n: v for n, v in r["found"].items() if not isinstance(v, str)} for r in rows} for name, rows in data.items()}
    for number, cell in enumerate(cells()):
        exact, free = got.get("exact", {}).get(number), got.get("free", {}).get(number)
        if not exact or not free: continue
        mine, again = exact["the same kernel"][0], got.get("exact again", {}).get(number, {}).get("the same kernel", [None])[0]
        best = min(free, key=lambda n: free[n][0])
        yield dict(name=name_of(cell), width=cell[-1], quantization=cell[1] if cell[0] == "product" else "f16" if cell[0] == "attention" else "none", exact=min(mine, again or mine),
                   again=again/mine - 1 if again else None, best=best, free=free[best][0], same=free.get("the same kernel", [None])[0])

def table(data):
    "For people."
    for r in rows_of(data):
        print(f"{r['name']:60} {r['width']:3} rows {r['exact']:8.2f} µs exact {r['free']:8.2f} {r['best']:16} cost {r['exact']/r['free'] - 1:+7.1%}  same kernel set free {r['same'] or 0:8.2f}"
              f"  (exact again {r['again'] or 0:+.1%})", flush=True)

def results(out, commit):
    "data/results/h200."
    import datetime
    from alphabook.arithmetic import CONTRACT_VERSION
    rows = []
    for r in rows_of(json.loads(Path(out, "gpu-exactness.json").read_text())):
        shared = dict(width=r["width"], quantization=r["quantization"], n=2, spread=None if r["again"] is None else abs(r["again"]))
        rows += [dict(arm=f"{r['name']}, exact", value=r["exact"], unit="µs", **shared), dict(arm=f"{r['name']}, free", value=r["free"], unit="µs", fastest=r["best"], **shared),
                 dict(arm=f"{r['name']}, cost", value=r["exact"]/r["free"] - 1, unit="share of time", fastest=r["best"], **shared)]
    head = dict(topic="exactness", device="h200", date=datetime.date.today().isoformat(), commit=commit, command="python data/trials/gpu_exactness.py time", contract_version=CONTRACT_VERSION,
                mode="exact", drafter="none", model="kernels alone", context=0)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in rows) + "\n ]\n}\n"
    path = ROOT/"data"/"results"/"h200"/f"exactness-{head['date']}.json"
    path.write_text(text, encoding="utf-8")
    print(path, len(rows), "rows")

# ---------------------------------------------------------------- right but for rounding, in Triton's interpreter
def small():
    "The free kernels beside the exact ones: the largest difference, as a share of the deviation of the results."
    from alphabook.blocks import random_blocks
    rng = np.random.default_rng(0)
    def report(name, got, want):
        got, want = got.float(), want.float()
        print(f"{name} {float((got - want).abs().max()/want.std()):.5f}", flush=True)
    for type in ("Q4_K", "Q6_K", "Q8_0"):
        R, K = 40, 768
        w = gpu_matrices.load_matrix(random_blocks(type, R, K, rng), type, device="cpu")
        for kind, W, plan in (("dp4a", 1, (2, 0)), ("dp4a", 2, (4, 2)), ("mma", 8, (2, 2)), ("f16", 16, (2, 3))):
            x = torch.from_numpy(rng.standard_normal((W, K)).astype(np.float32))
            report(f"{kind} {type} {W}", free_product(kind, w, FreeActs(x), torch.empty((W, R)), *plan), gpu_products.product(w, gpu_acts.quantize(x)))
    W, n_kv, group, D, n = 3, 2, 4, 64, 150
    k, v = (torch.from_numpy(rng.standard_normal(s).astype(np.float16)) for s in ((n_kv, 3, D, 64), (n_kv, 192, D)))
    q = gpu_heads.pack_queries(torch.from_numpy(rng.standard_normal((W, n_kv*group, D)).astype(np.float32)), n_kv)
    positions = torch.arange(n, n + W)
    want = gpu_attention.attention(q, k, v, positions, n_kv*group, 0, D**-.5)
    report("flash", flash(q, k, v, positions, n_kv*group, D**-.5, 2), want)
    x, weight = torch.from_numpy(rng.standard_normal((2, 300)).astype(np.float32)), torch.ones(300)
    before = gpu_norms.rms_norm(x, weight, 1e-6)
    set_free()
    report("the same attention, free", gpu_attention.attention(q, k, v, positions, n_kv*group, 0, D**-.5), want)
    report("the same norm, free", gpu_norms.rms_norm(x, weight, 1e-6), before)

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=("time", "small", "child", "results")); p.add_argument("--out", default="."); p.add_argument("--seconds", type=float, default=180)
    p.add_argument("--jobs", type=int, default=15); p.add_argument("--kind"); p.add_argument("--place"); p.add_argument("--part", type=int, default=0)
    p.add_argument("--parts", type=int, default=1); p.add_argument("--compile", action="store_true"); p.add_argument("--commit")
    a = p.parse_args()
    if a.what == "small": small()
    elif a.what == "child": child(a.kind, a.place, a.seconds, a.part, a.parts, a.compile)
    elif a.what == "results": results(a.out, a.commit)
    else: run_time(a.out, a.seconds, a.jobs)

if __name__ == "__main__": main()
