"""The short run of tests/fuzz_modelfile.py; the long one's outcome is in data/results/cpu/modelfile-fuzz-*.json."""
import random

from alphabook.modelfile import ModelFile
from fuzz_modelfile import fuzz, make_file, mutate


def test_undamaged_files_are_read(tmp_path):
    rng = random.Random(5)
    for i in range(100):
        raw, fields = make_file(rng)
        (tmp_path / f'{i}.gguf').write_bytes(raw)
        with ModelFile(tmp_path / f'{i}.gguf') as mf: dict(mf.meta.items())
        assert all(0 <= pos <= pos + size <= len(raw) for pos, size in fields)


def test_mutations_change_files():
    rng = random.Random(6)
    (raw, fields), (other, _) = make_file(rng, n_tensors=3), make_file(rng)
    assert sum(mutate(raw, fields, other, rng) != raw for _ in range(200)) > 180


def test_damaged_files_are_read_or_refused():
    report = fuzz(3000, seed=20261129, limit_s=20)
    assert report['read'] + report['refused'] == 3000 and report['read'] > 50 and len(report['messages']) > 40
