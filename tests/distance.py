"""How far the contract's arithmetic is from llama.cpp's fp32 run, beside llama.cpp's own quantized path.

    python tests/distance.py smollm2=PATH gemma3-270m=PATH -o data/results/cpu/contract-distance-DATE.json

Mean |Δlogit| is over ids in both top-10, on the 200-token prompt; perplexity is on a longer text as well, since on 200
tokens its excess is mostly luck. llama.cpp's results depend on the batch, so both its ways are listed.
"""
import argparse, math, sys

import numpy as np

import results

from oracle import Missing, distance, golden, model_path

RUNS = ('quantized', 'quantized_rows')


def cpu_logits(mf, ids):
    "Our logits after every position, by the CPU backend."
    import alphabook.cpu
    from alphabook.config import load_config
    from alphabook.rounds import Model, run_round
    model = Model(mf, load_config(mf), alphabook.cpu)
    cache, out = model.new_cache(len(ids)), []
    for start in range(0, len(ids), 64):
        out.append(run_round(model, cache, ids[start:start + 64]))
        cache.commit(min(start + 64, len(ids)))
    return np.concatenate(out)


def nll(logits, ids):
    "Negative log-likelihood of each next id, in float64."
    x = logits[:-1].astype(np.float64)
    peak = x.max(1)
    return peak + np.log(np.exp(x - peak[:, None]).sum(1)) - x[np.arange(len(x)), ids[1:]]


def mean_and_error(x): return float(x.mean()), float(x.std() / math.sqrt(len(x)))


def likelihoods(rec, ours):
    "Negative log-likelihood of each next id: `alphabook`, and llama.cpp's runs, `f32` among them."
    of = lambda run: np.array(rec['runs'][run]['lse'][:-1]) - rec['runs'][run]['next_logit']
    return {'alphabook': nll(ours, rec['ids'])} | {run: of(run) for run in ('f32', *RUNS)}


def excess(rec, ours):
    "Mean excess of the negative log-likelihood over the fp32 run, with its standard error: ours, and llama.cpp's runs."
    v = likelihoods(rec, ours)
    return {k: mean_and_error(v[k] - v['f32']) for k in ('alphabook', *RUNS)}


def measure(name, path):
    "{mean_abs, top1: {arm: value}, excess: {arm: (nats a token, standard error)}} of one model."
    from alphabook.modelfile import ModelFile
    short, long = golden(name), golden(f'{name}-likelihood')
    with ModelFile(path) as mf:
        d, e = distance(cpu_logits(mf, short['ids']), short), excess(long, cpu_logits(mf, long['ids']))
    theirs = short['distance_to_f32']
    return dict(name=short['name'], n=(len(short['ids']), len(long['ids'])), excess=e,
                mean_abs={'alphabook': d['mean_abs']} | {r: theirs[r]['mean_abs_dlogit'] for r in RUNS},
                top1={'alphabook': d['top1']} | {r: theirs[r]['top1_equal'] for r in RUNS})


def main():
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('models', nargs='+', metavar='NAME[=PATH]')
    ap.add_argument('-o', required=True)
    args = ap.parse_args()
    from alphabook.arithmetic import CONTRACT_VERSION
    rows = []
    for name, path in (m.partition('=')[::2] for m in args.models):
        m = measure(name, path or model_path(name))
        label, _, quantization = m['name'].rpartition(' ')
        for unit, n in (('mean_abs', m['n'][0]), ('top1', m['n'][0]), ('excess', m['n'][1])):
            for arm, value in m[unit].items():
                value, spread = value if unit == 'excess' else (value, None)
                rows.append(dict(model=label, quantization=quantization, context=n, n=n, spread=spread, value=value,
                                 arm=arm if arm == 'alphabook' else f'llama.cpp {arm}',
                                 unit=dict(mean_abs='mean |Δlogit|', top1='top-1 equal', excess='nats per token')[unit]))
    names = ' '.join(m.partition('=')[0] for m in args.models)
    results.write(args.o, 'contract-distance', rows, f'python tests/distance.py {names} -o {args.o}',
                  contract_version=CONTRACT_VERSION, mode='exact', width=1, drafter='none', oracle='llama.cpp, its fp32 run')
    for r in rows: print(f"{r['model']:24} {r['unit']:16} {r['arm']:26} {r['value']:.5f} {r['spread'] or ''}")


if __name__ == '__main__':
    try: main()
    except Missing as e: sys.exit(str(e))
