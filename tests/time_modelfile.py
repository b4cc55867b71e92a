"""How long a file with a large vocabulary takes to open, here and with gguf-py, in turns.

    python tests/time_modelfile.py --tokens 250000 --passes 3 --record"""
import argparse, platform, sys, tempfile, time
from pathlib import Path

import gguf

import results

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from alphabook.modelfile import ModelFile, write_gguf


def timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def measure(tokens, passes):
    "{arm: seconds of each pass}, the arms interleaved, files in the disk cache."
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'vocabulary.gguf'
        words = [f'token {i}' for i in range(tokens)]
        write_gguf(path, {'general.architecture': 'llama', 'tokenizer.ggml.tokens': words}, [])
        arms = {'open': lambda: ModelFile(path).close(), 'open and decode': lambda: ModelFile(path).meta['tokenizer.ggml.tokens'],
                'open, gguf-py': lambda: gguf.GGUFReader(path)}
        times = {arm: [] for arm in arms}
        for _ in range(passes):
            for arm, f in arms.items(): times[arm].append(timed(f))
    return times


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--tokens', type=int, default=250_000)
    p.add_argument('--passes', type=int, default=3)
    p.add_argument('--record', action='store_true', help='write data/results/cpu/modelfile-open-DATE.json')
    args = p.parse_args()
    times = measure(args.tokens, args.passes)
    for arm, t in times.items(): print(f'{arm:18}{min(t):9.4f} s  (best of {len(t)}; worst {max(t):.4f} s)')
    if not args.record: return
    empty = dict.fromkeys('quantization context width mode drafter'.split())
    rows = [dict(empty, model=f'{args.tokens} tokens, no weights', arm=arm, value=round(min(t), 5), unit='s', n=len(t),
                 spread=[round(min(t), 5), round(max(t), 5)]) for arm, t in times.items()]
    path = ROOT / f'data/results/cpu/modelfile-open-{results.TODAY}.json'
    command = f'python tests/time_modelfile.py --tokens {args.tokens} --passes {args.passes} --record'
    print(results.write(path, 'modelfile-open', rows, command, device=f'cpu {platform.machine()}'))


if __name__ == '__main__': main()
