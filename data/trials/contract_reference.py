"""The quantized product in plain numpy: exact integers, then float32 operations in the order under trial.

    python contract_reference.py      # is "sequential" bit for bit alphabook.arithmetic.quantized_product?

Contract version 1: activation scales a in 1..32, leaves added in order, two half sums in superblock types without minima.

A weight matrix is held as integers: `q` [R, NB, 8, 32], `sc` (integer sub-scales), `mn`, and the file's half-precision
super-scales `d`, `m`.  NB counts groups of 256 weights; a last group of a 32-weight type may hold fewer than 8 blocks
(its missing blocks have d = 0, which adds nothing to a sum that starts from +0.0).
"""
import numpy as np
f32, i32, i64 = np.float32, np.int32, np.int64
TYPES = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q4_1")
STEPS = 32                                                   # largest activation scale of a group of 32
SUPER = ("Q4_K", "Q6_K")                                     # 256 weights share one leaf; the others are 32-weight types
RANGE = dict(Q4_K=(0, 15), Q6_K=(-32, 31), Q8_0=(-128, 127), Q5_0=(-16, 15), Q4_1=(0, 15))
BYTES = dict(Q4_K=144, Q6_K=210, Q8_0=272, Q5_0=176, Q4_1=160)      # of the file, per 256 weights


def fma(a, b, c):
    """Exact fp32 fused multiply-add: float64 product and sum, rounded to odd, then once to fp32 (53 >= 24 + 2 bits)."""
    a, b, c = np.broadcast_arrays(*(np.asarray(v, f32).astype(np.float64) for v in (a, b, c)))
    with np.errstate(all="ignore"):
        p = a * b
        s = np.atleast_1d(p + c)
        t = s - p
        e = (p - (s - t)) + (c - t)                          # TwoSum: p + c == s + e
        i = s.view(i64)
        fix = (e != 0) & ((i & 1) == 0) & np.isfinite(s) & np.isfinite(e)
        r = np.where(fix, i + np.where((e > 0) == (s > 0), 1, -1), i).view(np.float64).astype(f32)
    return r if a.ndim else r[0]


def random_matrix(kind, R, K, rng, extreme=False):
    """Integers and scales of a random [R, K] matrix; `extreme` sets every integer to the worst value of its range."""
    NB, lo_hi = -(-K // 256), RANGE[kind]
    q = rng.integers(lo_hi[0], lo_hi[1] + 1, (R, NB, 8, 32), dtype=np.int16)
    if extreme: q[:] = lo_hi[0] if abs(lo_hi[0]) > lo_hi[1] else lo_hi[1]
    half = lambda *shape: (rng.normal(size=shape) * 2e-3).astype(np.float16).astype(f32)
    w = dict(kind=kind, q=q)
    if kind in SUPER:
        w["d"], n = half(R, NB), 8 if kind == "Q4_K" else 16
        lo, hi = (0, 63) if kind == "Q4_K" else (-128, 127)
        w["sc"] = rng.integers(lo, hi + 1, (R, NB, n)).astype(i32)
        if extreme: w["sc"][:] = hi if kind == "Q4_K" else lo
        if kind == "Q4_K":
            w["mn"], w["m"] = rng.integers(0, 64, (R, NB, 8)).astype(i32), half(R, NB)
            if extreme: w["mn"][:] = 63
        return w
    w["d"] = half(R, NB, 8)
    live = np.arange(NB * 8).reshape(NB, 8) < K // 32
    w["d"][:, ~live] = 0
    if kind == "Q4_1": w["m"] = np.where(live, half(R, NB, 8), f32(0))
    return w


def quantize_acts(x):
    """fp32 [W, K] -> int8 q [W, NB, 8, 32], integer a in 1..STEPS [W, NB, 8], fp32 d [W, NB]; padded with zeros to 256."""
    W, K = x.shape; NB = -(-K // 256)
    b = np.concatenate([x, np.zeros((W, NB * 256 - K), f32)], 1).reshape(W, NB, 8, 32)
    am = np.abs(b).max(-1); A = am.max(-1); ok = A >= f32(2.0**-100); A1 = np.where(ok, A, f32(1))
    a = np.minimum(STEPS, 1 + ((am * f32(STEPS)) / A1[..., None]).astype(i32))
    inv = (f32(127) / A1) * f32(STEPS)
    t = b * (inv[..., None] / a.astype(f32))[..., None] + f32(12582912.0)
    q = t.view(i32) - i32(0x4B400000)
    ok1 = ok[..., None]
    return dict(q=np.where(ok1[..., None], q, 0).astype(np.int8), a=np.where(ok1, a, 1).astype(i32),
                d=np.where(ok, A / f32(127 * STEPS), f32(0)))


def random_acts(W, K, rng, extreme=False):
    """Quantized columns; `extreme`: every q is +127 or -127 (one sign per 256) and every a is STEPS."""
    x = quantize_acts((rng.normal(size=(W, K)) * rng.choice([.1, 1, 30], (1, K), p=[.3, .65, .05])).astype(f32))
    if extreme:
        live = np.abs(x["q"]).max() > 0
        sign = rng.choice([-127, 127], x["q"].shape[:2])[..., None, None]
        x["q"][:] = sign * live; x["a"][:] = STEPS
    return x


def f(S):
    """The sum of integers, which must fit into int32, rounded once to fp32."""
    S = S.sum(-1)
    assert np.abs(S).max(initial=0) < 2**31
    return S.astype(f32)


def mul_add(a, b, c): return a * b + c                       # two roundings


def leaves(w, x, step=fma):
    """One float per row, column and 256 weights: [R, W, NB]; `step` joins the blocks of a 32-weight type."""
    R, NB = w["q"].shape[:2]; W = x["q"].shape[0]; g = 16 if w["kind"] == "Q6_K" else 32
    a, xd = x["a"].astype(i64), x["d"][None]                                              # [W, NB, 8], [1, W, NB]
    wq = w["q"].reshape(R, -1, g).transpose(1, 0, 2).astype(np.float64)
    xq = x["q"].reshape(W, -1, g).transpose(1, 2, 0).astype(np.float64)
    S = np.rint(wq @ xq).astype(i64).transpose(1, 2, 0).reshape(R, W, NB, -1)             # exact: far below 2**53
    bs = x["q"].astype(i64).sum(-1)
    if w["kind"] in SUPER:
        S = S * w["sc"][:, None] * np.repeat(a, S.shape[-1] // 8, -1)
        if "m" in w: return (w["d"][:, None] * f(S) - w["m"][:, None] * f(w["mn"][:, None] * (a * bs))) * xd
        S0, S1 = (f(half) for half in np.split(S, 2, -1))    # 128 weights each: all of them could exceed int32
        return (w["d"][:, None] * (S0 + S1)) * xd
    t = np.zeros((R, W, NB), f32)
    for j in range(8):
        t = step(w["d"][:, None, :, j], (a * S)[..., j].astype(f32), t)
        if "m" in w: t = step(w["m"][:, None, :, j], (a * bs)[..., j].astype(f32), t)
    return t * xd


def total(l, order):
    """The sum over the last axis: strictly in order from +0.0, or 8 strided lanes and then a tree of halves."""
    if order != "lanes8":
        y = np.zeros(l.shape[:-1], f32)
        for k in range(l.shape[-1]): y = y + l[..., k]
        return y
    s = np.zeros((*l.shape[:-1], 8), f32)
    for k in range(l.shape[-1]): s[..., k % 8] = s[..., k % 8] + l[..., k]
    for h in (4, 2, 1): s = s[..., :h] + s[..., h:]
    return s[..., 0]


def product(w, x, order):
    """[W, R]; order is "sequential" (the contract), "lanes8" or "muladd" (sequential, no fma in the leaves of 32-weight types)."""
    return total(leaves(w, x, mul_add if order == "muladd" else fma), order).T


def orders(kind, which="all"):
    """The orders asked for that exist for the type; "all" includes those that the contract did not choose."""
    every = ("sequential", "lanes8") + (() if kind in SUPER else ("muladd",))
    return every if which == "all" else tuple(o for o in every if o in which.split(","))


def int_view(w):
    """The same matrix as alphabook's IntView."""
    from alphabook.blocks import IntView
    R, NB = w["q"].shape[:2]; q = w["q"].astype(np.int8)
    if w["kind"] in SUPER:
        mn = w["mn"].astype(np.int16) if "mn" in w else None
        return IntView(q.reshape(R, NB, *((8, 32) if mn is not None else (16, 16))), w["sc"].astype(np.int16), mn, w["d"], w.get("m"), 256)
    m = w["m"].reshape(R, -1) if "m" in w else None          # the file's minimum, with mn = -1
    mn = np.full((R, NB * 8, 1), -1, np.int16) if m is not None else None
    return IntView(q.reshape(R, NB * 8, 1, 32), None, mn, w["d"].reshape(R, -1), m, 32)


def compare_alphabook(seed=1):
    """(values compared, values different) of activations and products, against alphabook's frozen contract."""
    import os, sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    from alphabook import arithmetic, blocks
    assert arithmetic.CONTRACT_VERSION == "1" and blocks.STEPS == STEPS
    rng = np.random.default_rng(seed); n = bad = 0
    for kind in TYPES:
        for K in (256, 768, 4352) if kind in SUPER else (32, 608, 4192):
            v = (rng.normal(size=(3, K)) * np.exp(rng.normal(size=(3, K)) * 2)).astype(f32); v[1, :K // 2] = 0
            ours, theirs = quantize_acts(v), blocks.quantize_acts(v)
            for a, b in ((ours["q"].reshape(theirs.q.shape), theirs.q), (ours["a"], theirs.a), (ours["d"].view(i32), theirs.d.view(i32))):
                n += a.size; bad += int((a != b).sum())
            for extreme in (False, True):
                w = random_matrix(kind, 11, K, rng, extreme)
                for x in (ours, random_acts(3, K, rng, extreme)):
                    acts = blocks.Acts(x["q"].reshape(3, -1, 256), x["a"], x["d"], x["q"].sum(-1, dtype=i32))
                    a, b = product(w, x, "sequential"), arithmetic.quantized_product(int_view(w), acts)
                    n += a.size; bad += int((np.ascontiguousarray(a).view(i32) != np.ascontiguousarray(b).view(i32)).sum())
    return n, bad


if __name__ == "__main__":
    n, bad = compare_alphabook()
    print("against alphabook.arithmetic.quantized_product and quantize_acts: values", n, "different", bad)
    raise SystemExit(bool(bad))
