"""Files that are sound GGUF and damaged as models: every metadata value and tensor changed at random, run to the end.

    python tests/test_damaged_models.py 1000      # a longer run; the test makes 120 in a few seconds
"""
import contextlib, io, random, sys, tempfile
from pathlib import Path

import numpy as np

from alphabook.cli import SLOW_START, main
from alphabook.modelfile import ModelFile, write_gguf
from alphabook.synth import synth

LIKE = ('tiny-llama', 'tiny-qwen2', 'tiny-qwen3', 'tiny-gemma3')
OTHER = {'uint32': (0, 1, 2, 3, 7, 255, 65535, 2**31 - 1), 'int32': (-1, 0, 1, 7, 2**31 - 1),
         'float32': (0.0, -1.0, 1e30, 1e-30, float('nan'), float('inf')), 'bool': (True, False),
         'string': ('', 'x', 'llama', 'gemma', 'gpt2', 'none', 'yarn', '\0', '{% for')}
ADDED = ('llama.rope.scaling.type', 'general.alignment', 'tokenizer.ggml.bos_token_id', 'tokenizer.ggml.eos_token_id',
         'tokenizer.chat_template', 'llama.attention.key_length', 'gemma3.attention.sliding_window')


def damaged_list(v, rng):
    v, i = list(v), rng.randrange(len(v))
    return rng.choice([v[:i], [v[0]] * len(v), v[::-1], [], v + v[:1]])


def damage_meta(meta, rng):
    "One value changed, removed or added."
    key = rng.choice(list(meta))
    kind, v = meta[key]
    if rng.random() < 0.15: del meta[key]
    elif isinstance(v, (list, np.ndarray)): meta[key] = (kind, damaged_list(v, rng)) if len(v) else (kind, v)
    elif kind in OTHER: meta[key] = (kind, rng.choice(OTHER[kind] + ((v + 1, v * 2) if kind == 'uint32' and v < 2**20 else ())))
    if rng.random() < 0.1: meta[rng.choice(ADDED)] = rng.choice([('uint32', 0), ('uint32', 9_999_999), ('string', 'zz')])


def damage_tensors(tensors, rng):
    "One tensor removed, filled with noise, or turned."
    i = rng.randrange(len(tensors))
    name, shape, kind, body = tensors[i]
    what = rng.random()
    if what < 0.3: del tensors[i]
    elif what < 0.7: tensors[i] = (name, shape, kind, rng.randbytes(len(body)))
    elif len(shape) == 2 and shape[0] % 32 == 0: tensors[i] = (name, shape[::-1], kind, body)


def generate(path):
    "Exit code and error text of the command line, in this process; anything but 0 and 2 with one line is a fault."
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(['generate', '-m', str(path), '-p', 'hello world é', '-n', '3', '--json'])
    said = err.getvalue().replace(SLOW_START, '').strip()                 # kernels may be compiled on the way
    assert code == 0 and not said or code == 2 and said and '\n' not in said and not out.getvalue(), (code, said)
    return code


def run(n, seed=0):
    "n damaged models of each kind; how many ran and how many were refused."
    rng, count = random.Random(seed), {0: 0, 2: 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'm.gguf'
        for like in LIKE:
            synth(like, 'Q8_0', path)
            with ModelFile(path) as mf:
                sound = dict(mf.meta.typed())
                tensors = [(name, t.shape, t.type.name, bytes(t.data)) for name, t in mf.tensors.items()]
            for _ in range(n):
                meta, changed = dict(sound), list(tensors)
                for _ in range(rng.choice([0, 1, 1, 2])): damage_meta(meta, rng)
                if rng.random() < 0.3: damage_tensors(changed, rng)
                try: write_gguf(path, meta, changed)
                except ValueError: continue                  # our writer refuses it already
                count[generate(path)] += 1
    return count


def test_damaged_models():
    count = run(30)
    assert count[0] > 10 and count[2] > 10                   # both kinds happened


if __name__ == '__main__': print(run(int(sys.argv[1]) // len(LIKE), seed=1))
