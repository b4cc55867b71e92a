"""Record what transformers and llama.cpp compute on the same small model, converted by llama.cpp's own script.

    python tests/golden/record_hf.py convert FAMILY WORK --llama.cpp SOURCE       (needs transformers, torch)
    python tests/golden/record_hf.py llama.cpp FAMILY WORK                        (needs llama-cpp-python)
    python tests/golden/record_hf.py pack FAMILY WORK                             (needs neither)

SOURCE is a llama.cpp source tree (its convert_hf_to_gguf.py runs as it is, but for the tokenizer's name, which it finds
by a hash that only published vocabularies have). `pack` leaves tests/golden/models/FAMILY.gguf.xz, the converter's F16
file, and FAMILY.npz beside it: `ids`; `hf`, `hf_mtp`: transformers' logits; `llama`, `llama_mtp`: llama.cpp's from the
same weights as F32 (float32 KV, flash attention off, one batch); `route` (layers, n, used) and `mtp_route`: the experts
chosen, best first; `sha256` of the GGUF file. MTP rows t = 0 … n − 2 see the final hidden state at t and token t + 1.
"""
import argparse, ctypes, hashlib, json, lzma, runpy, sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
XZ = [{'id': lzma.FILTER_LZMA2, 'preset': 4, 'dict_size': 1 << 26}]     # whole rows repeat: a large dictionary pays


def convert(family, work, source):
    "Make the checkpoint, compute with transformers, and run llama.cpp's converter on it."
    import hf_models
    folder = work / 'hf'
    folder.mkdir(parents=True, exist_ok=True)
    hf_models.main(family, folder)
    for outtype in ('f16', 'f32'): run_converter(family, folder, work / f'model-{outtype}.gguf', source, outtype)


def run_converter(family, folder, out, source, outtype, *options):
    "convert_hf_to_gguf.py in a process of its own (it keeps its options in classes)."
    import multiprocessing
    args = (family, folder, out, source, outtype, *options)
    p = multiprocessing.get_context('spawn').Process(target=converter, args=args)
    p.start()
    p.join()
    if p.exitcode: sys.exit(f'{family}: the converter failed')


def converter(family, folder, out, source, outtype, *options):
    "convert_hf_to_gguf.py, told the pre-tokenizer's name, and (qwen4exp) to read config.json as published."
    import hf_models
    sys.path.insert(0, str(source))
    sys.path.insert(1, str(source / 'gguf-py'))
    from conversion import base
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: hf_models.FAMILIES[family][2]
    if family == 'qwen4exp':                                       # transformers renames its attention layers
        read = lambda folder, _: json.loads((Path(folder) / 'config.json').read_text())
        base.ModelBase.load_hparams = staticmethod(read)
    sys.argv = ['convert_hf_to_gguf.py', str(folder), '--outfile', str(out), '--outtype', outtype, *options]
    runpy.run_path(str(source / 'convert_hf_to_gguf.py'), run_name='__main__')


class Tensor(ctypes.Structure):
    "The head of ggml's struct ggml_tensor."
    _fields_ = [('type', ctypes.c_int), ('buffer', ctypes.c_void_p), ('ne', ctypes.c_int64 * 4),
                ('nb', ctypes.c_size_t * 4), ('op', ctypes.c_int), ('op_params', ctypes.c_int32 * 16),
                ('flags', ctypes.c_int32),
                ('src', ctypes.c_void_p * 10), ('view_src', ctypes.c_void_p), ('view_offs', ctypes.c_size_t),
                ('data', ctypes.c_void_p), ('name', ctypes.c_char * 64)]


def values(t):
    "A two-dimensional tensor of 32-bit numbers, rows first."
    dtype = {0: np.float32, 26: np.int32}[t.type]
    raw = (ctypes.c_char * (t.nb[1] * (t.ne[1] - 1) + 4 * t.ne[0])).from_address(t.data)
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, dtype), (t.ne[1], t.ne[0]), (t.nb[1], t.nb[0])).copy()


class LlamaCpp:
    "A GGUF file in llama.cpp: ids in, logits, experts and MTP logits out."
    def __init__(self, path, threads=2, n_ctx=512, f32=True):
        import llama_cpp as ll
        self.ll, self.n_ctx, self.threads, self.f32, self.chosen = ll, n_ctx, threads, f32, {}
        self.log = []
        self.on_log = ll.llama_log_callback(lambda level, text, data: self.log.append(text.decode(errors='replace')))
        ll.llama_log_set(self.on_log, ctypes.c_void_p(0))
        ll.llama_backend_init()
        mp = ll.llama_model_default_params()
        mp.n_gpu_layers, mp.load_mtp = 0, True
        self.model = ll.llama_model_load_from_file(str(path).encode(), mp)
        if not self.model: sys.exit(f'{path}: llama.cpp cannot load it: ' + ''.join(self.log)[-800:])
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.n_embd = ll.llama_model_n_embd(self.model)
        self.lib = ctypes.CDLL(str(next((Path(ll.__file__).parent / 'lib').glob('libllama.*'))))

    def context(self, kind=0):
        cp = self.ll.llama_context_default_params()
        cp.n_ctx = cp.n_batch = cp.n_ubatch = self.n_ctx
        cp.n_threads = cp.n_threads_batch = self.threads
        if self.f32: cp.type_k, cp.type_v, cp.flash_attn_type = self.ll.GGML_TYPE_F32, self.ll.GGML_TYPE_F32, 0
        cp.ctx_type = kind
        self.on_eval = self.ll.ggml_backend_sched_eval_callback(self.see)
        cp.cb_eval = self.on_eval
        ctx = self.ll.llama_init_from_model(self.model, cp)
        if not ctx: sys.exit('llama.cpp makes no context: ' + ''.join(self.log)[-800:])
        return ctx

    def see(self, pointer, ask, data):
        "Called with each tensor of the graph: keep the experts that were chosen."
        t = ctypes.cast(pointer, ctypes.POINTER(Tensor)).contents
        name = t.name.decode(errors='replace')
        wanted = name.startswith('ffn_moe_topk-')
        if wanted and not ask: self.chosen[int(name.rpartition('-')[2])] = values(t)
        return wanted or not ask

    def decode(self, ctx, batch, n):
        if self.ll.llama_decode(ctx, batch) != 0: sys.exit('llama_decode failed: ' + ''.join(self.log)[-800:])
        return np.ctypeslib.as_array(self.ll.llama_get_logits(ctx), shape=(n, self.n_vocab)).copy()

    def batch(self, ids, hidden=None):
        batch = self.ll.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        return batch

    def nextn(self, name, result, *args):
        "A function of llama.cpp's staging interface (src/llama-ext.h), which is C++."
        f = getattr(self.lib, name)
        f.restype = result
        return f(*args)

    def run(self, ids, mtp=False, hidden=False):
        "{logits, route, hidden (n, n_embd), mtp (n - 1, n_vocab), mtp_route}"
        ctx, n = self.context(), len(ids)
        pointer = ctypes.c_void_p(ctx)
        if mtp or hidden:
            on, masked = ctypes.c_bool(True), ctypes.c_bool(False)
            self.nextn('_Z26llama_set_embeddings_nextnP13llama_contextbb', None, pointer, on, masked)
        out = {'logits': self.decode(ctx, self.batch(ids), n)}
        if self.chosen: out['route'] = np.stack([self.chosen[k] for k in sorted(self.chosen)])
        if mtp or hidden:
            p = self.nextn('_Z26llama_get_embeddings_nextnP13llama_context', ctypes.POINTER(ctypes.c_float), pointer)
            out['hidden'] = np.ctypeslib.as_array(p, shape=(n, self.n_embd)).copy()
        if mtp: out['mtp'], out['mtp_route'] = self.draft(ids[1:], out['hidden'][:-1])
        self.ll.llama_free(ctx)
        return out

    def draft(self, ids, hidden):
        "Logits of the MTP block for pairs of a hidden state and the token after it, at positions 0, 1, …"
        ctx, n = self.context(kind=1), len(ids)
        self.chosen.clear()

        class Embd(ctypes.Structure):
            _fields_ = [('data', ctypes.c_void_p), ('n_rows', ctypes.c_size_t), ('n_embd', ctypes.c_size_t)]
        lib, pointer = self.lib, ctypes.c_void_p(ctx)
        lib.llama_batch_ext_init.restype = ctypes.c_void_p
        b = ctypes.c_void_p(lib.llama_batch_ext_init(pointer))
        hidden = np.ascontiguousarray(hidden, np.float32)
        for i, token in enumerate(ids):
            k = lib.llama_batch_ext_add_token(b, ctypes.c_int32(0), ctypes.c_int32(token))
            positions = (ctypes.c_int32 * 4)(i, i, i, 0)
            lib.llama_batch_ext_set_pos(b, ctypes.c_int32(k), positions)
            lib.llama_batch_ext_set_output_logits(b, ctypes.c_int32(k), ctypes.c_bool(True))
            lib.llama_batch_ext_set_embd_token(b, ctypes.c_int32(k), Embd(hidden[i].ctypes.data, 1, self.n_embd))
        if lib.llama_process(pointer, ctypes.c_int(1), b):
            sys.exit('MTP: llama_process failed: ' + ''.join(self.log)[-800:])
        logits = np.ctypeslib.as_array(self.ll.llama_get_logits(ctx), shape=(n, self.n_vocab)).copy()
        route = next(iter(self.chosen.values()), np.zeros((0, 0), np.int32))
        self.ll.llama_free(ctx)
        return logits, route


def llama_cpp(family, work):
    "Compute with llama.cpp and compare with transformers."
    hf = np.load(work / 'hf' / 'transformers.npz')
    for outtype in ('f16', 'f32'):                       # with float16 weights, llama.cpp rounds activations to float16
        out = LlamaCpp(work / f'model-{outtype}.gguf').run(hf['ids'].tolist(), mtp='mtp_logits' in hf)
        np.savez(work / f'llama-{outtype}.npz', **out)
        report(f'{family} {outtype}', hf, out)


def cosine(a, b):
    "Of each pair of rows."
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def report(family, hf, llama):
    line = [family, f"logits: least cosine {cosine(hf['logits'], llama['logits']).min():.9f}, "
                    f"most |Δ| {np.abs(hf['logits'] - llama['logits']).max():.2e} (deviation {hf['logits'].std():.2f})"]
    if 'route' in llama:
        k = llama['route'].shape[-1]
        theirs = np.argsort(-hf['router'], -1, kind='stable')[..., :k]
        same = (np.sort(theirs, -1) == np.sort(llama['route'], -1)).all(-1)
        line.append(f'experts equal in {same.sum()} of {same.size}')
    if 'mtp' in llama: line.append(f"MTP: least cosine {cosine(hf['mtp_logits'], llama['mtp']).min():.9f}")
    print('; '.join(line), flush=True)


def pack(family, work, out):
    "The F16 file, compressed, and what was computed."
    hf, llama = np.load(work / 'hf' / 'transformers.npz'), np.load(work / 'llama-f32.npz')
    data = (work / 'model-f16.gguf').read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    (out / f'{family}.gguf.xz').write_bytes(lzma.compress(data, filters=XZ))
    keep = dict(ids=hf['ids'].astype(np.int16), hf=hf['logits'], llama=llama['logits'].astype(np.float16),
                sha256=hashlib.sha256(data).hexdigest())
    if 'mtp' in llama: keep |= dict(hf_mtp=hf['mtp_logits'], llama_mtp=llama['mtp'].astype(np.float16))
    if 'router' in hf:                       # transformers' own choices; llama.cpp's are the same, but in qwen4exp
        used = llama['route'].shape[-1]
        keep['route'] = np.argsort(-hf['router'], -1, kind='stable')[..., :used].astype(np.int8)
    if 'mtp_route' in llama and llama['mtp_route'].size: keep['mtp_route'] = llama['mtp_route'].astype(np.int8)
    if 'logits_published' in hf: keep['hf_published'] = hf['logits_published'].astype(np.float16)
    np.savez_compressed(out / f'{family}.npz', **keep)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('step', choices=('convert', 'llama.cpp', 'pack'))
    ap.add_argument('family')
    ap.add_argument('work', type=Path)
    ap.add_argument('--llama.cpp', dest='source', type=Path)
    args = ap.parse_args()
    if args.step == 'convert': convert(args.family, args.work, args.source.resolve())
    elif args.step == 'llama.cpp': llama_cpp(args.family, args.work)
    else: pack(args.family, args.work, HERE / 'models')


if __name__ == '__main__': main()
