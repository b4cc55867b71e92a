"""The arithmetic contract's quantized product in Triton: version 1, and with `--orders all` the orders it did not choose.

    python contract_triton.py check      # bits against contract_reference.py (TRITON_INTERPRET=1 runs it without a GPU)
    python contract_triton.py compile    # PTX and machine code for sm_80, 86, 89, 90, 120 without a GPU
    python contract_triton.py time       # microseconds on a GPU, CUDA graph over more matrices than the L2 holds

One weight layout serves every width.  A tile is 16 rows x 256 weights: planes of 128 int32 words, each word 4 weights
(k = 8t + 4i + b of a sub-block of 32, row = 8r + g, planes ordered [g][t][r][i], byte b), then the scales of the 16 rows.
The weights' bits are the file's, only moved; tiles are ordered [row tile][group of 256].
"""
import argparse, json, os, sys, time
import numpy as np
import triton, triton.language as tl
import contract_reference as ref
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
PLAIN = tl.constexpr(INTERPRET)                              # no inline PTX in the interpreter
if INTERPRET:                                                # its tl.fma rounds twice (3.6.0, 3.7.1)
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    InterpreterBuilder.create_fma = lambda self, x, y, z: TensorHandle(ref.fma(x.data, y.data, z.data), z.dtype.scalar)
try: from triton.language.extra.cuda import gdc_wait, gdc_launch_dependents
except ImportError: gdc_wait = gdc_launch_dependents = None

WORDS = dict(Q4_K=592, Q6_K=840, Q8_0=1088, Q5_0=704, Q4_1=640)          # int32 words of a tile
PLANES = dict(Q4_K=4, Q6_K=6, Q8_0=8, Q5_0=5, Q4_1=4)
OPS = dict(Q4_K=12, Q6_K=16, Q8_0=8, Q5_0=8, Q4_1=8)                     # activation operands of 32 bytes per group
SCALES = dict(Q4_K=8, Q6_K=8, Q8_0=8, Q5_0=8, Q4_1=16)                   # activation scales per group

# ---------------------------------------------------------------- packing (numpy)
def fragments(v):
    "bytes [..., 16 rows, 32 k] -> words [..., 128] in the order g t r i (b)"
    v = v.reshape(*v.shape[:-2], 2, 8, 4, 2, 4); n = v.ndim
    return np.ascontiguousarray(v.transpose(*range(n - 5), n - 4, n - 3, n - 5, n - 2, n - 1)).view(np.int32).reshape(*v.shape[:-5], 128)

def row_words(b):
    "bytes [..., 16 rows, n] -> words [...] in the order g r (word)"
    b = b.reshape(*b.shape[:-2], 2, 8, -1)
    return np.ascontiguousarray(np.swapaxes(b, -3, -2)).view(np.int32).reshape(*b.shape[:-3], -1)

def halves(v): return np.ascontiguousarray(v.astype(np.float16)).view(np.uint8).reshape(*v.shape[:-1], -1)

def pack(w):
    "a matrix of contract_reference -> int32 words [row tiles, NB, WORDS]; rows padded with zero blocks to a multiple of 16"
    kind = w["kind"]; R, NB = w["q"].shape[:2]; T = -(-R // 16)
    def tiles(v): return np.concatenate([v, np.zeros((T * 16 - R, *v.shape[1:]), v.dtype)]).reshape(T, 16, *v.shape[1:]).swapaxes(1, 2)
    q = tiles(w["q"]).transpose(0, 1, 3, 2, 4)                                            # [T, NB, 8, 16, 32]
    u = (q - ref.RANGE[kind][0]).astype(np.uint8) if kind != "Q8_0" else q.astype(np.int8).view(np.uint8)
    if kind == "Q8_0": parts = [fragments(u).reshape(T, NB, -1)]
    else:
        lo = u & 15
        parts = [fragments(lo[:, :, 0::2] | lo[:, :, 1::2] << 4).reshape(T, NB, -1)]
        if kind == "Q6_K":                                   # two high bits, the top one flipped: two's complement of q - 32
            h = (u >> 4) ^ 2
            parts.append(fragments(sum(h[:, :, i::4] << (2 * i) for i in range(4)).astype(np.uint8)).reshape(T, NB, -1))
        if kind == "Q5_0":
            h = (u >> 4) ^ 1
            parts.append(fragments(sum(h[:, :, j] << j for j in range(8)).astype(np.uint8)))
    d = tiles(w["d"])
    if kind == "Q4_K":
        parts += [row_words(tiles(w["sc"]).astype(np.uint8)), row_words(tiles(w["mn"]).astype(np.uint8))]
        parts.append(row_words(np.concatenate([halves(d[..., None]), halves(tiles(w["m"])[..., None])], -1)))
    elif kind == "Q6_K":
        parts.append(row_words(tiles(w["sc"]).astype(np.int8).view(np.uint8)))
        parts.append(np.ascontiguousarray(d.reshape(T, NB, 2, 8).swapaxes(2, 3).astype(np.float16)).view(np.int32).reshape(T, NB, 8))
    elif kind == "Q4_1": parts.append(row_words(halves(np.stack([d, tiles(w["m"])], -1).reshape(T, NB, 16, 16))))
    else: parts.append(row_words(halves(d)))
    out = np.concatenate(parts, -1); assert out.shape[-1] == WORDS[kind]
    return out

def pack_acts(x, kind, NC=8):
    "columns -> (xq for the batched kernel, xq for the tiled kernel, scales, d), columns padded to a multiple of NC"
    W, NB = x["q"].shape[:2]; Wp = -(-W // NC) * NC
    q, a = x["q"], x["a"]; bs = q.astype(np.int32).sum(-1); ab = a * bs
    if kind == "Q6_K":                                       # two operands per sub-block: its first 16 weights, its last 16
        ops = np.zeros((W, NB, 8, 2, 32), np.int8); ops[..., 0, :16] = q[..., :16]; ops[..., 1, 16:] = q[..., 16:]
    elif kind == "Q4_K":                                     # a * (sum of the sub-block), at most 130,048, as three digits (the highest -8..7), for the mins
        ops = np.zeros((W, NB, 12, 32), np.int8); ops[:, :, :8] = q
        ops[:, :, 8, :8], ops[:, :, 9, :8], ops[:, :, 10, :8] = ab & 127, (ab >> 7) & 127, ab >> 14
    else: ops = q
    ops = ops.reshape(W, NB, -1, 32); N = ops.shape[2]
    pad = lambda v: np.concatenate([v, np.zeros((Wp - W, *v.shape[1:]), v.dtype)])
    ops = pad(ops)
    b = ops.reshape(Wp // NC, NC, NB, N // 2, 2, 4, 2, 4).transpose(0, 2, 3, 1, 5, 4, 6, 7)       # grp NB pair col t h i b
    f = ops.reshape(Wp, NB, N, 4, 2, 4).transpose(1, 2, 0, 4, 3, 5)                                # NB op col i t b
    if kind in ref.SUPER: s = a.astype(np.int32)
    else:
        s = a.astype(np.float32) * np.float32(.125 if kind == "Q5_0" else 1)
        if kind == "Q4_1": s = np.concatenate([s, ab.astype(np.float32)], -1)
    s = pad(s).reshape(Wp // NC, NC, NB, -1).transpose(0, 2, 3, 1)                                 # grp NB j col
    d = pad(x["d"].astype(np.float32)).reshape(Wp // NC, NC, NB).transpose(0, 2, 1)                # grp NB col
    return tuple(np.ascontiguousarray(v) for v in (b, f, s, d))

# ---------------------------------------------------------------- decode: one branch per type
@triton.jit
def half(w): return (w & 0xffff).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)

@triton.jit
def byte(w, k: tl.constexpr): return (w >> (8 * k)) & 255

@triton.jit
def signed_byte(w, k: tl.constexpr): return (w << (24 - 8 * k)) >> 24

@triton.jit
def get(p, TAIL: tl.constexpr):
    if TAIL: return tl.load(p)                               # words used again soon: leave the cache policy alone
    else: return tl.load(p, eviction_policy="evict_first")

@triton.jit
def load_tile(w, p, pm, t0, r, rs, row, TYPE: tl.constexpr):
    """All words of the tiles: planes by `p` [R, 128], per-row words by `r` (tile base) and `rs` (slot of the row)."""
    if TYPE == "Q4_K":
        return (get(w + p, 0), get(w + p + 128, 0), get(w + p + 256, 0), get(w + p + 384, 0), tl.load(w + pm + 544, mask=t0, other=0),
                get(w + r + 512 + rs * 2, 1), get(w + r + 513 + rs * 2, 1), get(w + r + 576 + rs, 1))
    elif TYPE == "Q6_K":
        return (get(w + p, 0), get(w + p + 128, 0), get(w + p + 256, 0), get(w + p + 384, 0), get(w + p + 512, 0), get(w + p + 640, 0),
                get(w + r + 768 + rs * 4, 1), get(w + r + 769 + rs * 4, 1), get(w + r + 770 + rs * 4, 1), get(w + r + 771 + rs * 4, 1),
                get(w + r + 832 + row % 8, 1) >> (row // 8 * 16))
    elif TYPE == "Q8_0":
        return (get(w + p, 0), get(w + p + 128, 0), get(w + p + 256, 0), get(w + p + 384, 0), get(w + p + 512, 0), get(w + p + 640, 0),
                get(w + p + 768, 0), get(w + p + 896, 0),
                get(w + r + 1024 + rs * 4, 1), get(w + r + 1025 + rs * 4, 1), get(w + r + 1026 + rs * 4, 1), get(w + r + 1027 + rs * 4, 1))
    elif TYPE == "Q5_0":
        return (get(w + p, 0), get(w + p + 128, 0), get(w + p + 256, 0), get(w + p + 384, 0), get(w + p + 512, 0),
                get(w + r + 640 + rs * 4, 1), get(w + r + 641 + rs * 4, 1), get(w + r + 642 + rs * 4, 1), get(w + r + 643 + rs * 4, 1))
    else:
        return (get(w + p, 0), get(w + p + 128, 0), get(w + p + 256, 0), get(w + p + 384, 0),
                get(w + r + 512 + rs * 8, 1), get(w + r + 513 + rs * 8, 1), get(w + r + 514 + rs * 8, 1), get(w + r + 515 + rs * 8, 1),
                get(w + r + 516 + rs * 8, 1), get(w + r + 517 + rs * 8, 1), get(w + r + 518 + rs * 8, 1), get(w + r + 519 + rs * 8, 1))

@triton.jit
def decode(P, j: tl.constexpr, TYPE: tl.constexpr):
    """Words of sub-block j, four int8 each: q (Q4), 4 (q - 32) (Q6_K), 8 (q - 16) (Q5_0), q (Q8_0)."""
    if TYPE == "Q8_0": return P[j]
    elif TYPE == "Q6_K":
        if j % 2 == 0: v = (P[j // 2] << 2) & 0x3c3c3c3c
        else: v = (P[j // 2] >> 2) & 0x3c3c3c3c
        return v | ((P[4 + j // 4] << (6 - 2 * (j % 4))) & -1061109568)                  # 0xc0c0c0c0
    elif TYPE == "Q5_0":
        if j % 2 == 0: v = (P[j // 2] << 3) & 0x78787878
        else: v = (P[j // 2] >> 1) & 0x78787878
        return v | ((P[4] << (7 - j)) & -2139062144)                                     # 0x80808080
    else: return (P[j // 2] >> (4 * (j % 2))) & 0x0f0f0f0f

MOVE = tl.constexpr("".join(f"mov.b32 ${i},${4 + i}; " for i in range(4)))
@triton.jit
def operand(w, R: tl.constexpr, FLAT: tl.constexpr):
    """words [R, g t r i] -> int8 [R, 16, 32 = t i b] for mma.sync, or [16 R, 32 = i t b] for wgmma: names only, no data moves."""
    if PLAIN:
        v = tl.join(tl.join(w.to(tl.int8), (w >> 16).to(tl.int8)), tl.join((w >> 8).to(tl.int8), (w >> 24).to(tl.int8)))
        v = tl.reshape(v, [R, 8, 4, 2, 2, 4])                                            # g t r i b
        if FLAT: return tl.reshape(tl.permute(v, [0, 3, 1, 4, 2, 5]), [R * 16, 32])
        else: return tl.reshape(tl.permute(v, [0, 3, 1, 2, 4, 5]), [R, 16, 32])
    else:
        a, b, c, d = tl.inline_asm_elementwise(MOVE, "=&r,=&r,=&r,=&r,r,r,r,r", [w], dtype=(tl.int8, tl.int8, tl.int8, tl.int8), is_pure=True, pack=4)
        v = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [R, 8, 4, 4, 2, 2])        # g t b r i
        if FLAT: return tl.reshape(tl.permute(v, [0, 4, 1, 5, 2, 3]), [R * 16, 32])
        else: return tl.reshape(tl.permute(v, [0, 4, 1, 2, 5, 3]), [R, 16, 32])

@triton.jit
def dot(P, j: tl.constexpr, x, R: tl.constexpr, FLAT: tl.constexpr, TYPE: tl.constexpr):
    return tl.dot(operand(decode(P, j, TYPE), R, FLAT), x, out_dtype=tl.int32)

@triton.jit
def step(d, f, t, FMA: tl.constexpr):
    """t + d f, rounded once or twice"""
    if FMA: return tl.fma(tl.broadcast_to(d, t.shape), tl.broadcast_to(f, t.shape), t)
    else: return t + d * f

@triton.jit
def scale(A, j: tl.constexpr, NC: tl.constexpr, FLAT: tl.constexpr):
    """column scales of sub-block j: loaded where they are used (FLAT, A is a pointer) or held in registers"""
    if FLAT: return tl.load(A + j * NC)
    else: return A[j]

@triton.jit
def leaf(P, X, A, xd, R: tl.constexpr, NC: tl.constexpr, FLAT: tl.constexpr, TYPE: tl.constexpr, FMA: tl.constexpr):
    """One float per row and column of the tiles: integers first, then the defined float operations."""
    if TYPE == "Q4_K":
        for j in tl.static_range(8):
            v = dot(P, j, X[j], R, FLAT, TYPE) * (byte(P[5 + j // 4], j % 4) * scale(A, j, NC, FLAT))
            if j == 0: S = v
            else: S += v
        m = operand(P[4], R, FLAT)
        M = (tl.dot(m, X[10], out_dtype=tl.int32) << 7) + tl.dot(m, X[9], out_dtype=tl.int32)
        M = (M << 7) + tl.dot(m, X[8], out_dtype=tl.int32)
        return (half(P[7]) * S.to(tl.float32) - half(P[7] >> 16) * M.to(tl.float32)) * xd
    elif TYPE == "Q6_K":
        for j in tl.static_range(8):
            a = operand(decode(P, j, TYPE), R, FLAT)
            v = tl.dot(a, X[2 * j], out_dtype=tl.int32) * signed_byte(P[6 + j // 2], 2 * (j % 2))
            v += tl.dot(a, X[2 * j + 1], out_dtype=tl.int32) * signed_byte(P[6 + j // 2], 2 * (j % 2) + 1)
            v = (v >> 2) * scale(A, j, NC, FLAT)
            if j % 4 == 0: S = v                             # 128 weights reach 2,130,706,432: no room for 256
            else: S += v
            if j == 3: S0 = S.to(tl.float32)
        return (half(P[10]) * (S0 + S.to(tl.float32))) * xd
    else:
        for j in tl.static_range(8):
            f = dot(P, j, X[j], R, FLAT, TYPE).to(tl.float32) * scale(A, j, NC, FLAT)    # a S, exact: below 2**24
            if j == 0: t = tl.zeros_like(f)
            if TYPE == "Q4_1":
                t = step(half(P[4 + j]), f, t, FMA)
                t = step(half(P[4 + j] >> 16), scale(A, 8 + j, NC, FLAT), t, FMA)
            elif TYPE == "Q5_0": t = step(half(P[5 + j // 2] >> (16 * (j % 2))), f, t, FMA)
            else: t = step(half(P[8 + j // 2] >> (16 * (j % 2))), f, t, FMA)
        return t * xd

@triton.jit
def load_scales(p, s: tl.constexpr, TYPE: tl.constexpr):
    if TYPE == "Q4_1":
        return (tl.load(p), tl.load(p + s), tl.load(p + 2 * s), tl.load(p + 3 * s), tl.load(p + 4 * s), tl.load(p + 5 * s), tl.load(p + 6 * s), tl.load(p + 7 * s),
                tl.load(p + 8 * s), tl.load(p + 9 * s), tl.load(p + 10 * s), tl.load(p + 11 * s), tl.load(p + 12 * s), tl.load(p + 13 * s), tl.load(p + 14 * s), tl.load(p + 15 * s))
    else:
        return (tl.load(p), tl.load(p + s), tl.load(p + 2 * s), tl.load(p + 3 * s), tl.load(p + 4 * s), tl.load(p + 5 * s), tl.load(p + 6 * s), tl.load(p + 7 * s))

# ---------------------------------------------------------------- kernel 1: up to 8 columns, groups of 256 side by side
@triton.jit
def pair(p, ok, R: tl.constexpr, NC: tl.constexpr):
    """bytes [R, col t h i b] -> two int8 [R, 32 = t i b, NC]"""
    a, b = tl.split(tl.permute(tl.reshape(tl.load(p, mask=ok, other=0), [R, NC, 4, 2, 2, 4]), [0, 1, 2, 4, 5, 3]))
    return tl.reshape(tl.permute(a, [0, 2, 3, 4, 1]), [R, 32, NC]), tl.reshape(tl.permute(b, [0, 2, 3, 4, 1]), [R, 32, NC])

@triton.jit
def load_ops(p, ok, R: tl.constexpr, NC: tl.constexpr, TYPE: tl.constexpr):
    Z: tl.constexpr = NC * 64
    a0, b0 = pair(p, ok, R, NC); a1, b1 = pair(p + Z, ok, R, NC); a2, b2 = pair(p + 2 * Z, ok, R, NC); a3, b3 = pair(p + 3 * Z, ok, R, NC)
    if TYPE == "Q4_K":
        a4, b4 = pair(p + 4 * Z, ok, R, NC); a5, b5 = pair(p + 5 * Z, ok, R, NC)
        return a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5
    elif TYPE == "Q6_K":
        a4, b4 = pair(p + 4 * Z, ok, R, NC); a5, b5 = pair(p + 5 * Z, ok, R, NC); a6, b6 = pair(p + 6 * Z, ok, R, NC); a7, b7 = pair(p + 7 * Z, ok, R, NC)
        return a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7
    else: return a0, b0, a1, b1, a2, b2, a3, b3

@triton.jit
def in_order(v, acc, M: tl.constexpr, C: tl.constexpr):
    """acc + v[:, 0] + v[:, 1] + ...: one addition after the other"""
    if C == 1: return acc + tl.reshape(v, [M])
    else:
        a, b = tl.split(tl.permute(tl.reshape(v, [M, 2, C // 2]), [0, 2, 1]))
        return in_order(b, in_order(a, acc, M, C // 2), M, C // 2)

@triton.jit
def halves_tree(v, M: tl.constexpr, C: tl.constexpr):
    """(v[:, :C/2] + v[:, C/2:]) again and again"""
    if C == 1: return tl.reshape(v, [M])
    else:
        a, b = tl.split(tl.permute(tl.reshape(v, [M, 2, C // 2]), [0, 2, 1]))
        return halves_tree(a + b, M, C // 2)

@triton.jit
def lanes_in_order(v, acc, M: tl.constexpr, C: tl.constexpr):
    """lane l of 8: acc[:, l] + v[:, l] + v[:, l + 8] + ..."""
    if C == 8: return acc + v
    else:
        a, b = tl.split(tl.permute(tl.reshape(v, [M, 2, C // 2]), [0, 2, 1]))
        return lanes_in_order(b, lanes_in_order(a, acc, M, C // 2), M, C // 2)

@triton.jit(do_not_specialize=["ntiles", "N", "SB", "W"])
def product(w, xq, xs, xd, y, ntiles, N, SB, W, TYPE: tl.constexpr, LANES: tl.constexpr, FMA: tl.constexpr, TW: tl.constexpr, NC: tl.constexpr, C: tl.constexpr,
            RT: tl.constexpr, ONE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr):
    """y[W, N].  Grid (programs, groups of NC columns).  A pass: RT row tiles x C groups of 256 side by side; ONE: SB <= C."""
    R: tl.constexpr = RT * C; M: tl.constexpr = 16 * NC * RT
    NO: tl.constexpr = 12 if TYPE == "Q4_K" else (16 if TYPE == "Q6_K" else 8)
    NS: tl.constexpr = 16 if TYPE == "Q4_1" else 8
    s = tl.arange(0, R); c = s % C; rt = s // C
    e = tl.arange(0, 128)[None, :]; em = (e // 16) * 4 + e % 4; t0 = ((e // 4) % 4 == 0) & (s[:, None] >= 0)
    row = tl.arange(0, 16)[None, :, None]; rs = (row % 8) * 2 + row // 8
    xe = tl.arange(0, NC * 64)[None, :]; col = tl.arange(0, NC)[None, None, :]; grp = tl.program_id(1); cok = (xe // 64 + grp * NC < W) & (s[:, None] >= 0)
    g = tl.program_id(0); G = tl.num_programs(0); groups = (ntiles + RT - 1) // RT; passes = 1 if ONE else (SB + C - 1) // C
    k = 0
    base = (tl.minimum(g * RT + rt, ntiles - 1) * SB + tl.minimum(c, SB - 1)) * TW; base2 = base[:, None]; base3 = base[:, None, None]
    P = load_tile(w, base2 + e, base2 + em, t0, base3, rs, row, TYPE)
    if PDL: gdc_wait()
    if ONE:
        xb = grp * SB + tl.minimum(c, SB - 1)
        X = load_ops(xq + xb[:, None] * (NO * NC * 32) + xe, cok, R, NC, TYPE)
        A = load_scales(xs + xb[:, None, None] * (NS * NC) + col, NC, TYPE)
        D = tl.load(xd + xb[:, None, None] * NC + col, mask=(c < SB)[:, None, None] & (col >= 0), other=0.0)
    if PDL: gdc_launch_dependents()
    o = tl.arange(0, M); oc = (o // RT) % NC + grp * NC; orow = (o % RT) * 16 + o // RT // NC
    KEEP: tl.constexpr = LANES and C == 8                    # a lane is a place in the pass: add in place, exchange once a tile
    if KEEP: acc = tl.zeros([R, 16, NC], tl.float32)
    elif LANES: acc = tl.zeros([M, 8], tl.float32)
    else: acc = tl.zeros([M], tl.float32)
    for it in range((groups - g + G - 1) // G * passes):
        last = k == passes - 1
        if ONE:
            nk = 0; ng = tl.minimum(g + G, groups - 1)
        else:
            nk = tl.where(last, 0, k + 1); ng = tl.where(last, tl.minimum(g + G, groups - 1), g)
        base = (tl.minimum(ng * RT + rt, ntiles - 1) * SB + tl.minimum(nk * C + c, SB - 1)) * TW; base2 = base[:, None]; base3 = base[:, None, None]
        if AHEAD: Q = load_tile(w, base2 + e, base2 + em, t0, base3, rs, row, TYPE)
        if not ONE:
            xb = grp * SB + tl.minimum(k * C + c, SB - 1)
            X = load_ops(xq + xb[:, None] * (NO * NC * 32) + xe, cok, R, NC, TYPE)
            A = load_scales(xs + xb[:, None, None] * (NS * NC) + col, NC, TYPE)
            D = tl.load(xd + xb[:, None, None] * NC + col, mask=(k * C + c < SB)[:, None, None] & (col >= 0), other=0.0)
        L = leaf(P, X, A, D, R, NC, False, TYPE, FMA)
        if not KEEP: v = tl.reshape(tl.trans(tl.reshape(L, [R, 16 * NC])), [M, C])
        if KEEP:
            if ONE: acc = 0.0 + L
            else: acc = tl.where(k == 0, 0.0, acc) + L
        elif LANES:
            if ONE: acc = lanes_in_order(v, tl.zeros([M, 8], tl.float32), M, C)
            else: acc = lanes_in_order(v, tl.where(k == 0, 0.0, acc), M, C)
        else:
            if ONE: acc = in_order(v, tl.zeros([M], tl.float32), M, C)
            else: acc = in_order(v, tl.where(k == 0, 0.0, acc), M, C)
        if ONE or last:
            if KEEP: out = halves_tree(tl.reshape(tl.trans(tl.reshape(acc, [R, 16 * NC])), [M, 8]), M, 8)
            elif LANES: out = halves_tree(acc, M, 8)
            else: out = acc
            n = g * (RT * 16) + orow
            tl.store(y + oc * N + n, out, mask=(oc < W) & (n < N))
        g = ng; k = nk
        if AHEAD: P = Q
        else: P = load_tile(w, base2 + e, base2 + em, t0, base3, rs, row, TYPE)

@triton.jit(do_not_specialize=["ntiles", "N", "SB", "W"])
def product_held(w, xq, xs, xd, y, ntiles, N, SB, W, TYPE: tl.constexpr, LANES: tl.constexpr, FMA: tl.constexpr, TW: tl.constexpr, NC: tl.constexpr, C: tl.constexpr,
                 KS: tl.constexpr, PDL: tl.constexpr):
    """The sequential sum for rows of several passes: the leaves of all KS passes stay in registers and change warps once a tile.

    Tried for K = 12288 and slower than `product` on the H200 (16 to 18 against 11 microseconds, Q4_K), so not used."""
    R: tl.constexpr = C; M: tl.constexpr = 16 * NC
    NO: tl.constexpr = 12 if TYPE == "Q4_K" else (16 if TYPE == "Q6_K" else 8)
    NS: tl.constexpr = 16 if TYPE == "Q4_1" else 8
    c = tl.arange(0, R); e = tl.arange(0, 128)[None, :]; em = (e // 16) * 4 + e % 4; t0 = ((e // 4) % 4 == 0) & (c[:, None] >= 0)
    row = tl.arange(0, 16)[None, :, None]; rs = (row % 8) * 2 + row // 8
    xe = tl.arange(0, NC * 64)[None, :]; col = tl.arange(0, NC)[None, None, :]; grp = tl.program_id(1); cok = (xe // 64 + grp * NC < W) & (c[:, None] >= 0)
    g = tl.program_id(0); G = tl.num_programs(0); o = tl.arange(0, M); oc = o % NC + grp * NC; orow = o // NC
    base = (g * SB + tl.minimum(c, SB - 1)) * TW; base2 = base[:, None]; base3 = base[:, None, None]
    P = load_tile(w, base2 + e, base2 + em, t0, base3, rs, row, TYPE)
    if PDL:
        gdc_wait(); gdc_launch_dependents()
    for it in range((ntiles - g + G - 1) // G):
        H = ()
        for k in tl.static_range(KS):
            ng = g if k < KS - 1 else tl.minimum(g + G, ntiles - 1)
            nk = k + 1 if k < KS - 1 else 0
            base = (ng * SB + tl.minimum(nk * C + c, SB - 1)) * TW; base2 = base[:, None]; base3 = base[:, None, None]
            Q = load_tile(w, base2 + e, base2 + em, t0, base3, rs, row, TYPE)
            xb = (g >> 30) + grp * SB + tl.minimum(k * C + c, SB - 1)     # g >> 30 is 0, but keeps the loads inside the loop
            X = load_ops(xq + xb[:, None] * (NO * NC * 32) + xe, cok, R, NC, TYPE)
            A = load_scales(xs + xb[:, None, None] * (NS * NC) + col, NC, TYPE)
            D = tl.load(xd + xb[:, None, None] * NC + col, mask=(k * C + c < SB)[:, None, None] & (col >= 0), other=0.0)
            H = H + (leaf(P, X, A, D, R, NC, False, TYPE, FMA),)
            P = Q
        acc = tl.zeros([M], tl.float32)
        for k in tl.static_range(KS): acc = in_order(tl.reshape(tl.trans(tl.reshape(H[k], [R, 16 * NC])), [M, C]), acc, M, C)
        n = g * 16 + orow
        tl.store(y + oc * N + n, acc, mask=(oc < W) & (n < N))
        g = tl.minimum(g + G, ntiles - 1)

# ---------------------------------------------------------------- kernel 2: many columns, one group of 256 after the other
@triton.jit
def flat_ops(p, s, TYPE: tl.constexpr):
    a0 = tl.trans(tl.load(p)); a1 = tl.trans(tl.load(p + s)); a2 = tl.trans(tl.load(p + 2 * s)); a3 = tl.trans(tl.load(p + 3 * s))
    a4 = tl.trans(tl.load(p + 4 * s)); a5 = tl.trans(tl.load(p + 5 * s)); a6 = tl.trans(tl.load(p + 6 * s)); a7 = tl.trans(tl.load(p + 7 * s))
    if TYPE == "Q4_K": return a0, a1, a2, a3, a4, a5, a6, a7, tl.trans(tl.load(p + 8 * s)), tl.trans(tl.load(p + 9 * s)), tl.trans(tl.load(p + 10 * s))
    elif TYPE == "Q6_K":
        return (a0, a1, a2, a3, a4, a5, a6, a7, tl.trans(tl.load(p + 8 * s)), tl.trans(tl.load(p + 9 * s)), tl.trans(tl.load(p + 10 * s)), tl.trans(tl.load(p + 11 * s)),
                tl.trans(tl.load(p + 12 * s)), tl.trans(tl.load(p + 13 * s)), tl.trans(tl.load(p + 14 * s)), tl.trans(tl.load(p + 15 * s)))
    else: return a0, a1, a2, a3, a4, a5, a6, a7

@triton.jit
def tile_leaf(w, xf, xs, xd, tiles, rtile, b, SB, Wp, e, em, t0, rs, row16, x, col, grp, NC: tl.constexpr, TYPE: tl.constexpr, FMA: tl.constexpr, TW: tl.constexpr, R: tl.constexpr):
    NO: tl.constexpr = 12 if TYPE == "Q4_K" else (16 if TYPE == "Q6_K" else 8)
    NS: tl.constexpr = 16 if TYPE == "Q4_1" else 8
    base = ((tiles * SB + b) * TW)[:, None]
    P = load_tile(w, base + e, base + em, t0, (rtile * SB + b) * TW, rs, row16, TYPE)
    X = flat_ops(xf + b * NO * Wp * 32 + x, Wp * 32, TYPE)
    return leaf(P, X, xs + (grp * SB + b) * (NS * NC) + col, tl.load(xd + (grp * SB + b) * NC + col), R, NC, True, TYPE, FMA)

@triton.jit(do_not_specialize=["ntiles", "N", "SB", "W", "Wp"])
def product_tile(w, xf, xs, xd, y, ntiles, N, SB, W, Wp, TYPE: tl.constexpr, LANES: tl.constexpr, FMA: tl.constexpr, TW: tl.constexpr, NC: tl.constexpr, R: tl.constexpr, STAGES: tl.constexpr):
    """y[W, N].  Grid (row blocks of 16 R, groups of NC columns); xs, xd padded to groups of NC."""
    e = tl.arange(0, 128)[None, :]; em = (e // 16) * 4 + e % 4; s = tl.arange(0, R); t0 = ((e // 4) % 4 == 0) & (s[:, None] >= 0)
    m = tl.arange(0, 16 * R)[:, None]; row16 = m % 16; rs = (row16 % 8) * 2 + row16 // 8
    tiles = tl.minimum(tl.program_id(0) * R + s, ntiles - 1); rtile = tl.minimum(tl.program_id(0) * R + m // 16, ntiles - 1)
    grp = tl.program_id(1); col = tl.arange(0, NC)[None, :]
    x = (grp * NC + tl.arange(0, NC)[:, None]) * 32 + tl.arange(0, 32)[None, :]
    if not LANES:
        acc = tl.zeros([16 * R, NC], tl.float32)
        for b in tl.range(0, SB, num_stages=STAGES):
            acc += tile_leaf(w, xf, xs, xd, tiles, rtile, b, SB, Wp, e, em, t0, rs, row16, x, col, grp, NC, TYPE, FMA, TW, R)
    else:
        z = tl.zeros([16 * R, NC], tl.float32); a0 = z; a1 = z; a2 = z; a3 = z; a4 = z; a5 = z; a6 = z; a7 = z
        for b in tl.range(0, SB, num_stages=STAGES):
            l = tile_leaf(w, xf, xs, xd, tiles, rtile, b, SB, Wp, e, em, t0, rs, row16, x, col, grp, NC, TYPE, FMA, TW, R)
            i = b % 8
            if i == 0: a0 += l
            elif i == 1: a1 += l
            elif i == 2: a2 += l
            elif i == 3: a3 += l
            elif i == 4: a4 += l
            elif i == 5: a5 += l
            elif i == 6: a6 += l
            else: a7 += l
        acc = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
    n = tl.program_id(0) * (16 * R) + m; c = grp * NC + col
    tl.store(y + c * N + n, acc, mask=(c < W) & (n < N))

# ---------------------------------------------------------------- control: read the same words
@triton.jit
def read(w, y, n, B: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr):
    """the sum of all int32 words, one partial sum a program (the last words beyond a multiple of B are masked)"""
    g = tl.program_id(0); G = tl.num_programs(0); i = tl.arange(0, B); acc = tl.zeros([B], tl.int32)
    if PDL: gdc_launch_dependents()
    for o in tl.range(g * B, n, G * B, num_stages=AHEAD):
        acc += tl.load(w + o + i, mask=o + i < n, other=0, eviction_policy="evict_first")
    if PDL: gdc_wait()
    tl.store(y + g, tl.sum(acc, 0))

# ---------------------------------------------------------------- launching
def constants(kind, order): return dict(TYPE=kind, LANES=order == "lanes8", FMA=order != "muladd", TW=WORDS[kind])

def launch(kind, order, w, acts, y, N, SB, W, cfg, pdl=False):
    "cfg: ('batch', C, RT, warps, programs, ahead, NC) or ('tile', R, NC, warps, stages)"
    ntiles = -(-N // 16); k = dict(constants(kind, order), enable_fp_fusion=False)
    if cfg[0] == "batch":
        _, C, RT, warps, programs, ahead, NC = cfg; xb, _, xs, xd = acts[NC]
        groups = -(-ntiles // RT)
        product[(min(programs, groups), -(-W // NC))](w, xb, xs, xd, y, ntiles, N, SB, W, NC=NC, C=C, RT=RT, ONE=SB <= C, AHEAD=ahead, PDL=pdl,
                                                      num_warps=warps, num_stages=1, **(dict(launch_pdl=True) if pdl else {}), **k)
    elif cfg[0] == "held":
        _, C, warps, programs, NC = cfg; xb, _, xs, xd = acts[NC]
        product_held[(min(programs, ntiles), -(-W // NC))](w, xb, xs, xd, y, ntiles, N, SB, W, NC=NC, C=C, KS=-(-SB // C), PDL=pdl, num_warps=warps, num_stages=1,
                                                           **(dict(launch_pdl=True) if pdl else {}), **k)
    else:
        _, R, NC, warps, stages = cfg; _, xf, xs, xd = acts[NC]; Wp = -(-W // NC) * NC
        product_tile[(-(-ntiles // R), Wp // NC)](w, xf, xs, xd, y, ntiles, N, SB, W, Wp, NC=NC, R=R, STAGES=stages, num_warps=warps, **k)

WIDTHS = (1, 2, 8, 16, 32, 64)
BATCH = [("batch", 16, 1, 16, 132, 1, 8), ("batch", 8, 1, 8, 264, 1, 8), ("batch", 8, 1, 8, 528, 0, 8), ("batch", 8, 2, 16, 132, 1, 8), ("batch", 8, 1, 8, 264, 1, 16)]
TILE = [("tile", 4, 16, 4, 3), ("tile", 4, 32, 4, 3), ("tile", 4, 32, 4, 2), ("tile", 4, 64, 4, 2)]

HELD = [("held", 8, 8, 264, 8), ("held", 16, 16, 132, 8)]   # sequential only; for K > 4096

def on(device, arrays):
    import torch
    return tuple(torch.from_numpy(a).to(device) for a in arrays)

def cases(kind, rng, small, long=False):
    "(label, matrix, columns) for the checks: ragged K and rows, and every integer at its worst value"
    Ks = [768] if kind in ref.SUPER else [608]
    if not small: Ks += [256, 2048, 4096, 4352] if kind in ref.SUPER else [32, 2048, 4064, 4192]
    if long: Ks = [12288, 4096]
    widths = (1, 8) if small else WIDTHS if not long else (1, 8, 16)
    for K in Ks:
        for extreme in (False, True):
            R = 37 if small or K != 4096 else 203
            m = ref.random_matrix(kind, R, K, rng, extreme); x = ref.random_acts(max(widths), K, rng, extreme)
            for W in widths: yield f"{kind} {R}x{K} W{W}{' worst' if extreme else ''}", m, {k: v[:W] for k, v in x.items()}

def check(kind, orders, configs, device, small=False, pdl=False, seed=7, long=False):
    "(values compared, values different, [labels of the first failures])"
    import torch
    rng = np.random.default_rng(seed); n = bad = 0; failed = []; cache = {}; broken = set()
    for label, m, x in cases(kind, rng, small, long):
        key = id(m["q"])
        if key not in cache: cache = {key: torch.from_numpy(pack(m)).to(device)}
        w = cache[key]; N, SB = m["q"].shape[:2]; W = x["q"].shape[0]
        acts = {c: on(device, pack_acts(x, kind, c)) for c in (8, 16, 32, 64)}
        for order in orders:
            want = torch.from_numpy(np.ascontiguousarray(ref.product(m, x, order)).view(np.int32)).to(device)
            for cfg in configs:
                if cfg[0] == "tile" and cfg[2] > max(16, W) or cfg[0] != "tile" and cfg[-1] > max(8, W) or cfg[0] == "held" and order == "lanes8": continue
                for p in ((False, True) if pdl and cfg[0] != "tile" else (False,)):
                    y = torch.full((W, N), float("nan"), dtype=torch.float32, device=device)
                    if (cfg, p) in broken: continue
                    try: launch(kind, order, w, acts, y, N, SB, W, cfg, p)
                    except Exception as e: broken.add((cfg, p)); failed.append(f"{label} {order} {cfg} pdl={p}: {type(e).__name__} {str(e)[:600]}"); continue
                    d = int((y.view(torch.int32) != want).sum()); n += y.numel(); bad += d
                    if d: failed.append(f"{label} {order} {cfg} pdl={p}: {d} of {y.numel()}")
    return n, bad, failed[:8]

def check_worker(job):
    kind, order, configs, pdl, long = job; t = time.time()
    try: n, bad, failed = check(kind, (order,), configs, "cuda", pdl=pdl, long=long)
    except Exception as e: n, bad, failed = 0, -1, [f"{kind} {order} {configs[0][0]}: {type(e).__name__}: {str(e)[:1500]}"]
    return dict(kind=kind, order=order, kernel=configs[0][0], configs=configs, values=n, different=bad, failed=failed, seconds=round(time.time() - t, 1))

# ---------------------------------------------------------------- compile without a GPU
def compile_all(arch, kinds=ref.TYPES, orders="sequential", configs=(BATCH[0], BATCH[2], TILE[0], TILE[3])):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    out = []
    for kind in kinds:
        for order in ref.orders(kind, orders):
            for cfg in configs:
                f = "i32" if kind in ref.SUPER else "fp32"; ptrs = {"w": "*i32", "xs": "*" + f, "xd": "*fp32", "y": "*fp32"}
                ints = dict.fromkeys(("ntiles", "N", "SB", "W"), "i32"); c = constants(kind, order)
                if cfg[0] == "batch": fn, warps = product, cfg[3]; ptrs["xq"] = "*i8"; c.update(NC=cfg[6], C=cfg[1], RT=cfg[2], ONE=True, AHEAD=cfg[5], PDL=arch >= 90)
                else: fn, warps = product_tile, cfg[3]; ptrs["xf"] = "*i8"; ints["Wp"] = "i32"; c.update(NC=cfg[2], R=cfg[1], STAGES=cfg[4])
                sig = {**ptrs, **ints}; sig = {a: sig.get(a, "constexpr") for a in fn.arg_names}
                attrs = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(fn.arg_names) if a in ptrs}
                t = time.time()
                k = triton.compile(ASTSource(fn, sig, constexprs={(fn.arg_names.index(a),): v for a, v in c.items()}, attrs=attrs),
                                   target=GPUTarget("cuda", arch, 32), options=dict(num_warps=warps, enable_fp_fusion=False, **(dict(launch_pdl=True) if c.get("PDL") else {})))
                ptx = k.asm["ptx"]
                bad = [b for b in (".approx", ".full", ".ftz") if b in ptx]
                out.append((kind, order, cfg, round(time.time() - t, 1), {o: ptx.count(o) for o in ("fma.rn.f32", "mma.sync", "wgmma.mma_async", "local")}, bad, k))
                print(arch, kind, order, cfg, out[-1][3], "s", out[-1][4], "FORBIDDEN " + str(bad) if bad else "", flush=True)
    return out

# ---------------------------------------------------------------- timing
SHAPES = [(2048, 2048), (24576, 4096), (151936, 2048), (4096, 12288), (4096, 4096)]

def big_matrices(kind, N, K, total=320e6, least=2):
    "enough different random matrices in the packed layout, made on the GPU: words random, scales small and valid"
    import torch
    SB, T, TW = K // 256, -(-N // 16), WORDS[kind]; size = T * SB * TW * 4; n = max(least, -(-int(total) // size))
    w = torch.randint(-2**31, 2**31 - 1, (n, T * SB, TW), dtype=torch.int32, device="cuda"); P = PLANES[kind] * 128
    def halves(shape): return (torch.randn(shape, device="cuda") * 2e-3).half().view(torch.int32)
    if kind == "Q4_K": w[:, :, P:P + 64] &= 0x3f3f3f3f; w[:, :, 576:] = halves((n, T * SB, 32))
    elif kind == "Q6_K": w[:, :, 832:] = halves((n, T * SB, 16))
    else: w[:, :, P:] = halves((n, T * SB, 2 * (TW - P)))
    return w

def graph_us(run, n, samples=9, sample_us=2500):
    "median and spread (quartiles) of microseconds per launch: a CUDA graph of `n` launches run(i), replayed back to back"
    import torch
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        run(0); run(min(1, n - 1)); s.synchronize(); g = torch.cuda.CUDAGraph()
        g.capture_begin()
        for i in range(n): run(i)
        g.capture_end()
        ts, k = [], 1
        for sample in range(-2, samples):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(k): g.replay()
            b.record(); b.synchronize(); us = a.elapsed_time(b) * 1e3 / k
            if sample < 0: k = max(1, min(40, int(sample_us / us)))
            else: ts.append(us / n)
    q = np.percentile(ts, [25, 50, 75]); return float(q[1]), float(q[2] - q[0])

def candidates(K, W):
    two = BATCH[:1] + BATCH[1:2] if K >= 4096 else BATCH[1:4]
    held = HELD if K > 4096 else []
    if W <= 8: return two + held
    two = two + held
    return two[:1] + held + BATCH[4:] + [t for t in TILE if t[2] <= max(16, W) and (t[2] >= min(W, 32))]

def time_all(kinds, shapes, widths, pdls, deadline, log, orders="sequential", tiles=True):
    import torch
    rows = []; t0 = time.time(); rng = np.random.default_rng(1)
    for N, K in shapes:
        for kind in kinds:
            if time.time() - t0 > deadline: print("deadline: not run", N, K, kind, flush=True); continue
            w = big_matrices(kind, N, K); n, SB = w.shape[0], K // 256; size = w[0].numel() * 4; ys = {}
            buf = torch.zeros(4096, dtype=torch.int32, device="cuda"); best = None
            for B, G, ahead in ((4096, 264, 3), (4096, 1056, 2), (8192, 528, 2)):
                for pdl in pdls:
                    us, sp = graph_us(lambda i: read[(G,)](w[i], buf, size // 4, B=B, AHEAD=ahead, PDL=pdl, num_warps=8, **(dict(launch_pdl=True) if pdl else {})), n)
                    if best is None or us < best[0]: best = (us, sp, (B, G, ahead, pdl))
            rows.append(dict(quantization=kind, shape=[N, K], width=0, arm="read", value=round(best[0], 3), spread=round(best[1], 3), config=list(best[2]), gbs=round(size / best[0] / 1e3, 1)))
            log(rows[-1])
            xx = ref.random_acts(max(widths), K, rng)
            for W in widths:
                x = {k: v[:W] for k, v in xx.items()}; acts = {c: on("cuda", pack_acts(x, kind, c)) for c in (8, 16, 32, 64)}
                y = torch.empty((W, N), dtype=torch.float32, device="cuda")
                for pdl in pdls:
                    arms = {o: None for o in ref.orders(kind, orders)}
                    for cfg in candidates(K, W):
                        if cfg[0] == "tile" and (pdl or not tiles): continue
                        for order in arms:
                            if cfg[0] == "held" and order == "lanes8": continue
                            y.fill_(float("nan"))
                            try: us, sp = graph_us(lambda i: launch(kind, order, w[i], acts, y, N, SB, W, cfg, pdl), n)
                            except Exception as e: print("FAILED", kind, N, K, W, order, cfg, type(e).__name__, str(e)[:200], flush=True); continue
                            h = y[0].view(torch.int32).clone(); same = bool((ys.setdefault(order, h) == h).all())
                            log(dict(quantization=kind, shape=[N, K], width=W, arm=order, pdl=pdl, config=list(cfg), us=round(us, 3), spread=round(sp, 3), same_bits_as_first=same), quiet=True)
                            if not same: print("BITS DIFFER", kind, N, K, W, order, cfg, flush=True)
                            if arms[order] is None or us < arms[order][0]: arms[order] = (us, sp, cfg)
                    for o, b in arms.items():
                        if b: rows.append(dict(quantization=kind, shape=[N, K], width=W, arm=o, pdl=pdl, value=round(b[0], 3), spread=round(b[1], 3), config=list(b[2]), gbs=round(size / b[0] / 1e3, 1))); log(rows[-1])
            del w; torch.cuda.empty_cache()
    return rows

def copy_gbs():
    import torch
    a = torch.randint(-2**31, 2**31 - 1, (1 << 28,), dtype=torch.int32, device="cuda"); b = torch.empty_like(a)
    us, _ = graph_us(lambda i: torch.bitwise_not(a, out=b), 4)
    return 8 * a.numel() / us / 1e3

def main():
    p = argparse.ArgumentParser(); p.add_argument("what", choices=["check", "compile", "time"]); p.add_argument("--arch", default="90"); p.add_argument("--kinds", default=",".join(ref.TYPES))
    p.add_argument("--widths", default="1,2,8,16,32,64"); p.add_argument("--shapes", default=""); p.add_argument("--deadline", type=float, default=120); p.add_argument("--out", default="."); p.add_argument("--workers", type=int, default=15)
    p.add_argument("--orders", default="sequential", help="comma-separated, or all"); p.add_argument("--skip-check", action="store_true"); p.add_argument("--long", action="store_true", help="long rows only: the kernel that holds its leaves")
    a = p.parse_args(); kinds = a.kinds.split(",")
    if a.what == "compile":
        for arch in a.arch.split(","): compile_all(int(arch), kinds, a.orders)
    elif a.what == "check" and INTERPRET:
        for kind in kinds: print(kind, *check(kind, ref.orders(kind, a.orders), [("batch", 8, 1, 8, 2, 1, 8), ("batch", 8, 2, 8, 1, 0, 8), ("held", 2, 8, 2, 8), TILE[0]], "cpu", small=True), flush=True)
    else:
        import multiprocessing as mp
        t0 = time.time()
        if not a.skip_check:
            if a.long: jobs = [(k, o, c, True, True) for k in kinds for c in (HELD[:1], HELD[1:], BATCH[:2], BATCH[4:]) for o in ref.orders(k, a.orders) if not (c[0] in HELD and o == "lanes8")]
            else: jobs = [(k, o, [c], True, False) for c in TILE[::-1] + BATCH for k in kinds for o in ref.orders(k, a.orders)]
            with mp.get_context("spawn").Pool(a.workers, maxtasksperchild=1) as pool:
                res = []
                for r in pool.imap_unordered(check_worker, jobs):
                    res.append(r); print(r, flush=True)
                    with open(os.path.join(a.out, "check.json"), "w") as f: json.dump(res, f, indent=1)
            print("checked", sum(r["values"] for r in res), "different", sum(max(0, r["different"]) for r in res), "failed jobs", sum(r["different"] < 0 for r in res), round(time.time() - t0, 1), "s", flush=True)
        if a.what == "time":
            import torch
            shapes = [tuple(map(int, s.split("x"))) for s in a.shapes.split(",")] if a.shapes else SHAPES
            f = open(os.path.join(a.out, "time.jsonl"), "w")
            def log(r, quiet=False):
                f.write(json.dumps(dict(r, t=round(time.time() - t0, 1))) + "\n"); f.flush()
                if not quiet: print(r["quantization"], "x".join(map(str, r["shape"])), "W", r["width"], r["arm"], "pdl" if r.get("pdl") else "", r["value"], "us", r["gbs"], "GB/s", r["config"], "+-", r["spread"], flush=True)
            print("device", torch.cuda.get_device_name(), "copy", round(copy_gbs(), 1), "GB/s", "triton", triton.__version__, "torch", torch.__version__, flush=True)
            time_all(kinds, shapes, list(map(int, a.widths.split(","))), (False, True), a.deadline, log, a.orders, tiles=not a.long)

if __name__ == "__main__":
    import contract_triton                                   # one module name in every process: Triton's cache keys hold it
    contract_triton.main()
