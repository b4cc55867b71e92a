"""Record what llama.cpp computes for a fixed prompt, so that tests can compare with it where it is not installed.

    pip install llama-cpp-python gguf
    python tests/golden/record_llamacpp.py MODEL.gguf -o tests/golden/NAME.json

Three runs are recorded, each over the same token ids:

- `f32`: the weights dequantized to float32 (by gguf-py, into a temporary GGUF file), float32 KV, flash attention off;
  the prompt as one batch. This is the oracle: no rounding but float32's own.
- `quantized`: the file as it is and llama.cpp's defaults (float16 KV, flash attention "auto"); the prompt as one batch.
- `quantized_rows`: the same, but the prompt one token a step, as in decoding. llama.cpp's result depends on this.

Per position: the ids of the ten largest logits of each run (ties: the lowest id first); the logits of each run at the
union of these ids; the log-sum-exp over the vocabulary; the logit of the token that really follows. And 64 greedy ids
after the prompt, one token a step, each with its logit's lead over the second.
`contract_version` is null: these are llama.cpp's numbers, not ours.
"""
import argparse, ctypes, datetime, hashlib, json, os, platform, sys, tempfile
from pathlib import Path

import numpy as np

TOP, GREEDY = 10, 64


def sha256(path):
    h = hashlib.sha256()
    with open(path, 'rb') as f:
        while chunk := f.read(1 << 22): h.update(chunk)
    return h.hexdigest()


def write_f32(src, dst):
    "Copy a GGUF file with every tensor dequantized to float32, by gguf-py alone."
    import gguf
    reader = gguf.GGUFReader(src)
    arch = reader.get_field('general.architecture').contents()
    writer = gguf.GGUFWriter(dst, arch, use_temp_file=False)
    for field in reader.fields.values():
        if field.name.startswith('GGUF.') or field.name in ('general.architecture', 'general.file_type'): continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if sub is not None and not len(value): continue       # gguf-py can't write an empty array
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape)]
        writer.add_tensor_info(t.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_ti_data_to_file()
    for t in reader.tensors:
        writer.write_tensor_data(np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32))
    writer.close()


class Llama:
    "A model in llama.cpp, reduced to: token ids in, logits out."
    def __init__(self, path, f32, threads, n_ctx):
        import llama_cpp as ll
        self.ll, self.log = ll, []
        self.on_log = ll.llama_log_callback(lambda level, text, data: self.log.append(text.decode(errors='replace')))
        ll.llama_log_set(self.on_log, ctypes.c_void_p(0))
        ll.llama_backend_init()
        mp = ll.llama_model_default_params(); mp.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(str(path).encode(), mp)
        if not self.model: sys.exit(f'{path}: llama.cpp cannot load it: ' + ''.join(self.log)[-500:])
        cp = ll.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = n_ctx, n_ctx, n_ctx, threads, threads
        if f32: cp.type_k, cp.type_v, cp.flash_attn_type = ll.GGML_TYPE_F32, ll.GGML_TYPE_F32, 0
        self.ctx = ll.llama_init_from_model(self.model, cp)
        self.vocab = ll.llama_model_get_vocab(self.model)
        self.n_vocab = ll.llama_vocab_n_tokens(self.vocab)
        on = any('Flash Attention' in line and 'enabled' in line for line in self.log)
        self.flash = 'off' if f32 else 'auto: on' if on else 'auto: off'

    def tokenize(self, text):
        text, buf = text.encode(), (self.ll.llama_token * 4096)()
        n = self.ll.llama_tokenize(self.vocab, text, len(text), buf, len(buf), True, False)
        return list(buf[:n])

    def decode(self, ids, pos):
        "Logits (len(ids), n_vocab) of ids at positions pos, pos + 1, …, in one batch."
        batch = self.ll.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos + i, 1, 1
            batch.seq_id[i][0] = 0
        if self.ll.llama_decode(self.ctx, batch) != 0: sys.exit('llama_decode failed')
        p = self.ll.llama_get_logits(self.ctx)
        out = np.ctypeslib.as_array(p, shape=(len(ids), self.n_vocab)).copy()
        self.ll.llama_batch_free(batch)
        return out

    def run(self, ids, one_by_one):
        "Logits of the prompt, and greedy ids with their leads after it."
        self.ll.llama_memory_clear(self.ll.llama_get_memory(self.ctx), True)
        logits = np.concatenate([self.decode([t], i) for i, t in enumerate(ids)]) if one_by_one else self.decode(ids, 0)
        greedy, leads, row = [], [], logits[-1]
        for i in range(GREEDY):
            a, b = order(row, 2)
            greedy.append(int(a)); leads.append(row[a] - row[b])
            row = self.decode([int(a)], len(ids) + i)[0]
        return logits, greedy, leads

    def close(self): self.ll.llama_free(self.ctx); self.ll.llama_model_free(self.model)


def order(row, k):
    "Ids of the k largest; ties: the lowest id first."
    k = min(k, len(row))
    ids = np.flatnonzero(row >= np.partition(row, -k)[-k])
    return ids[np.lexsort((ids, -row[ids]))][:k]


def lse(logits):
    "Log-sum-exp of each row, in float64."
    x = logits.astype(np.float64); m = x.max(-1, keepdims=True)
    return (m + np.log(np.exp(x - m).sum(-1, keepdims=True)))[:, 0]


def versions():
    "Which llama.cpp, built how, on what."
    import llama_cpp as ll
    lib = next((Path(ll.__file__).parent / 'lib').glob('*ggml-base.*'), None)
    out = {'llama_cpp_python': ll.__version__, 'system_info': ll.llama_print_system_info().decode().strip(' |')}
    if lib:
        for f in ('ggml_commit', 'ggml_version'):
            g = getattr(ctypes.CDLL(str(lib)), f, None)
            if g: g.restype = ctypes.c_char_p; out[f] = g().decode()
    cpu = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), '') \
        if os.path.exists('/proc/cpuinfo') else platform.processor()
    return out | {'cpu': cpu, 'numpy': np.__version__, 'date': datetime.date.today().isoformat()}


def distance(a, ref):
    "How far run a is from the reference: over ids in both top-10, and in perplexity."
    d = [abs(x - y) for ra, rb, la, lb, u in zip(a['top_ids'], ref['top_ids'], a['logits'], ref['logits'], a['at'])
         for i, x, y in zip(u, la, lb) if i in ra and i in rb]
    same = np.mean([x[0] == y[0] for x, y in zip(a['top_ids'], ref['top_ids'])])
    return {'top1_equal': round(float(same), 4), 'mean_abs_dlogit': round(float(np.mean(d)), 5),
            'max_abs_dlogit': round(float(np.max(d)), 5),
            'perplexity_ratio': round(a['perplexity'] / ref['perplexity'], 6)}


def number(x): return float(f'{x:.8g}')


def dump(obj, path):
    "JSON with one line per position, so that files and their changes can be read."
    def text(v, depth):
        if isinstance(v, dict):
            pad = '\n' + ' ' * depth
            return '{' + ','.join(f'{pad} {json.dumps(k)}: {text(w, depth + 1)}' for k, w in v.items()) + pad + '}'
        if isinstance(v, list) and v and isinstance(v[0], list):
            return '[\n' + ',\n'.join(json.dumps(w, separators=(',', ':')) for w in v) + ']'
        return json.dumps(v, ensure_ascii=False, separators=(',', ':'))
    Path(path).write_text(text(obj, 0) + '\n', encoding='utf-8')


def main():
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('model', help='a GGUF file')
    ap.add_argument('-o', required=True, help='the JSON file to write')
    ap.add_argument('--name', help='what the model is called (default: that of the file)')
    ap.add_argument('--prompt', default=Path(__file__).with_name('prompt.txt'), help='a UTF-8 text')
    ap.add_argument('--repeat', type=int, default=1, help='the prompt that many times (for windows longer than it)')
    ap.add_argument('--random', type=int, default=0, metavar='N', help='N random ids instead of a prompt')
    ap.add_argument('--last', type=int, default=0, help='keep the last N positions only (0: all)')
    ap.add_argument('--likelihood', action='store_true', help='keep log-sum-exps and next logits only: for long texts')
    ap.add_argument('--runs', default='f32,quantized,quantized_rows')
    ap.add_argument('--threads', type=int, default=2)
    args = ap.parse_args()
    os.environ.setdefault('OMP_NUM_THREADS', str(args.threads))
    runs, raw, ids, meta = {}, {}, None, {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in args.runs.split(','):
            path = args.model
            if name == 'f32': path = Path(tmp) / 'f32.gguf'; write_f32(args.model, path)
            model = Llama(path, name == 'f32', args.threads, 2048)
            if args.random: ids = np.random.default_rng(1).integers(0, model.n_vocab, args.random).tolist()
            elif not ids: ids = model.tokenize(Path(args.prompt).read_text(encoding='utf-8') * args.repeat)
            rows = name.endswith('_rows')
            raw[name], greedy, leads = model.run(ids, rows)
            kv = 'F32' if name == 'f32' else 'F16'
            runs[name] = dict(weights='F32, dequantized by gguf-py' if name == 'f32' else 'as in the file', kv=kv,
                              prompt='one token a step' if rows else 'one batch', flash_attention=model.flash,
                              greedy=greedy, greedy_lead=[number(x) for x in leads])
            model.close()
    start = max(0, len(ids) - args.last) if args.last else 0
    top = {n: [order(row, TOP).tolist() for row in x[start:]] for n, x in raw.items()}
    at = [sorted(set().union(*rows)) for rows in zip(*top.values())]
    for n, x in raw.items():
        x, run = x[start:], runs[n]
        s = lse(x); nxt = [x[i, t] for i, t in enumerate(ids[start + 1:])]
        run |= dict(perplexity=number(np.exp(np.mean(s[:-1] - nxt))), lse=[number(v) for v in s],
                    next_logit=[number(v) for v in nxt], top_ids=top[n],
                    logits=[[number(row[i]) for i in u] for row, u in zip(x, at)])
    if args.likelihood:
        for run in runs.values(): del run['top_ids'], run['logits'], run['greedy'], run['greedy_lead']
        at, dist = [], {n: {'perplexity_ratio': round(r['perplexity'] / runs['f32']['perplexity'], 6)}
                        for n, r in runs.items() if n != 'f32'}
    else: dist = {n: distance(runs[n] | {'at': at}, runs['f32']) for n in runs if n != 'f32'} if 'f32' in runs else {}
    out = dict(format=1, name=args.name or Path(args.model).stem, nbytes=os.path.getsize(args.model),
               sha256=sha256(args.model), recorded_with=versions() | {'threads': args.threads}, contract_version=None,
               distance_to_f32=dist, ids=ids, start=start, at=at, runs=runs)
    dump(out, args.o)
    print(f'{args.o}: {len(ids)} ids, {os.path.getsize(args.o) / 1e3:.0f} kB', json.dumps(dist), file=sys.stderr)


if __name__ == '__main__': main()
