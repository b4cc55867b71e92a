"""Elementary functions, softcap, rotary angles, activation quantization, RMS norm and attention tiles in Triton, compared bit for bit
with the numpy program of chapters 02 and 03.      python contract_math.py [--small]      (TRITON_INTERPRET=1: without a GPU)
"""
import argparse, json, os, sys, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
import triton, triton.language as tl
import alphabook.elementary as el
from alphabook.blocks import STEPS as A_STEPS
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
if INTERPRET:                                                # its tl.fma rounds twice (3.6.0, 3.7.1)
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    InterpreterBuilder.create_fma = lambda self, x, y, z: TensorHandle(el.fma(x.data, y.data, z.data), z.dtype.scalar)
c = lambda v: tl.constexpr(float(v))
LOG2E, NHI, NLO, MAGIC, EXP_MAX, EXP_MIN = map(c, (el.LOG2E, -el.LN2_HI, -el.LN2_LO, el.MAGIC, el.EXP_MAX, el.EXP_MIN))
E6, E5, E4, E3, E2, E1, E0 = map(c, el.EXP_POLY)
L5, L4, L3, L2, L1 = map(c, el.LOG1P_POLY)
S7, S5, S3 = map(c, el.SIN_POLY); C8, C6, C4 = map(c, el.COS_POLY)
CUBE, GSCALE, TURN = map(c, (el.GELU_CUBE, el.GELU_SCALE, el.TURN))
MBITS = tl.constexpr(0x4B400000)
A_MAX, A_STEPSF, D_DIV = tl.constexpr(A_STEPS), c(A_STEPS), c(127 * A_STEPS)         # scales of 32 activations: 1..A_MAX

@triton.jit
def full(x, v: tl.constexpr): return tl.full(x.shape, v, tl.float32)

@triton.jit
def exp(x):
    y = tl.minimum(tl.maximum(x, EXP_MIN), EXP_MAX)
    t = tl.fma(y, full(x, LOG2E), full(x, MAGIC)); n = t.to(tl.int32, bitcast=True) - MBITS; k = t - MAGIC
    r = tl.fma(k, full(x, NLO), tl.fma(k, full(x, NHI), y))
    p = tl.fma(full(x, E6), r, full(x, E5)); p = tl.fma(p, r, full(x, E4)); p = tl.fma(p, r, full(x, E3))
    p = tl.fma(p, r, full(x, E2)); p = tl.fma(p, r, full(x, E1)); p = tl.fma(p, r, full(x, E0))
    e = (p.to(tl.int32, bitcast=True) + (n << 23)).to(tl.float32, bitcast=True)
    return tl.where(x > EXP_MAX, float("inf"), tl.where(x < EXP_MIN, 0.0, e))

@triton.jit
def apply(X, O, n, cap, WHICH: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B); x = tl.load(X + i, mask=i < n, other=1.0); one = full(x, 1.0)
    if WHICH == "exp": y = exp(x)
    elif WHICH == "sigmoid": y = tl.div_rn(one, 1.0 + exp(0.0 - x))
    elif WHICH == "silu": y = tl.div_rn(x, 1.0 + exp(0.0 - x))
    elif WHICH == "gelu": y = tl.div_rn(x, 1.0 + exp(0.0 - (x + ((x * x) * x) * CUBE) * GSCALE))
    elif WHICH == "softplus":
        u = exp(0.0 - tl.abs(x)); s = tl.div_rn(u, 2.0 + u); z = s * s
        q = tl.fma(full(x, L5), z, full(x, L4)); q = tl.fma(q, z, full(x, L3)); q = tl.fma(q, z, full(x, L2)); q = tl.fma(q, z, full(x, L1))
        y = tl.maximum(x, 0.0) + tl.fma(s * z, q, s + s)
    elif WHICH == "softcap":
        k = tl.full(x.shape, 0.0, tl.float32) + cap; z = tl.div_rn(x, k)
        y = k * (1.0 - tl.div_rn(full(x, 2.0), 1.0 + exp(z + z)))
    else: y = tl.div_rn(one, tl.sqrt_rn(x))
    tl.store(O + i, y, mask=i < n)

@triton.jit
def angles(POS, STEPS, COS, SIN, H: tl.constexpr, HB: tl.constexpr):
    """row: cos and sin of pos * step turns; the phase wraps in 64 bits"""
    w = tl.program_id(0); i = tl.arange(0, HB); ok = i < H
    phase = tl.load(POS + w) * tl.load(STEPS + i, mask=ok, other=0)
    turn = ((phase + 2147483648) >> 32).to(tl.int32)
    quarter = ((turn + 536870912) >> 30) & 3
    x = (turn - (quarter << 30)).to(tl.float32) * TURN; z = x * x
    s = tl.fma(tl.fma(full(z, S7), z, full(z, S5)), z, full(z, S3)); sin = tl.fma(x * z, s, x)
    k = tl.fma(tl.fma(full(z, C8), z, full(z, C6)), z, full(z, C4)); cos = tl.fma(z * z, k, tl.fma(full(z, -0.5), z, full(z, 1.0)))
    odd = (quarter & 1) == 1; a = tl.where(odd, sin, cos); b = tl.where(odd, cos, sin)
    tl.store(COS + w * H + i, tl.where((quarter == 1) | (quarter == 2), 0.0 - a, a), mask=ok)
    tl.store(SIN + w * H + i, tl.where((quarter == 2) | (quarter == 3), 0.0 - b, b), mask=ok)

@triton.jit
def rotate(X, COS, SIN, O, D, NH: tl.constexpr, HB: tl.constexpr, NEOX: tl.constexpr):
    """one head of one row; NH pairs"""
    w = tl.program_id(0); h = tl.program_id(1); i = tl.arange(0, HB); ok = i < NH
    p = (w * tl.num_programs(1) + h) * D + (i if NEOX else 2 * i); q = p + (NH if NEOX else 1)
    a = tl.load(X + p, mask=ok); b = tl.load(X + q, mask=ok); co = tl.load(COS + w * NH + i, mask=ok); si = tl.load(SIN + w * NH + i, mask=ok)
    tl.store(O + p, a * co - b * si, mask=ok); tl.store(O + q, a * si + b * co, mask=ok)

@triton.jit
def fold(v, M: tl.constexpr, L: tl.constexpr):
    """[M, L] -> [M] by halves"""
    if L == 1: return tl.reshape(v, [M]) + 0.0               # -0.0 becomes +0.0
    else:
        a, b = tl.split(tl.permute(tl.reshape(v, [M, 2, L // 2]), [0, 2, 1]))
        return fold(a + b, M, L // 2)

@triton.jit
def norm(X, W, O, n, eps, L: tl.constexpr):
    r = tl.program_id(0); l = tl.arange(0, L)[None, :]; s = tl.zeros([1, L], tl.float32)
    for o in range(0, n, L):
        x = tl.load(X + r * n + o + l, mask=o + l < n, other=0.0); s = tl.fma(x, x, s)
    t = fold(s, 1, L)
    g = tl.div_rn(tl.full([1], 1.0, tl.float32), tl.sqrt_rn(tl.div_rn(t, tl.full([1], 0.0, tl.float32) + n.to(tl.float32)) + eps))
    for o in range(0, n, L):
        x = tl.load(X + r * n + o + l, mask=o + l < n, other=0.0)
        tl.store(O + r * n + o + l, (x * g[None, :]) * tl.load(W + o + l, mask=o + l < n, other=0.0), mask=o + l < n)

@triton.jit
def quantize(X, Q, A, D, BS):
    """one group of 256 activations"""
    b = tl.program_id(0); i = tl.arange(0, 8)[:, None] * 32 + tl.arange(0, 32)[None, :]; j = tl.arange(0, 8)
    x = tl.load(X + b * 256 + i); am = tl.max(tl.abs(x), 1); top = tl.max(am, 0) + tl.zeros([8], tl.float32)
    ok = top >= 7.888609052210118e-31; top = tl.where(ok, top, 1.0)
    a = tl.minimum(tl.div_rn(am * A_STEPSF, top).to(tl.int32) + 1, A_MAX)
    inv = tl.div_rn(tl.full([8], 127.0, tl.float32), top) * A_STEPSF
    t = x * tl.div_rn(inv, a.to(tl.float32))[:, None] + MAGIC
    q = tl.where(ok[:, None], t.to(tl.int32, bitcast=True) - MBITS, 0)
    tl.store(Q + b * 256 + i, q.to(tl.int8)); tl.store(A + b * 8 + j, tl.where(ok, a, 1)); tl.store(BS + b * 8 + j, tl.sum(q, 1))
    tl.store(D + b + 0 * j, tl.where(ok, tl.div_rn(top, tl.full([8], D_DIV, tl.float32)), 0.0))

@triton.jit
def attend(Q, K, V, O, POS, window, scale, NKV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    """one query head of one row: tiles of 64 absolute positions, combined in order; every sum in the written order"""
    w = tl.program_id(0); h = tl.program_id(1); kv = h // GROUP; pos = tl.load(POS + w)
    first = tl.where(window > 0, tl.maximum(pos - window + 1, 0), 0)
    t = tl.arange(0, 64); l32 = tl.arange(0, 32); e = tl.arange(0, D); qp = Q + (w * tl.num_programs(1) + h) * D
    m = tl.full([1], float("-inf"), tl.float32); l = tl.zeros([1], tl.float32); o = tl.zeros([D], tl.float32)
    for start in range(first // 64 * 64, pos + 1, 64):
        at = start + t; see = (at >= first) & (at <= pos); s = tl.zeros([64, 32], tl.float32)
        for d in tl.static_range(0, D, 32):
            k = tl.load(K + (at[:, None] * NKV + kv) * D + d + l32[None, :], mask=see[:, None], other=0.0).to(tl.float32)
            s = tl.fma(tl.broadcast_to(tl.load(qp + d + l32)[None, :], [64, 32]), k, s)
        s = tl.where(see, fold(s, 64, 32) * scale, float("-inf"))
        mt = tl.max(s, 0) + tl.zeros([1], tl.float32); p = tl.where(see, exp(s - mt), 0.0); lt = fold(tl.reshape(p, [1, 64]), 1, 64)
        ot = tl.zeros([D], tl.float32)
        for j in range(0, 64):
            pj = tl.sum(tl.where(t == j, p, 0.0), 0)         # one value and zeros: exact in any order
            if (start + j >= first) & (start + j <= pos):
                v = tl.load(V + ((start + j) * NKV + kv) * D + e).to(tl.float32); ot = tl.fma(pj + tl.zeros([D], tl.float32), v, ot)
        top = tl.maximum(m, mt); al = exp(m - top); be = exp(mt - top)
        l = l * al + lt * be; o = o * al + ot * be; m = top
    tl.store(O + (w * tl.num_programs(1) + h) * D + e, tl.div_rn(o + 0.0, l + tl.zeros([D], tl.float32)))

def main():
    import torch
    a = argparse.ArgumentParser(); a.add_argument("--small", action="store_true"); a.add_argument("--out", default="."); a = a.parse_args()
    dev, rng, rows, kw = ("cpu" if INTERPRET else "cuda"), np.random.default_rng(11), [], dict(enable_fp_fusion=False)
    T = lambda v: torch.from_numpy(np.ascontiguousarray(v)).to(dev)
    def compare(name, got, want):
        got = got.cpu().numpy(); bad = int((got.view(np.uint8).reshape(got.size, -1) != np.ascontiguousarray(want).view(np.uint8).reshape(got.size, -1)).any(-1).sum())
        rows.append(dict(arm=name, n=int(got.size), value=bad)); print(name, "values", got.size, "different", bad, flush=True)
    np.seterr(all="ignore")
    bits = np.arange(0, 2**32, 2999 if not a.small else 2999 * 400, dtype=np.uint64).astype(np.uint32).view(np.float32)
    n = 2**17 if not a.small else 500
    x = np.concatenate([bits[np.isfinite(bits)], rng.normal(size=n) * 1, rng.normal(size=n) * 20, np.float32([0, 88.72283, 88.7229, 89, -86.5, -86.6, 1e30, -1e30, 1e-40, -1e-40])]).astype(np.float32)
    for name in ("exp", "sigmoid", "silu", "gelu", "softplus", "rsqrt"):
        y = np.abs(x[x != 0]) if name == "rsqrt" else x; o = torch.full((len(y),), float("nan"), dtype=torch.float32, device=dev)
        apply[(triton.cdiv(len(y), 1024),)](T(y), o, len(y), 30.0, WHICH=name, B=1024, **kw); compare(name, o, getattr(el, name)(y))
    pos = np.concatenate([np.arange(5), [2**17 - 1, 10**6, 10**9, 2**31 - 1, 2**40 + 12345], rng.integers(0, 2**20, 20 if a.small else 4000)]).astype(np.int64)
    for theta, dim, scale in ((10000., 64, 1.), (1000000., 128, 1.), (500000., 128, 1.), (10000., 256, 8.)):
        steps = el.rope_steps(theta, dim, scale); H = dim // 2; co, si = (torch.full((len(pos), H), float("nan"), dtype=torch.float32, device=dev) for _ in "cs")
        angles[(len(pos),)](T(pos), T(steps.view(np.int64)), co, si, H=H, HB=triton.next_power_of_2(H), **kw); want = el.rope_angles(pos, steps)
        compare(f"rope cos theta={theta:.0f} dim={dim} scale={scale:.0f}", co, want[0]); compare(f"rope sin theta={theta:.0f} dim={dim} scale={scale:.0f}", si, want[1])
        try: import alphabook.arithmetic as ar
        except ImportError as e: print("no alphabook.arithmetic here:", e); continue
        v = rng.normal(size=(len(pos), 3, dim)).astype(np.float32)
        for style in ("norm", "neox"):
            o = torch.empty(v.shape, dtype=torch.float32, device=dev); rotate[(len(pos), 3)](T(v), co, si, o, dim, NH=H, HB=triton.next_power_of_2(H), NEOX=style == "neox", **kw)
            compare(f"rope apply {style} dim={dim}", o, ar.apply_rope(v, *want, style))
    try:
        import alphabook.arithmetic as ar
        from alphabook.blocks import quantize_acts
    except ImportError as e: print("no alphabook.arithmetic here:", e); ar = None
    if ar:
        for cap in (30.0, 50.0, 0.1):
            o = torch.full((len(x),), float("nan"), dtype=torch.float32, device=dev)
            apply[(triton.cdiv(len(x), 1024),)](T(x), o, len(x), cap, WHICH="softcap", B=1024, **kw); compare(f"softcap {cap}", o, ar.softcap(x, np.float32(cap)))
        for n in (576, 4096, 640, 130):
            v, w = rng.normal(size=(7, n)).astype(np.float32), rng.normal(size=n).astype(np.float32); o = torch.empty((7, n), dtype=torch.float32, device=dev)
            norm[(7,)](T(v), T(w), o, n, np.float32(1e-5).item(), L=el.n_lanes(n), **kw); compare(f"rms_norm {n}", o, ar.rms_norm(v, w, 1e-5))
        v = (rng.normal(size=(20 if a.small else 2000, 256)) * np.exp(rng.normal(size=(20 if a.small else 2000, 1)) * 20)).astype(np.float32); v[3] = 0; v[4, 5:] = 0; v[5, ::2] = .5; v[5, 1::2] = -127 / 128
        v[6] = rng.standard_t(1.5, 256); v[7:9] = 1; v[8, ::3] = -1; v[9] = np.linspace(-1, 1, 256); N = len(v)
        q, aa, d, bs = torch.empty((N, 256), dtype=torch.int8, device=dev), torch.empty((N, 8), dtype=torch.int32, device=dev), torch.empty(N, dtype=torch.float32, device=dev), torch.empty((N, 8), dtype=torch.int32, device=dev)
        quantize[(N,)](T(v), q, aa, d, bs, **kw); want = quantize_acts(v)
        for name, g, ww in (("q", q, want.q), ("a", aa, want.a), ("d", d, want.d), ("bs", bs, want.bs)): compare("activations " + name, g, np.asarray(ww).reshape(g.shape).astype(g.cpu().numpy().dtype))
        for D, nh, nkv, ctx in ((64, 4, 2, 200), (128, 4, 1, 300), (256, 2, 1, 150)):
            if a.small: ctx = 100; nh = nkv
            k, v = rng.normal(size=(ctx, nkv, D)).astype(np.float16), rng.normal(size=(ctx, nkv, D)).astype(np.float16); p = np.array([0, 1, 31, 63, 64, 65, ctx - 1] if not a.small else [0, 64, ctx - 1], np.int64)
            q = (rng.normal(size=(len(p), nh, D)) * 2).astype(np.float32); scale = np.float32(D**-.5)
            for window in (0, 50):
                o = torch.empty(q.shape, dtype=torch.float32, device=dev)
                attend[(len(p), nh)](T(q), T(k), T(v), o, T(p), window, scale.item(), NKV=nkv, GROUP=nh // nkv, D=D, **kw); compare(f"attention D={D} window={window}", o, ar.attention(q, k, v, p, window, scale))
    json.dump(rows, open(os.path.join(a.out, "math.json"), "w"), indent=1)
    print("total", sum(r["n"] for r in rows), "different", sum(r["value"] for r in rows), flush=True)

if __name__ == "__main__": main()
