"""The arithmetic contract's quantized product on a CPU: 16 rows in the 16 lanes of a vector, numba + LLVM vector intrinsics.

    python contract_vnni.py check     # bits against contract_reference.py
    python contract_vnni.py time      # GB/s against a plain read of the same bytes

With AVX-512 VNNI a product of four bytes per lane is one `vpdpbusd`.  Without it `--portable` computes the same integers
with AVX2's vpmaddubsw (for checking bits, not for speed).  Tile: 16 rows x 256 weights, scales in front, then the weights'
words transposed over the rows: one 64-byte vector holds 4 consecutive weights of 16 rows.  No byte is added to the file's.
"""
import os, sys
os.environ.setdefault("OMP_WAIT_POLICY", "passive"); os.environ.setdefault("GOMP_SPINCOUNT", "20000")
import argparse, functools, json, time
import numpy as np, numba as nb
import llvmlite.binding as llb
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import intrinsic, models, register_model
import contract_reference as ref
FEATURES = llb.get_host_cpu_features()
VNNI = FEATURES.get("avx512vnni", False) and FEATURES.get("avx512bw", False)
NEW = llb.llvm_version_info[0] >= 22                         # LLVM 22 types vpdpbusd by bytes, older ones by words
STRICT = dict(fastmath=False, boundscheck=False, error_model="numpy")

# ---------------------------------------------------------------- vectors as numba values
class Vec(types.Type):
    def __init__(self, elt, n): self.elt, self.n = elt, n; super().__init__(name=f"Vec({elt},{n})")

def lty(v): return ir.VectorType(ir.FloatType() if str(v.elt) == "float32" else ir.IntType(int(str(v.elt).lstrip("uint"))), v.n)

@register_model(Vec)
class VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe): super().__init__(dmm, fe, lty(fe))

B64, I16, F16 = Vec(types.int8, 64), Vec(types.int32, 16), Vec(types.float32, 16)
HALF16, BYTE16 = ir.VectorType(ir.HalfType(), 16), ir.VectorType(ir.IntType(8), 16)

def const(vt, c): return ir.Constant(lty(vt), [c] * vt.n)

def pointer(ctx, b, arrty, arr, off, lt):
    return b.bitcast(b.gep(ctx.make_array(arrty)(ctx, b, arr).data, [off]), ir.PointerType(lt))

def load(b, p, lt, align=1):
    l = b.load(p, typ=lt) if "typ" in ir.IRBuilder.load.__code__.co_varnames else b.load(p)
    l.align = align
    return l

def loader(vt, lt, convert=lambda b, v: v):
    "an intrinsic f(array, element offset) that loads an `lt` and converts it to `vt`"
    @intrinsic
    def f(tyctx, arr, off):
        def cg(ctx, b, sig, args): return convert(b, load(b, pointer(ctx, b, sig.args[0], args[0], args[1], lt), lt))
        return vt(arr, types.intp), cg
    return f

def splat(vt):
    def f(b, x):
        t = lty(vt); z = ir.Constant(t, ir.Undefined)
        return b.shuffle_vector(b.insert_element(z, x, ir.IntType(32)(0)), z, ir.Constant(ir.VectorType(ir.IntType(32), vt.n), [0] * vt.n))
    return f

ld_b, ld_i, ld_f = loader(B64, lty(B64)), loader(I16, lty(I16)), loader(F16, lty(F16))
ld_half = loader(F16, HALF16, lambda b, v: b.fpext(v, lty(F16)))
bc_i, bc_f = loader(I16, ir.IntType(32), splat(I16)), loader(F16, ir.FloatType(), splat(F16))

def storer(vt):
    @intrinsic
    def f(tyctx, arr, off, v):
        def cg(ctx, b, sig, args):
            s = b.store(args[2], pointer(ctx, b, sig.args[0], args[0], args[1], lty(vt))); s.align = 1
            return ctx.get_dummy_value()
        return types.void(arr, types.intp, vt), cg
    return f
st_i, st_f = storer(I16), storer(F16)

def op(rt, vts, f):
    "an intrinsic of vectors from an IR-building function"
    n = len(vts)
    def cg(ctx, b, sig, args): return f(b, *args)
    if n == 0:
        @intrinsic
        def g(tyctx): return rt(), cg
    elif n == 1:
        @intrinsic
        def g(tyctx, x): return rt(vts[0]), cg
    elif n == 2:
        @intrinsic
        def g(tyctx, x, y): return rt(vts[0], vts[1]), cg
    else:
        @intrinsic
        def g(tyctx, x, y, z): return rt(vts[0], vts[1], vts[2]), cg
    return g

def call(b, name, rt, args): return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(rt, [a.type for a in args]), name), list(args))

def bits(shift, mask, vt=I16):
    "(v >> shift) & mask, shift < 0: to the left"
    def f(b, v):
        if shift > 0: v = b.lshr(v, const(vt, shift))
        if shift < 0: v = b.shl(v, const(vt, -shift))
        return b.and_(v, const(vt, mask))
    return op(vt, [vt], f)

iadd, isub, imul, ior = (op(I16, [I16, I16], lambda b, x, y, n=n: getattr(b, n)(x, y)) for n in ("add", "sub", "mul", "or_"))
fadd, fsub, fmul = (op(F16, [F16, F16], lambda b, x, y, n=n: getattr(b, n)(x, y)) for n in ("fadd", "fsub", "fmul"))
fma = op(F16, [F16] * 3, lambda b, *a: call(b, "llvm.fma.v16f32", lty(F16), a))
i2f = op(F16, [I16], lambda b, v: b.sitofp(v, lty(F16)))
izero, fzero = op(I16, [], lambda b: const(I16, 0)), op(F16, [], lambda b: const(F16, 0.0))
lo4, hi4 = bits(0, 0x0f0f0f0f), bits(4, 0x0f0f0f0f)
scale6, hi6a, hi6b = bits(0, 0x3f3f3f3f), bits(2, 0x30303030), bits(4, 0x0f0f0f0f)       # Q4_K's packed 6-bit scales
byte0, byte1, byte2, byte3 = (bits(8 * k, 255) for k in range(4))
sbyte0, sbyte1, sbyte2, sbyte3 = (op(I16, [I16], lambda b, v, k=k: b.ashr(b.shl(v, const(I16, 24 - 8 * k)), const(I16, 24))) for k in range(4))
two0, two1, two2, two3 = (bits(2 * k - 4, 0x30303030) for k in range(4))                  # Q6_K's two high bits, to bits 4 and 5
one = [bits(j - 4, 0x10101010) for j in range(8)]                                         # Q5_0's high bit, to bit 4
one0, one1, one2, one3, one4, one5, one6, one7 = one

def maddubs(b, u, s):
    "u8 x s8 -> i32 per lane by AVX2, u <= 127 (else 16-bit saturation)"
    i32 = ir.IntType(32); halves = []
    for h in range(2):
        cut = ir.Constant(ir.VectorType(i32, 32), list(range(32 * h, 32 * h + 32)))
        x, y = (b.shuffle_vector(v, ir.Constant(lty(B64), ir.Undefined), cut) for v in (u, s))
        t16 = ir.VectorType(ir.IntType(16), 16)
        m = call(b, "llvm.x86.avx2.pmadd.ub.sw", t16, [x, y])
        halves.append(call(b, "llvm.x86.avx2.pmadd.wd", ir.VectorType(i32, 8), [m, ir.Constant(t16, [1] * 16)]))
    return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(i32, 16), list(range(16))))

def make_dot(portable):
    "acc + four u8 * s8 per lane"
    def vnni(b, acc, u, s):
        bt = lty(B64) if NEW else lty(I16)
        return call(b, "llvm.x86.avx512.vpdpbusd.512", lty(I16), [acc, b.bitcast(u, bt), b.bitcast(s, bt)])
    def plain(b, acc, u, s):
        u, s = b.bitcast(u, lty(B64)), b.bitcast(s, lty(B64))
        low = maddubs(b, b.and_(u, const(B64, 127)), s)
        high = maddubs(b, b.lshr(u, const(B64, 7)), s)
        return b.add(acc, b.add(low, b.shl(high, const(I16, 7))))
    return op(I16, [I16] * 3, plain if portable else vnni)

@intrinsic
def prefetch(tyctx, arr, off):
    def cg(ctx, b, sig, args):
        p8, i = ir.PointerType(ir.IntType(8)), ir.IntType(32); p = pointer(ctx, b, sig.args[0], args[0], args[1], ir.IntType(8))
        b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), [p8, i, i, i]), "llvm.prefetch.p0" if NEW else "llvm.prefetch.p0i8"), [p, i(0), i(1), i(1)])
        return ctx.get_dummy_value()
    return types.void(arr, types.intp), cg

# ---------------------------------------------------------------- layout
def aligned(n, dtype=np.uint8, data=None):
    "zeros (or a copy) that start at a multiple of 64 bytes: vectors must not straddle cache lines"
    size = n * np.dtype(dtype).itemsize; raw = np.zeros(size + 64, np.uint8); o = -raw.ctypes.data % 64
    out = raw[o:o + size].view(dtype)
    if data is not None: out[:] = data.reshape(-1)
    return out

SIZE = {k: 16 * v for k, v in ref.BYTES.items()}                                          # bytes of a tile
HEAD = dict(Q4_K=256, Q6_K=288, Q8_0=256, Q5_0=256, Q4_1=512)                             # of which scales
OFFSET = dict(Q4_K=0, Q6_K=32, Q8_0=128, Q5_0=16, Q4_1=0)                                 # added to q to make it unsigned

def pack(w):
    "a matrix of contract_reference -> uint8 tiles [row groups, NB, SIZE]; rows padded with zero blocks to 16"
    kind = w["kind"]; R, NB = w["q"].shape[:2]; G = -(-R // 16)
    def rows(v): return np.concatenate([v, np.zeros((G * 16 - R, *v.shape[1:]), v.dtype)]).reshape(G, 16, *v.shape[1:]).swapaxes(1, 2)
    def vectors(v):                                          # [G, NB, 16, ..., 4n] bytes -> n transposed vectors
        v = np.ascontiguousarray(v).reshape(G, NB, 16, -1).view(np.uint32)
        return np.ascontiguousarray(v.swapaxes(2, 3)).view(np.uint8).reshape(G, NB, -1)
    def halves(v): return np.ascontiguousarray(np.moveaxis(rows(v.astype(np.float16)), 2, -1)).view(np.uint8).reshape(G, NB, -1)
    u = (rows(w["q"]) + OFFSET[kind]).astype(np.uint8)                                    # [G, NB, 16, 8, 32]
    if kind == "Q8_0": return np.concatenate([halves(w["d"]), vectors(u)], -1)
    nib = vectors((u[..., 0::2, :] & 15) | (u[..., 1::2, :] & 15) << 4)
    if kind == "Q4_K":
        s, m = rows(w["sc"]).astype(np.uint8), rows(w["mn"]).astype(np.uint8)             # [G, NB, 16, 8]
        p = np.concatenate([s[..., :4] | s[..., 4:] >> 4 << 6, m[..., :4] | m[..., 4:] >> 4 << 6, s[..., 4:] & 15 | (m[..., 4:] & 15) << 4], -1)
        return np.concatenate([halves(w["d"]), halves(w["m"]), vectors(p), nib], -1)
    if kind == "Q6_K":
        h = sum((u[..., i::4, :] >> 4) << (2 * i) for i in range(4)).astype(np.uint8)
        return np.concatenate([halves(w["d"]), vectors(rows(w["sc"]).astype(np.int8)), nib, vectors(h)], -1)
    if kind == "Q5_0": return np.concatenate([halves(w["d"]), nib, vectors(sum((u[..., j, :] >> 4) << j for j in range(8)).astype(np.uint8))], -1)
    return np.concatenate([halves(w["d"]), halves(w["m"]), nib], -1)

def pack_acts(x, kind):
    "superblock-major, columns inside: words [NB, W, 64], scales, a*bs, start values of the accumulators, d [NB, W]"
    T = lambda v, t: aligned(v.size, t, np.ascontiguousarray(np.swapaxes(v, 0, 1)))
    W, NB = x["q"].shape[:2]; q = x["q"].astype(np.int32); g = 16 if kind == "Q6_K" else 32
    start = -OFFSET[kind] * q.reshape(W, NB, 256 // g, g).sum(-1); ab = x["a"] * q.sum(-1)
    f = np.int32 if kind in ref.SUPER else np.float32
    words = T(np.ascontiguousarray(x["q"]).view(np.int32), np.int32)
    return words, T(x["a"], f), T(ab, f), T(start, np.int32), np.ascontiguousarray(x["d"].T.astype(np.float32))

# ---------------------------------------------------------------- the kernel, written out per type
def body(kind, order, single):
    "source lines for one tile: per pair of sub-blocks unpack 16 vectors, then run over the columns"
    L = []; A = L.append; H = HEAD[kind]
    for q in range(SIZE[kind] // 64): A(f"prefetch(w, o + far + {q * 64})")
    if kind == "Q4_K":
        A("dd = ld_half(w, o); dm = ld_half(w, o + 32); w0 = ld_iw(w, o + 64); w1 = ld_iw(w, o + 128); w2 = ld_iw(w, o + 192)")
        A("s0 = scale6(w0); s1 = ior(lo4(w2), hi6a(w0)); m0 = scale6(w1); m1 = ior(hi6b(w2), hi6a(w1))")
    if kind == "Q6_K": A("dd = ld_half(w, o); " + "; ".join(f"s{k} = ld_iw(w, o + {32 + 64 * k})" for k in range(4)))
    for p in range(4):
        for i in range(8):
            v = f"v = ld_iw(w, o + {H + (p * 8 + i) * 64})"
            if kind == "Q8_0": A(f"a{i} = ld_iw(w, o + {H + (p * 16 + i) * 64}); c{i} = ld_iw(w, o + {H + (p * 16 + 8 + i) * 64})")
            elif kind == "Q6_K":
                A(f"{v}; h = ld_iw(w, o + {H + 2048 + (p // 2 * 8 + i) * 64}); a{i} = ior(lo4(v), two{2 * (p % 2)}(h)); c{i} = ior(hi4(v), two{2 * (p % 2) + 1}(h))")
            elif kind == "Q5_0": A(f"{v}; h = ld_iw(w, o + {H + 2048 + i * 64}); a{i} = ior(lo4(v), one{2 * p}(h)); c{i} = ior(hi4(v), one{2 * p + 1}(h))")
            else: A(f"{v}; a{i} = lo4(v); c{i} = hi4(v)")
        j = 2 * p; I = ""
        if kind == "Q4_K": A(f"e0 = byte{j % 4}(s{j // 4}); e1 = byte{j % 4 + 1}(s{j // 4}); f0 = byte{j % 4}(m{j // 4}); f1 = byte{j % 4 + 1}(m{j // 4})")
        elif kind == "Q6_K": A("; ".join(f"e{k} = sbyte{k}(s{p})" for k in range(4)))
        else:
            A(f"e0 = ld_half(w, o + {j * 32}); e1 = ld_half(w, o + {j * 32 + 32})")
            if kind == "Q4_1": A(f"f0 = ld_half(w, o + {256 + j * 32}); f1 = ld_half(w, o + {288 + j * 32})")
        if single: A("c = 0; k = b")
        else: A("for c in range(W):"); I = "    "; A(I + "k = b * W + c")
        at = f"k * 8 + {j}"; st = f"k * 16 + {2 * j}" if kind == "Q6_K" else at
        x = lambda n: f"bc_i(x, k * 64 + {n})"
        zero = OFFSET[kind] == 0
        n = 4 if kind == "Q6_K" else 2
        A(I + "; ".join(f"l{i} = " + ("izero()" if zero else f"bc_i(xo, {st} + {i})") for i in range(n)))
        for i in range(8):
            if n == 4: A(I + f"l{i // 4} = dot(l{i // 4}, a{i}, {x(j * 8 + i)}); l{2 + i // 4} = dot(l{2 + i // 4}, c{i}, {x(j * 8 + 8 + i)})")
            else: A(I + f"l0 = dot(l0, a{i}, {x(j * 8 + i)}); l1 = dot(l1, c{i}, {x(j * 8 + 8 + i)})")
        last = p == 3
        if kind in ref.SUPER:
            if n == 4: A(I + f"S = iadd(imul(iadd(imul(l0, e0), imul(l1, e1)), bc_i(xa, {at})), imul(iadd(imul(l2, e2), imul(l3, e3)), bc_i(xa, {at} + 1)))")
            else: A(I + f"S = iadd(imul(l0, imul(e0, bc_i(xa, {at}))), imul(l1, imul(e1, bc_i(xa, {at} + 1)))); M = iadd(imul(f0, bc_i(xm, {at})), imul(f1, bc_i(xm, {at} + 1)))")
            # two integer sums, T and N: the products and the minima, or without minima the two halves of the superblock
            for name, term, place, first, now in (("T", "S", 0, 0, True), ("N", "M", 16, 0, True)) if kind == "Q4_K" else (("T", "S", 0, 0, p < 2), ("N", "S", 16, 2, p >= 2)):
                at_ib = f"zi + c * 32 + {place}"; before = name if single else f"ld_i(ib, {at_ib})"
                if now: A(I + f"{name} = " + (f"iadd({before}, {term})" if p > first else term))
                elif last and not single: A(I + f"{name} = {before}")
                if now and not last and not single: A(I + f"st_i(ib, {at_ib}, {name})")
            if last and kind == "Q4_K": A(I + "f = fmul(fsub(fmul(dd, i2f(T)), fmul(dm, i2f(N))), bc_f(xd, k))")
            elif last: A(I + "f = fmul(fmul(dd, fadd(i2f(T), i2f(N))), bc_f(xd, k))")
        else:
            if not single and p: A(I + "t = ld_f(tb, zt + c * 16)")
            if p == 0: A(I + "t = fzero()")
            for i in range(2):
                step = "fadd(fmul({}, {}), t)" if order == "muladd" else "fma({}, {}, t)"
                A(I + "t = " + step.format(f"e{i}", f"fmul(i2f(l{i}), bc_f(xa, {at} + {i}))"))
                if kind == "Q4_1": A(I + "t = " + step.format(f"f{i}", f"bc_f(xm, {at} + {i})"))
            if not single and not last: A(I + "st_f(tb, zt + c * 16, t)")
            if last: A(I + "f = fmul(t, bc_f(xd, k))")
        if last:
            if order != "lanes8":
                if single: A("y = fadd(y, f)")
                else: A(I + "q = z + c * 128; st_f(buf, q, fadd(ld_f(buf, q), f))")
            else: A(I + "q = z + c * 128 + (b & 7) * 16; st_f(buf, q, fadd(ld_f(buf, q), f))")
    return L

@functools.lru_cache(None)
def build(kind, order, single, portable=False, show=False):
    "a function (w, words, scales, a*bs, start, d, out, buf, tb, ib, threads, prefetch distance): out[W, 16 G] = the product"
    tab = " " * 16; lanes = order == "lanes8"
    first = "y = fzero()" if single and not lanes else f"for c in range(W):\n                for q in range({8 if lanes else 1}): st_f(buf, z + c * 128 + q * 16, fzero())"
    fin = ["st_f(out, g * 16, y)"] if single and not lanes else ["for c in range(W):", "    q = z + c * 128"]
    if lanes:
        fin += ["    " + "; ".join(f"b{i} = ld_f(buf, q + {16 * i})" for i in range(8)),
                "    b0 = fadd(b0, b4); b1 = fadd(b1, b5); b2 = fadd(b2, b6); b3 = fadd(b3, b7)", "    st_f(out, c * R + g * 16, fadd(fadd(b0, b2), fadd(b1, b3)))"]
    elif not single: fin += ["    st_f(out, c * R + g * 16, ld_f(buf, q))"]
    src = f"""
@nb.njit(parallel=True, **STRICT)
def gemv(w, x, xa, xm, xo, xd, out, buf, tb, ib, nt, far):
    R = out.shape[1]; n, W = xd.shape; G = R // 16
    for t_ in nb.prange(nt):
        z = t_ * W * 128; zi = t_ * W * 32; zt = t_ * W * 16
        for g in range(G * t_ // nt, G * (t_ + 1) // nt):
            o = g * n * {SIZE[kind]}
            {first}
            for b in range(n):
""" + "\n".join(tab + l for l in body(kind, order, single)) + f"\n                o += {SIZE[kind]}\n" + "\n".join(" " * 12 + l for l in fin)
    if show: print(src)
    ns = dict(globals(), dot=make_dot(portable), ld_iw=loader(I16, lty(I16)))
    exec(src, ns)
    return ns["gemv"]

def runner(kind, order, W, threads, distance=1024, portable=False):
    f = build(kind, order, W == 1, portable)
    buf, tb, ib = aligned(threads * W * 128, np.float32), aligned(threads * W * 16, np.float32), aligned(threads * W * 32, np.int32)
    def run(w, acts, out): nb.set_num_threads(threads); f(w, *acts, out, buf, tb, ib, threads, distance)
    return run

@nb.njit(parallel=True, **STRICT)
def read(w, out, n, nt):
    "the control: the int32 sum of the same bytes, eight vectors at a time"
    for t in nb.prange(nt):
        a = izero(); b = izero(); c = izero(); d = izero()
        for i in range(n // 512 * t // nt, n // 512 * (t + 1) // nt):
            o = i * 512
            for k in range(8): prefetch(w, o + 1024 + 64 * k)
            a = iadd(a, iadd(ld_i8(w, o), ld_i8(w, o + 256))); b = iadd(b, iadd(ld_i8(w, o + 64), ld_i8(w, o + 320)))
            c = iadd(c, iadd(ld_i8(w, o + 128), ld_i8(w, o + 384))); d = iadd(d, iadd(ld_i8(w, o + 192), ld_i8(w, o + 448)))
        st_i(out, t * 16, iadd(iadd(a, b), iadd(c, d)))
ld_i8 = loader(I16, lty(I16))

# ---------------------------------------------------------------- check
def check(kinds, portable, widths, orders="sequential"):
    rng = np.random.default_rng(3); n = bad = 0
    for kind in kinds:
        runs = {}
        for K in ((768, 4352) if kind in ref.SUPER else (32, 608, 4192)):
            for extreme in (False, True):
                R = 37; m = ref.random_matrix(kind, R, K, rng, extreme); x = ref.random_acts(max(widths), K, rng, extreme)
                w = pack(m); G = w.shape[0]; w = aligned(w.size + 8192, data=np.concatenate([w.reshape(-1), np.zeros(8192, np.uint8)]))
                for W in widths:
                    xx = {k: v[:W] for k, v in x.items()}; acts = pack_acts(xx, kind)
                    for order in ref.orders(kind, orders):
                        want = np.ascontiguousarray(ref.product(m, xx, order)).view(np.int32)
                        for threads in (1, min(2, nb.config.NUMBA_NUM_THREADS)):
                            if (order, W, threads) not in runs: runs[order, W, threads] = runner(kind, order, W, threads, portable=portable)
                            out = np.full((W, 16 * G), np.nan, np.float32); runs[order, W, threads](w, acts, out)
                            d = int((out[:, :R].view(np.int32) != want).sum()); n += W * R; bad += d
                            if d: print("DIFFERENT", kind, R, K, W, order, threads, extreme, d, "of", W * R, flush=True)
        print(kind, "checked, so far", n, "values,", bad, "different", flush=True)
    return n, bad

# ---------------------------------------------------------------- time
def timed(f, n, seconds=.12, least=9):
    "median and spread (quartiles) of microseconds of f(i), i rotating over n matrices"
    f(0); f(min(1, n - 1)); ts = []; t0 = time.perf_counter(); i = 2
    while len(ts) < least or time.perf_counter() - t0 < seconds:
        t = time.perf_counter(); f(i % n); ts.append((time.perf_counter() - t) * 1e6); i += 1
        if time.perf_counter() - t0 > 4 * seconds and len(ts) >= 3: break
    q = np.percentile(ts, [25, 50, 75]); return float(q[1]), float(q[2] - q[0]), len(ts)

def time_all(kinds, shapes, widths, threads, total, deadline, log, orders="sequential"):
    rng = np.random.default_rng(5); t0 = time.time()
    pool = aligned(total + 8192); pool.view(np.uint64)[:] = rng.integers(0, 2**63, (total + 8192) // 8, dtype=np.uint64)
    for kind in kinds:
        for N, K in shapes:
            size = (N // 16) * (K // 256) * SIZE[kind]; n = max(1, total // size); size64 = -(-size // 64) * 64; assert size == size64
            tiles = pool[:n * size].reshape(-1, SIZE[kind])
            # valid half-precision scales: random bytes would hold infinities
            h = (rng.normal(size=1024) * 2e-3).astype(np.float16).view(np.uint8)
            span = dict(Q4_K=64, Q6_K=32, Q8_0=256, Q5_0=256, Q4_1=512)[kind]
            tiles[:, :span] = h[:span]
            for nt in threads:
                for W in [0] + widths:
                    if time.time() - t0 > deadline: print("deadline: not run", kind, N, K, nt, W, flush=True); continue
                    if W == 0:
                        out = np.zeros(nt * 16, np.int32)
                        views = [pool[i * size:(i + 1) * size + 8192] for i in range(n)]
                        nb.set_num_threads(nt); us, sp, c = timed(lambda i: read(views[i], out, size, nt), n)
                        log(dict(quantization=kind, shape=[N, K], threads=nt, width=0, arm="read", us=round(us, 1), gbs=round(size / us / 1e3, 2), spread=round(sp, 1), n=c)); continue
                    x = ref.random_acts(W, K, rng); acts = pack_acts(x, kind); out = aligned(W * N, np.float32).reshape(W, N)
                    for distance in ((1024, 4608) if W <= 2 else (4608,)):
                        runs = {o: runner(kind, o, W, nt, distance) for o in ref.orders(kind, orders)}
                        for o in list(runs) * 2:                                        # interleaved, twice
                            us, sp, c = timed(lambda i: runs[o](views[i], acts, out), n)
                            log(dict(quantization=kind, shape=[N, K], threads=nt, width=W, arm=o, prefetch=distance, us=round(us, 1), gbs=round(size / us / 1e3, 2), spread=round(sp, 1), n=c))

def main():
    p = argparse.ArgumentParser(); p.add_argument("what", choices=["check", "time", "both"]); p.add_argument("--kinds", default=",".join(ref.TYPES)); p.add_argument("--portable", action="store_true")
    p.add_argument("--check-widths", default="1,2,8,16,64"); p.add_argument("--orders", default="sequential", help="comma-separated, or all"); p.add_argument("--threads", default="1,4"); p.add_argument("--widths", default="1,8,16"); p.add_argument("--shapes", default="4096x4096,2048x2048")
    p.add_argument("--total", type=int, default=640_000_000); p.add_argument("--deadline", type=float, default=100); p.add_argument("--out", default=".")
    a = p.parse_args(); kinds = a.kinds.split(",")
    if not VNNI and not a.portable:
        print(f"This CPU ({llb.get_host_cpu_name()}) has no AVX-512 VNNI; add --portable to check the bits through AVX2.", file=sys.stderr); return 2
    if a.portable and not FEATURES.get("avx2", False): print("--portable needs AVX2", file=sys.stderr); return 2
    if a.what != "time":
        n, bad = check(kinds, a.portable, list(map(int, a.check_widths.split(","))), a.orders)
        if a.what == "check" or bad: return 1 if bad else 0
    if a.portable: print("--portable is for checking bits; it is not timed", file=sys.stderr); return 2
    f = open(os.path.join(a.out, "vnni.jsonl"), "w")
    def log(r): f.write(json.dumps(r) + "\n"); f.flush(); print(r["quantization"], "x".join(map(str, r["shape"])), "threads", r["threads"], "W", r["width"], r["arm"], r.get("prefetch", ""), r["us"], "us", r["gbs"], "GB/s", flush=True)
    print(llb.get_host_cpu_name(), "numba", nb.__version__, "layer", end=" "); read(np.zeros(16384, np.uint8), np.zeros(64, np.int32), 512, 1); print(nb.threading_layer(), flush=True)
    time_all(kinds, [tuple(map(int, s.split("x"))) for s in a.shapes.split(",")], list(map(int, a.widths.split(","))), list(map(int, a.threads.split(","))), a.total, a.deadline, log, a.orders)
    return 0

if __name__ == "__main__": sys.exit(main())
