"""How far logits are from what llama.cpp recorded (tests/golden/*.json, made by tests/golden/record_llamacpp.py).

    python tests/oracle.py smollm2=PATH gemma3-270m=PATH -o data/results/cpu/oracle-DATE.json

measures the fp32 reference (chapter 07d), and copies llama.cpp's own distance from its fp32 run beside it.
Models are looked for in the folder $ALPHABOOK_TEST_MODELS (NAME.gguf), then in the cache of `alphabook fetch`.
"""
import argparse, json, os, sys
from pathlib import Path

import numpy as np

import results
from alphabook.fetch import MODELS, resolve_model, sha256_of as sha256

GOLDEN = Path(__file__).parent / 'golden'


class Missing(Exception): "A model that is not at hand; the message says how to get it."


def golden(name): return json.loads((GOLDEN / f'{name}.json').read_text(encoding='utf-8'))


def model_path(name, rec=None):
    "The file that `name`'s recording was made from, its checksum verified. Missing: it is not here."
    folder, rec = os.environ.get('ALPHABOOK_TEST_MODELS'), rec or golden(name)
    path = Path(folder) / f'{name}.gguf' if folder else None
    if path is None or not path.is_file():
        if name not in MODELS:
            raise Missing(f'{name}: not fetched by alphabook; put {name}.gguf into the folder $ALPHABOOK_TEST_MODELS')
        try: path = resolve_model(name)
        except ValueError as e: raise Missing(str(e)) from None
    if (got := sha256(path)) != rec['sha256']:
        raise Missing(f'{path}: SHA-256 {got[:12]}…, but the recording was made from {rec["sha256"][:12]}…')
    return path


def teacher_forced(rec, run='f32'):
    "The ids to feed: the prompt, and the run's greedy ids but the last. Row n - 1 + i must then choose greedy[i]."
    return rec['ids'] + rec['runs'][run]['greedy'][:-1]


def top(row, k=10):
    "Ids of the k largest, the lowest id first among equals."
    ids = np.flatnonzero(row >= np.partition(row, -k)[-k])
    return ids[np.lexsort((ids, -row[ids]))][:k].tolist()


def distance(logits, rec, run='f32'):
    """Compare logits of `teacher_forced(rec, run)`, or of the prompt alone, with the recorded run.

    mean_abs, max_abs: |Δlogit| over ids in both top-10; top1: share of positions with the same first id, `misses`:
    (position, their first, ours, how far theirs leads ours in the recording); perplexity_ratio: ours / theirs on the
    prompt; greedy: (step, theirs, ours, their lead) where the greedy ids differ (None without greedy rows).
    """
    r, start, n, deltas, misses = rec['runs'][run], rec['start'], len(rec['ids']), [], []
    logits = np.asarray(logits, np.float64)
    for i, (at, theirs, values) in enumerate(zip(rec['at'], r['top_ids'], r['logits'])):
        row, theirs_at = logits[start + i], dict(zip(at, values))
        ours = top(row)
        deltas += [abs(row[k] - theirs_at[k]) for k in ours if k in theirs]
        if ours[0] != theirs[0]:
            misses.append((start + i, theirs[0], ours[0], theirs_at[theirs[0]] - theirs_at.get(ours[0], -np.inf)))
    rows = logits[start:n]
    peak = rows.max(1); lse = peak + np.log(np.exp(rows - peak[:, None]).sum(1))
    following = rows[np.arange(n - 1 - start), rec['ids'][start + 1:]]
    perplexity = np.exp(np.mean(lse[:-1] - following))
    out = dict(mean_abs=float(np.mean(deltas)), max_abs=float(np.max(deltas)), top1=1 - len(misses) / len(rows),
               misses=misses, lse_max=float(np.abs(lse - r['lse']).max()),
               perplexity_ratio=float(perplexity / r['perplexity']), n=len(rows), greedy=None)
    if len(logits) > n:
        picks = [top(row, 1)[0] for row in logits[n - 1:]]
        out['greedy'] = [(i, a, b, lead) for i, (a, b, lead) in enumerate(zip(r['greedy'], picks, r['greedy_lead']))
                         if a != b]
    return out


def measure(name, path):
    "Rows of data/results: the reference's distance from llama.cpp's fp32 run, and that of llama.cpp's quantized path."
    from alphabook.modelfile import ModelFile
    from alphabook.reference import Reference
    rec = golden(name)
    with ModelFile(path) as mf: d = distance(Reference(mf).logits(rec['ids']), rec)
    ours = dict(mean_abs_dlogit=d['mean_abs'], max_abs_dlogit=d['max_abs'], top1_equal=d['top1'],
                perplexity_ratio=d['perplexity_ratio'])
    label, _, quantization = rec['name'].rpartition(' ')
    arms = {'fp32 reference': ours} | {f'llama.cpp {k}': v for k, v in rec['distance_to_f32'].items()}
    for arm, values in arms.items():
        for unit, value in values.items():
            yield dict(model=label, quantization=quantization, context=len(rec['ids']), arm=arm, unit=unit,
                       value=round(value, 8), n=d['n'])


def main():
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('models', nargs='+', metavar='NAME[=PATH]')
    ap.add_argument('-o', required=True)
    args = ap.parse_args()
    pairs = [m.partition('=')[::2] for m in args.models]
    rows = [row for name, path in pairs for row in measure(name, path or model_path(name))]
    results.write(args.o, 'oracle', rows, f'python tests/oracle.py {" ".join(name for name, _ in pairs)} -o {args.o}',
                  mode='fp32', width=1, drafter='none', spread=None,
                  oracle='llama.cpp, its fp32 run (weights dequantized to F32, F32 KV)')


if __name__ == '__main__':
    try: main()
    except Missing as e: sys.exit(str(e))
