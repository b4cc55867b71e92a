"""Small models of every family, as llama.cpp's converter writes them, and what transformers and llama.cpp compute.

    python tests/family_oracle.py -o data/results/cpu/oracle-families-DATE.json

measures how far the fp32 reference (chapter 07) and a round on the CPU (chapter 11) are from both: cosine of the logits
per position, with the routers' choices forced to the recorded ones, and free. The recordings are made by
tests/golden/record_hf.py (F16, golden/models), record_replicas.py (quantized, golden/replicas), record_synth.py
(golden/synth) and record_bundled.py.
"""
import argparse, functools, hashlib, lzma, tarfile, tempfile
from pathlib import Path

import numpy as np

import results

GOLDEN = Path(__file__).parent / 'golden'
FAMILIES = ('llama', 'qwen2', 'qwen3', 'gemma3', 'qwen3moe', 'qwen3next', 'qwen35', 'qwen35moe', 'qwen4exp', 'olmoe',
            'gpt-oss')
MTP = ('qwen3next', 'qwen35', 'qwen35moe')
ALONE = ('qwen4exp',)          # transformers is the reference: llama.cpp calls its own version of it unfinished


@functools.cache
def folder():
    "Where models are unpacked: gone with the process."
    keep = tempfile.TemporaryDirectory(prefix='alphabook-oracle-')
    folder.keep = keep
    return Path(keep.name)


def sha256(path): return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def recording(family):
    "{ids, hf, llama, route, …}: see tests/golden/record_hf.py."
    with np.load(GOLDEN / 'models' / f'{family}.npz') as z: return {k: z[k] for k in z.files}


@functools.cache
def model(family):
    "The family's F16 file; its checksum is the recording's."
    path = folder() / f'{family}.gguf'
    path.write_bytes(lzma.decompress((GOLDEN / 'models' / f'{family}.gguf.xz').read_bytes()))
    assert sha256(path) == str(recording(family)['sha256'])
    return path


SYNTH = tuple(sorted(p.stem for p in (GOLDEN / 'synth').glob('*.npz')))


@functools.cache
def synthetic(case):
    "(path, recording) of a file by `alphabook synth`, such as 'small-qwen35moe-Q4_K_M'; its checksum is recorded."
    from alphabook.architecture import MTP_FAMILIES
    from alphabook.synth import SHAPES, synth
    name, _, type = case.rpartition('-')
    with np.load(GOLDEN / 'synth' / f'{case}.npz') as z: rec = {k: z[k] for k in z.files}
    path = synth(name, type, folder() / f'{case}.gguf', mtp=int(SHAPES[name].arch in MTP_FAMILIES))
    assert sha256(path) == str(rec['sha256']), f'{case}: synth writes other bytes than when recorded'
    return path, rec


REPLICAS = tuple(sorted(p.parent.name for p in (GOLDEN / 'replicas').glob('*/logits.npz')))


@functools.cache
def replica(name):
    "(first shard, the MTP block's own file or None, recording) of a file that looks like a published one."
    packed, out = GOLDEN / 'replicas' / name, folder() / name
    with tarfile.open(packed / 'shards.tar.xz') as t: t.extractall(out, filter='data')
    files = sorted(out.glob('*.gguf'))
    with np.load(packed / 'logits.npz') as z: rec = {k: z[k] for k in z.files}
    first = next(f for f in files if '-00001-of-' in f.name)
    return first, next((f for f in files if f.name.startswith('mtp-')), None), rec


@functools.cache
def bundled():
    "(path, recording) of the model that travels with the package."
    path = GOLDEN.parents[1] / 'data' / 'models' / 'alphabook-mini.gguf'
    with np.load(GOLDEN / 'alphabook-mini.npz') as z: rec = {k: z[k] for k in z.files}
    assert sha256(path) == str(rec['sha256']), 'another model: python tests/golden/record_bundled.py'
    return path, rec


def cosine(a, b):
    "Of each pair of rows, in float64."
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def forced(cfg, choices):
    "A route that takes recorded experts, (layers, n, used) best first, with weights by the router's own logits."
    def route(layer, logits):
        ids = choices[layer].astype(np.int64)
        logits = np.asarray(logits, np.float32)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        chosen = np.take_along_axis(e, ids, -1)
        weights = chosen / (chosen if cfg.renormalise else e).sum(-1, keepdims=True)
        return ids.astype(np.int32), (weights * cfg.expert_scale).astype(np.float32)
    return route if cfg.n_expert else None


def with_mtp(rec):
    "Choices by layer, the MTP block's last."
    return [*rec.get('route', ()), *([rec['mtp_route']] if 'mtp_route' in rec else [])]


def round_logits(mf, ids, route=None):
    "A round of all ids on the CPU."
    import alphabook.cpu_streams as ops
    from alphabook.config import load_config
    from alphabook.rounds import Model, run_round
    model = Model(mf, load_config(mf), ops)
    return run_round(model, model.new_cache(len(ids)), ids, route=route)


def computed(path, rec, arm, free=False, side=None):
    "{forced, free, mtp}: an arm's logits on the recorded prompt, routers forced and (if asked) free; None: has none."
    from alphabook.config import load_config
    from alphabook.modelfile import ModelFile
    if arm == 'reference':
        import torch
        from alphabook.reference import Reference
        torch.set_num_threads(1)                                           # sums in one order, whatever the machine
    ids = rec['ids'].astype(np.int64)
    with ModelFile(path) as mf, ModelFile(side or path) as block:
        cfg = load_config(mf)
        route = forced(cfg, with_mtp(rec))
        if arm == 'round': run = functools.partial(round_logits, mf)
        else: run = (reference := Reference(mf, keep=True, mtp=block if side else None)).logits
        out = {'forced': run(ids, route=route), 'free': None, 'mtp': None}
        if free: out['free'] = run(ids) if route else out['forced']
        if arm == 'reference' and {'mtp', 'hf_mtp'} & rec.keys(): out['mtp'] = reference.mtp_logits(ids, route=route)
    return out


ARMS = {'reference': 'fp32 reference', 'round': 'round on the CPU'}
LLAMA = 'llama.cpp, weights as F32'


def rows(name, quantization, path, rec, oracles, side=None):
    "Rows of data/results for one model: {unit: value} per arm and oracle."
    step = int(rec.get('row', 1))
    shared = dict(model=name, quantization=quantization, n=-(-len(rec['ids']) // step), context=len(rec['ids']))
    for arm, label in ARMS.items():
        got = computed(path, rec, arm, free=True, side=side)
        for oracle, logits, drafts in oracles:
            values = {}
            for kind in ('forced', 'free'):
                c = cosine(got[kind][::step], logits)
                values |= {f'least cosine, routers {kind}': c.min(), f'median cosine, routers {kind}': np.median(c)}
            if got['mtp'] is not None and drafts is not None:
                values['least cosine, MTP'] = cosine(got['mtp'][::step], drafts).min()
            for unit, value in values.items():
                yield dict(shared, arm=label, oracle=oracle, unit=unit, value=round(float(value), 12))
    if 'quantized' in rec:                                     # a cosine per position
        c = rec['quantized']
        for unit, value in {'least cosine, routers free': c.min(), 'median cosine, routers free': np.median(c)}.items():
            yield dict(shared, arm='llama.cpp, file as it is', oracle=LLAMA, unit=unit, value=round(float(value), 12))


def measure():
    "Rows of every recorded model."
    for family in FAMILIES:
        rec = recording(family)
        yield from rows(family, 'F16', model(family), rec, [('transformers', rec['hf'], rec.get('hf_mtp')),
                                                           (LLAMA, rec['llama'], rec.get('llama_mtp'))])
    for name in REPLICAS:
        path, side, rec = replica(name)
        if 'llama' not in rec: continue
        quantization = path.name.removeprefix(f'{name}-').partition('-0')[0]
        yield from rows(f'replica of {name}', quantization, path, rec, [(LLAMA, rec['llama'], rec.get('mtp'))], side)
    path, rec = bundled()
    yield from rows('alphabook-mini', 'Q4_K_M', path, rec, [(LLAMA, rec['llama'], rec['mtp'])])
    for case in SYNTH:
        if 'qwen4exp' in case or not case.startswith('small'): continue
        path, rec = synthetic(case)
        name, _, quantization = case.rpartition('-')
        yield from rows(name, quantization, path, rec, [(LLAMA, rec['llama'], rec.get('mtp'))])


def main():
    from alphabook.arithmetic import CONTRACT_VERSION
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('-o', required=True)
    args = ap.parse_args()
    found = []
    for r in measure():
        found.append(r)
        print(f"{r['model']:38} {r['quantization']:7} {r['arm']:24} {r['oracle']:26} {r['unit']:30} {r['value']:.7f}")
    results.write(args.o, 'oracle-families', found, f'python tests/family_oracle.py -o {args.o}',
                  contract_version=CONTRACT_VERSION, mode='exact', width=64, drafter='none', spread=None)


if __name__ == '__main__': main()
