"""Damaged GGUF files by the hundred thousand: each must be read or refused with one line, quickly, in little memory.

    python tests/fuzz_modelfile.py --inputs 100000 --record

The files are built here with `struct` alone, and every field's place is noted while building, so that a mutation can aim at a length, a
count, a type or an offset as well as at random bytes. `--record` writes the outcome to data/results/cpu/."""
import argparse, collections, os, platform, random, re, resource, signal, struct, sys, tempfile, time, tracemalloc
from pathlib import Path

import gguf.constants  # so that its import, which an error may need, is not timed
import numpy as np

import results

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from alphabook.modelfile import GGUFError, ModelFile, summary

SCALARS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: 'B', 10: 'Q', 11: 'q', 12: 'd'}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210), 20: (32, 18), 24: (1, 1), 39: (32, 17)}
EDGES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 31, 32, 33, 64, 127, 128, 138, 255, 256, 1000, 2**15, 2**15 + 1, 2**16 - 1, 2**16,
         2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48 - 1, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


class Build:
    "A GGUF file under construction: the bytes, and (position, size) of every field."
    def __init__(self): self.raw, self.fields = bytearray(), []

    def put(self, fmt, n):
        self.fields.append((len(self.raw), struct.calcsize('<' + fmt)))
        self.raw += struct.pack('<' + fmt, n)

    def text(self, s):
        self.put('Q', len(s))
        if s: self.fields.append((len(self.raw), len(s)))
        self.raw += s

    def array(self, rng, depth=0):
        kind = rng.choice([*SCALARS, 8, 8, 9, 9])
        if kind == 9 and depth > 3: kind = 4
        n = rng.choice((0, 1, 2, 5, 300 if kind != 9 else 9))
        self.put('I', kind)
        self.put('Q', n)
        for _ in range(n):
            if kind == 9: self.array(rng, depth + 1)
            else: self.value(rng, kind)

    def value(self, rng, kind):
        if kind == 8: self.text(rng.randbytes(rng.choice((0, 1, 3, 12))))
        elif kind == 7: self.put('B', rng.randrange(2))
        elif kind == 9: self.array(rng)
        elif SCALARS[kind] in 'fd': self.put(SCALARS[kind], rng.random())
        else: self.put(SCALARS[kind], rng.randrange(128))


def make_file(rng, keys=(), n_tensors=None):
    "A valid file with random keys of all kinds (`keys`: (name, kind, format, value) to hold besides) and random tensors."
    b, alignment = Build(), rng.choice((None, None, 8, 16, 32, 64))
    keys = [*keys, *([('general.alignment', 4, 'I', alignment)] if alignment else [])]
    n_random, n_tensors = rng.randrange(7), rng.randrange(6) if n_tensors is None else n_tensors
    b.raw += b'GGUF'
    b.put('I', rng.choice((2, 3)))
    b.put('Q', n_tensors)
    b.put('Q', n_random + len(keys))
    for i in range(n_random):
        b.text(b'key.%d' % i)
        kind = rng.choice([*SCALARS, 8, 9, 9, 9])
        b.put('I', kind)
        b.value(rng, kind)
    for name, kind, fmt, value in keys:
        b.text(name.encode())
        b.put('I', kind)
        b.put(fmt, value)
    data, alignment = b'', alignment or 32
    for i in range(n_tensors):
        kind = rng.choice([*BLOCKS])
        block, size = BLOCKS[kind]
        ne = [block * rng.randrange(1, 3), *(rng.randrange(1, 4) for _ in range(rng.randrange(4)))]
        b.text(b'tensor.%d.%d' % (i, rng.randrange(1000)))
        b.put('I', len(ne))
        for n in ne: b.put('Q', n)
        b.put('I', kind)
        b.put('Q', len(data))
        n = int(np.prod(ne)) // block * size
        data += rng.randbytes(n) + bytes(-n % alignment)
    return bytes(b.raw) + bytes(-len(b.raw) % alignment) + data, b.fields


def mutate(raw, fields, other, rng):
    "One to four changes: aimed at fields, at random bits, cuts, and pieces moved, doubled or taken from another file."
    raw = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not raw: break
        pos, size = rng.choice(fields)
        a, b = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
        b = min(b, a + 200)
        match rng.randrange(11):
            case 0 | 1 | 2 | 3 if size <= 8:  # a field becomes an edge value, or one that depends on the file's length
                left = len(raw) - pos - size
                old = int.from_bytes(raw[pos:pos + size], 'little')
                n = rng.choice([*EDGES, left, left + 1, left - 1, left // 8, left // 12, len(raw), old + 1, old - 1, 2 * old, -old])
                raw[pos:pos + size] = (n % (1 << 8 * size)).to_bytes(size, 'little')
            case 4: del raw[rng.choice((a, pos, pos + size, max(pos + size - 1, 0))):]
            case 5:
                for _ in range(rng.randrange(1, 9)): raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            case 6: raw[pos:pos + size] = rng.randbytes(size)
            case 7: del raw[a:b]
            case 8: raw[a:a] = raw[b:b + 200]
            case 9: raw[a:b] = other[a:a + 200]
            case _:
                pos2, size2 = rng.choice(fields)
                raw[pos:pos + size], raw[pos2:pos2 + size2] = raw[pos2:pos2 + size2], raw[pos:pos + size]
    return bytes(raw)


def probe(path, size):
    "Open the file and touch all of it that a program would: every value, both ends of every tensor. The error's text, or None."
    try:
        with ModelFile(path) as mf:
            for key in mf.meta: mf.meta[key], mf.meta.count(key) if hasattr(mf.meta[key], '__len__') else None
            total = 0
            for t in mf.tensors.values():
                data = t.data
                assert data.nbytes == t.nbytes and data.shape[1] * (np.prod(t.shape[:-1], dtype=object) or 1) == t.nbytes
                int(data[0, 0]) + int(data[-1, -1])
                total += t.nbytes
            assert total <= size, 'tensors share bytes'
            summary(mf), repr(mf), repr(mf.meta)
    except GGUFError as e:
        assert '\n' not in str(e) and str(path.parent) in str(e) and len(str(e)) < 1000, f'not one clear line: {e}'
        return str(e)


class Hang(Exception): pass


def _hang(*_): raise Hang


def inputs(n, seed, folder):
    "`n` damaged files, one after the other under `folder`: (path to open, bytes on disk)."
    rng, path = random.Random(seed), folder / 'model.gguf'
    parts = [folder / f'split-0000{i}-of-00003.gguf' for i in (1, 2, 3)]
    for i in range(n):
        if i % 50 == 0:
            pool = [make_file(rng) for _ in range(8)]
            split = [make_file(rng, [('split.no', 2, 'H', j), ('split.count', 2, 'H', 3), ('split.tensors.count', 5, 'i', 3)], 1)
                     for j in range(3)]
        (raw, fields), (other, _) = rng.choice(pool), rng.choice(pool)
        if i % 10 == 9:  # one part of three is damaged, any is opened
            j = rng.randrange(3)
            raws = [mutate(*split[k], other, rng) if k == j else split[k][0] for k in range(3)]
            if rng.randrange(8) == 0: raws[j] = b''.join(raws)
            for p, r in zip(parts, raws): replace(p, r)
            yield rng.choice(parts), sum(map(len, raws))
        else:
            raw = mutate(raw, fields, other, rng)
            replace(path, raw)
            yield path, len(raw)


def replace(path, raw):
    path.unlink(missing_ok=True)  # a new file: never shorten one that may still be mapped
    path.write_bytes(raw)


def fuzz(n, seed=0, limit_s=10.0, out=None):
    "Probe `n` damaged files → a report; the first failure is raised with the file kept at `out`."
    tally, worst_s, worst_memory, start = collections.Counter(), 0.0, -1 << 60, time.perf_counter()
    signal.signal(signal.SIGALRM, _hang)
    tracemalloc.start()
    with tempfile.TemporaryDirectory(dir='/dev/shm' if os.path.isdir('/dev/shm') else None) as folder:
        for i, (path, size) in enumerate(inputs(n, seed, Path(folder))):
            tracemalloc.reset_peak()
            before, t = tracemalloc.get_traced_memory()[0], time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            try: error = probe(path, size)
            except BaseException as e:
                if out: Path(out).write_bytes(path.read_bytes())
                raise RuntimeError(f'input {i} of seed {seed} ({size} bytes, kept at {out}): {type(e).__name__}: {e}') from e
            finally: signal.setitimer(signal.ITIMER_REAL, 0)
            worst_s = max(worst_s, time.perf_counter() - t)
            worst_memory = max(worst_memory, tracemalloc.get_traced_memory()[1] - before - 2 * size)
            assert worst_memory <= 16 << 20, f'input {i} of seed {seed}: {worst_memory:,} bytes above twice the file'
            tally['read' if error is None else re.sub(r"'[^']*'|[\d,\[\]()]+|b\".*\"", '_', error.split(': ', 1)[1])[:60]] += 1
    tracemalloc.stop()
    return dict(inputs=n, seed=seed, read=tally['read'], refused=n - tally['read'], seconds=time.perf_counter() - start,
                worst_seconds=worst_s, worst_memory_above_twice_the_file=worst_memory,
                peak_resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, messages=tally)


def record(report, command):
    "Write the report in the schema of data/results."
    empty = dict.fromkeys('model quantization context width mode drafter spread'.split())
    rows = [dict(empty, arm=arm, value=value, unit=unit, n=report['inputs']) for arm, value, unit in (
        ('read', report['read'], 'inputs'), ('refused with one line', report['refused'], 'inputs'), ('crashed or hung', 0, 'inputs'),
        ('slowest input', round(report['worst_seconds'], 4), 's'),
        ('most memory above twice the file', report['worst_memory_above_twice_the_file'], 'bytes'),
        ('whole run', round(report['seconds'], 1), 's'), ('different messages', len(report['messages']), 'count'))]
    path = ROOT / f'data/results/cpu/modelfile-fuzz-{results.TODAY}.json'
    return results.write(path, 'modelfile-fuzz', rows, command, device=f'cpu {platform.machine()}')


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--inputs', type=int, default=100_000)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--keep', help='where to keep an input that fails')
    p.add_argument('--record', action='store_true', help='write data/results/cpu/modelfile-fuzz-DATE.json')
    args = p.parse_args()
    report = fuzz(args.inputs, args.seed, out=args.keep)
    for message, n in report.pop('messages').most_common() if not args.record else []: print(f'{n:7} {message}')
    print({k: v for k, v in report.items() if k != 'messages'})
    if args.record: print(record(report, f'python tests/fuzz_modelfile.py --inputs {args.inputs} --seed {args.seed} --record'))


if __name__ == '__main__': main()
