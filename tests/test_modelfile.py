"""Chapter 01 against gguf-py, against every malformed file that people have reported, and against its own promises of time and memory."""
import gc, os, time, tracemalloc
from struct import pack

import gguf, numpy as np, pytest

from alphabook.modelfile import (IK_TYPES, MAX_COUNT, REMOVED, TYPE, TYPES, GGUFError, ModelFile, atomic_file,
                                 chunks, infer_kind, pack_key, summary, type_by_id, write_gguf)


def text(s): return pack('<Q', len(s)) + (s if isinstance(s, bytes) else s.encode())
def key(name, kind, body): return text(name) + pack('<I', kind) + body
def entry(name, ne, kind=0, offset=0): return text(name) + pack(f'<I{len(ne)}QIQ', len(ne), *ne, kind, offset)


def gguf_bytes(keys=(), tensors=(), data=b'', version=3, n_keys=None, n_tensors=None, alignment=32):
    head = b'GGUF' + pack('<IQQ', version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head += b''.join(keys) + b''.join(tensors)
    return head + bytes(-len(head) % alignment) + data


def error(tmp_path, raw, name='model.gguf'):
    "The message with which ModelFile refuses these bytes; it must be one line that begins with the path."
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(GGUFError) as e: ModelFile(path)
    message = str(e.value)
    assert message.startswith(f'{path}: ') and '\n' not in message and message.count(str(tmp_path)) == 1
    return message


# Reading what gguf-py writes, and the other way round

SCALAR_CASES = {'uint8': 255, 'int8': -128, 'uint16': 65535, 'int16': -32768, 'uint32': 2**32 - 1, 'int32': -2**31, 'float32': 0.5,
                'bool': True, 'string': 'Grüße, мир 😊\n', 'uint64': 2**64 - 1, 'int64': -2**63, 'float64': 0.1}


def test_reads_every_kind_from_gguf_py(tmp_path):
    w = gguf.GGUFWriter(tmp_path / 'a.gguf', 'llama')
    for kind, value in SCALAR_CASES.items(): getattr(w, f'add_{kind}')(f'k.{kind}', value)
    w.add_array('k.strings', ['a', '', 'ü'])
    w.add_array('k.ints', [1, -2, 3])
    w.add_array('k.floats', [0.5, -1.5])
    w.add_array('k.bools', [True, False])
    w.add_array('k.nested', [[1, 2], [3]])
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    with ModelFile(tmp_path / 'a.gguf') as mf:
        for kind, value in SCALAR_CASES.items():
            assert mf.meta[f'k.{kind}'] == value and type(mf.meta[f'k.{kind}']) is type(value) and mf.meta.kind(f'k.{kind}') == kind
        assert mf.meta['k.strings'] == ['a', '', 'ü'] and mf.meta.kind('k.strings') == 'string[]'
        assert mf.meta['k.ints'].dtype == np.int32 and mf.meta['k.ints'].tolist() == [1, -2, 3]
        assert mf.meta['k.floats'].tolist() == [0.5, -1.5] and mf.meta['k.bools'].tolist() == [True, False]
        assert [a.tolist() for a in mf.meta['k.nested']] == [[1, 2], [3]] and mf.meta.kind('k.nested') == 'int32[][]'
        assert mf.meta['general.architecture'] == 'llama'
        assert mf.meta['k.strings'] is mf.meta['k.strings'] and mf.meta['k.ints'] is mf.meta['k.ints']
        assert mf.meta['k.ints'].flags.owndata and mf.meta['k.ints'].flags.aligned
        assert mf.meta.count('k.strings') == 3 and mf.meta.get('no such key') is None and 'k.bools' in mf.meta


def test_gguf_py_reads_every_kind_from_us(tmp_path):
    arrays = {'string[]': ['a', '', 'ü'], 'bool[]': [True, False], 'uint8[]': [1, 2], 'float64[]': [0.1], 'int64[]': [-2**63]}
    meta = {f'k.{k}': (k, v) for k, v in (SCALAR_CASES | arrays).items()}
    write_gguf(tmp_path / 'a.gguf', {'general.architecture': 'llama', **meta}, [])
    fields = gguf.GGUFReader(tmp_path / 'a.gguf').fields
    for k, (kind, value) in meta.items():
        assert fields[k].contents() == value, k
        want = ['array', kind[:-2]] if kind.endswith('[]') else [kind]
        assert [t.name.lower() for t in fields[k].types] == want


def random_tensors(seed=0):
    rng = np.random.default_rng(seed)
    for i, t in enumerate(TYPES.values()):
        shape = tuple(int(n) for n in rng.integers(1, 4, i % 4)) + (t.block * int(rng.integers(1, 4)),)
        yield t, shape, rng.integers(0, 256, (*shape[:-1], t.nbytes(shape[-1])), np.uint8)


def test_tensors_of_every_type_both_ways(tmp_path):
    write_gguf(tmp_path / 'ours.gguf', {'general.architecture': 'llama'}, [(t.name, shape, t.name, raw) for t, shape, raw in random_tensors()
                                                                          if t.name != 'Q2_0'])
    theirs = {t.name: t for t in gguf.GGUFReader(tmp_path / 'ours.gguf').tensors}
    w = gguf.GGUFWriter(tmp_path / 'theirs.gguf', 'llama')
    for t, shape, raw in random_tensors():
        if t.name == 'Q2_0': continue  # in llama.cpp, not yet in gguf-py
        assert theirs[t.name].tensor_type.name == t.name and tuple(theirs[t.name].shape[::-1]) == shape
        assert theirs[t.name].data.tobytes() == raw.tobytes() and theirs[t.name].n_bytes == raw.nbytes
        w.add_tensor(t.name, raw, raw_dtype=gguf.GGMLQuantizationType[t.name])
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    with ModelFile(tmp_path / 'theirs.gguf') as mf:
        for t, shape, raw in random_tensors():
            if t.name == 'Q2_0': continue
            mine = mf.tensors[t.name]
            assert (mine.shape, mine.type, mine.nbytes) == (shape, t, raw.nbytes)
            assert mine.data.shape == (raw.size // raw.shape[-1], raw.shape[-1]) and mine.data.tobytes() == raw.tobytes()
            assert not mine.data.flags.writeable and mine.data.dtype == np.uint8


def test_types_equal_gguf_py():
    for t, sizes in gguf.GGML_QUANT_SIZES.items(): assert TYPE[t.name] == TYPES[t.value] and (TYPES[t.value].block, TYPES[t.value].size) == sizes
    assert len(TYPE) == len(TYPES) and TYPES[42].name == 'Q2_0'


@pytest.mark.parametrize('alignment', (8, 16, 32, 64, 4096))
def test_alignment_sweep(tmp_path, alignment):
    "ollama PR 18130: the bytes of each tensor equal what was written, for every length of the metadata."
    rng, path = np.random.default_rng(1), tmp_path / 'a.gguf'
    for n in range(0, 2 * min(alignment, 64) + 2, 1 if alignment < 64 else 3):
        want = {f't{i}': rng.integers(0, 256, size, np.uint8) for i, size in enumerate((1, 31, 32, 33, alignment))}
        write_gguf(path, {'general.architecture': 'a', 'pad': 'x' * n}, [(k, v.shape, 'I8', v) for k, v in want.items()], alignment)
        raw = path.read_bytes()
        with ModelFile(path) as mf:
            assert mf.alignment == alignment
            for k, v in want.items():
                t = mf.tensors[k]
                assert t.offset % alignment == 0 and raw[t.offset:t.offset + t.nbytes] == v.tobytes() == t.data.tobytes()
        if n % 16 == 0:
            for t in gguf.GGUFReader(path).tensors: assert t.data.view(np.uint8).tobytes() == want[t.name].tobytes()


def test_version_2_and_any_table_order(tmp_path):
    data = np.arange(32, dtype='<f4')
    path = tmp_path / 'v2.gguf'
    path.write_bytes(gguf_bytes([], [entry('b', [8], 0, 64), entry('a', [4, 2], 0, 0)], data.tobytes(), version=2))
    with ModelFile(path) as mf:
        assert mf.version == 2 and list(mf.tensors) == ['b', 'a'] and mf.tensors['a'].shape == (2, 4)
        assert (mf.tensors['b'].data.view('<f4') == data[16:24]).all() and (mf.tensors['a'].data.view('<f4').ravel() == data[:8]).all()


def test_a_real_model_equals_gguf_py(smollm2):
    theirs = gguf.GGUFReader(smollm2)
    with ModelFile(smollm2) as mf:
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith('GGUF.')}
        assert list(mf.meta) == list(fields)
        for k, f in fields.items():
            mine = mf.meta[k]
            assert (mine.tolist() if isinstance(mine, np.ndarray) else mine) == f.contents(), k
        assert [t.name for t in theirs.tensors] == list(mf.tensors)
        for t in theirs.tensors:
            mine = mf.tensors[t.name]
            assert (mine.type.name, mine.shape, mine.nbytes) == (t.tensor_type.name, tuple(t.shape[::-1]), t.n_bytes)
            assert mine.offset == t.data_offset and mine.data.tobytes() == t.data.tobytes()


# Malformed files: one clear line each

ONE = [entry('blk.0.w', [8])]
F32 = np.arange(8, dtype='<f4').tobytes()
ALIGN = 'general.alignment'
BAD = {
    # llama.cpp#6774, ollama#6228
    'cut in the header': (gguf_bytes()[:20], 'number of metadata keys: needs 8 bytes at offset 16, but 4 are left'),
    'magic alone': (b'GGUF', 'version: needs 4 bytes at offset 4, but 0 are left'),
    'cut in a string': (gguf_bytes([key('general.name', 8, text('a model'))])[:60], "'general.name': needs 7 bytes"),
    'cut in the last tensor': (gguf_bytes([], ONE, F32[:-1]), "tensor 'blk.0.w': needs 32 bytes at offset 64, but 31 are left"),
    'cut before the data': (gguf_bytes([], ONE), "tensor 'blk.0.w': needs 32 bytes at offset 64, but 0 are left"),
    'cut in the tensor table': (gguf_bytes([], ONE)[:60], "tensor 'blk.0.w'"),
    # llama.cpp#17105
    'unknown type': (gguf_bytes([], [entry('w', [8], 4321)]), "tensor 'w': type 4,321 is unknown"),
    'removed type': (gguf_bytes([], [entry('w', [8], 4)]), "tensor 'w': type 4 is Q4_2, which was removed"),
    'removed repacked type': (gguf_bytes([], [entry('w', [8], 31)]), 'Q4_0_4_4, which was removed'),
    'IQ3_K': (gguf_bytes([], [entry('w', [256], 138)]), "tensor 'w': type 138 is IQ3_K, a type of ik_llama.cpp"),
    'IQ3_KS': (gguf_bytes([], [entry('w', [256], 156)]), 'type 156 is IQ3_KS, a type of ik_llama.cpp'),
    'IQ1_KT': (gguf_bytes([], [entry('w', [256], 158)]), 'IQ1_KT, a type of ik_llama.cpp'),
    'IQ4_KS_R4': (gguf_bytes([], [entry('w', [256], 344)]), 'IQ4_KS_R4, a type of ik_llama.cpp'),
    # sparkinfer#24
    **{f'alignment {n}': (gguf_bytes([key(ALIGN, 4, pack('<I', n))]), f'{ALIGN}: is {n:,}; a power of two') for n in (0, 1, 4, 48, 2**30, 2**31)},
    'alignment -1': (gguf_bytes([key(ALIGN, 5, pack('<i', -1))]), f'{ALIGN}: is of type int32; uint32'),
    'alignment of text': (gguf_bytes([key(ALIGN, 8, text('32'))]), f'{ALIGN}: is of type string; uint32'),
    'alignment in a list': (gguf_bytes([key(ALIGN, 9, pack('<IQI', 4, 1, 32))]), f'{ALIGN}: is of type uint32[]; uint32'),
    # llama.cpp#25378
    'a million dimensions': (gguf_bytes([], [text('w') + pack('<I', 10**6)]) + bytes(64), "tensor 'w': has 1,000,000 dimensions; 1 to 4"),
    'five dimensions': (gguf_bytes([], [entry('w', [1] * 5)], F32), "tensor 'w': has 5 dimensions; 1 to 4"),
    'no dimension': (gguf_bytes([], [entry('w', [])]) + bytes(64), "tensor 'w': has 0 dimensions"),
    'product wraps': (gguf_bytes([], [entry('w', [2**32, 2**32])]), "tensor 'w': has the impossible dimensions"),
    'product wraps to 32': (gguf_bytes([], [entry('w', [2**63 + 4, 2, 4])]), 'impossible dimensions'),
    'dimension 0': (gguf_bytes([], [entry('w', [8, 0])]), 'impossible dimensions [8, 0]'),
    'part of a block': (gguf_bytes([], [entry('w', [40], 2)]), "tensor 'w': has rows of 40; Q4_0 needs a multiple of 32"),
    # stable-diffusion.cpp#1397
    'key of 2^48 bytes': (b'GGUF' + pack('<IQQ', 3, 0, 1) + pack('<Q', 0xFFFFFFFFFFFF) + bytes(8), 'needs 281,474,976,710,655 bytes'),
    'array of 2^64 numbers': (gguf_bytes([key('a', 9, pack('<IQ', 12, 2**64 - 1))]), "'a', 18,446,744,073,709,551,615 × float64: needs"),
    'array of 2^61 strings': (gguf_bytes([key('a', 9, pack('<IQ', 8, 2**61))]), "'a', 2,305,843,009,213,693,952 strings: needs"),
    'array of 2^40 arrays': (gguf_bytes([key('a', 9, pack('<IQ', 9, 2**40))]), "'a', 1,099,511,627,776 arrays: needs"),
    'string runs out': (gguf_bytes([key('a', 9, pack('<IQ', 8, 2) + text('x') + pack('<Q', 2**64 - 1) + bytes(9))]), "'a'[1]: needs"),
    'arrays 9 deep': (gguf_bytes([key('a', 9, pack('<IQ', 9, 1) * 8 + pack('<IQ', 0, 0))]), 'more than 8 deep'),
    'arrays 1000 deep': (gguf_bytes([key('a', 9, pack('<IQ', 9, 1) * 1000)]), 'more than 8 deep'),
    'too many keys': (gguf_bytes(n_keys=2**63), 'number of metadata keys: is 9,223,372,036,854,775,808; up to 32,768'),
    'too many tensors': (gguf_bytes(n_tensors=MAX_COUNT + 1), 'number of tensors: is 32,769'),
    'more keys than bytes': (gguf_bytes(n_keys=100), '100 metadata keys: needs 1,400 bytes'),
    # llama.cpp PR 13943
    'big-endian': (b'GGUF' + pack('>IQQ', 3, 0, 0), 'big-endian file'),
    'version 0': (gguf_bytes(version=0), 'version: is 0; 2 or 3'),
    'version 1': (gguf_bytes(version=1), 'version: is 1, given up in 2023'),
    'version 4': (gguf_bytes(version=4), 'version: is 4; 2 or 3'),
    'same key twice': (gguf_bytes([key('a', 7, b'\1')] * 2), "metadata key 1: 'a' stands twice"),
    'same tensor twice': (gguf_bytes([], ONE * 2, F32), "tensor 'blk.0.w': stands twice"),
    'tensors overlap': (gguf_bytes([], [entry('a', [16]), entry('b', [8], 0, 32)], F32 * 2), "tensor 'b': lies over tensor 'a'"),
    'same place twice': (gguf_bytes([], [entry('a', [8]), entry('b', [8])], F32), "tensor 'b': lies over tensor 'a'"),
    'offset not aligned': (gguf_bytes([], [entry('a', [2], 0, 4)], F32), "tensor 'a': has offset 4; a multiple of 32"),
    'offset beyond the file': (gguf_bytes([], [entry('a', [2], 0, 2**63)], F32), "tensor 'a': needs 8 bytes at offset 9,223,372,036,854,775,872, but 0 are left"),
    'key not UTF-8': (gguf_bytes([key(b'\xff\xfe', 7, b'\1')]), 'is not UTF-8'),
    'tensor name not UTF-8': (gguf_bytes([], [entry(b'\xc0\x80', [8])], F32), 'tensor 0, name: '),
    'key empty': (gguf_bytes([key('', 7, b'\1')]), 'metadata key 0: is empty'),
    'tensor without name': (gguf_bytes([], [entry('', [8])], F32), 'tensor 0, name: is empty'),
    'bool 2': (gguf_bytes([key('flag', 7, b'\2')]), "'flag': has a bool of 2; 0 or 1"),
    'bool 255 in an array': (gguf_bytes([key('flags', 9, pack('<IQ', 7, 3) + b'\0\xff\1')]), "'flags': has a bool of 255"),
    'value type 13': (gguf_bytes([key('k', 13, bytes(8))]), "'k': is of the unknown type 13"),
    'item type 77': (gguf_bytes([key('k', 9, pack('<IQ', 77, 1) + bytes(8))]), "'k': is of the unknown type 77"),
    'a key with a line break': (gguf_bytes([key('a\nb', 13, b'')]) + bytes(16), r"'a\nb': is of the unknown type"),
    # not GGUF at all
    'empty': (b'', 'looks like an empty file'),
    'zeros': (bytes(100), 'run of zeros'),
    'web page': (b'\r\n <!DOCTYPE html><html>', 'looks like a web page'),
    'plain answer': (b'Invalid username or password.', "text file that begins 'Invalid username"),
    'JSON': (b'{"error": "not found"}', 'JSON'),
    'LFS pointer': (b'version https://git-lfs.github.com/spec/v1\noid sha256:00', 'Git LFS pointer'),
    'safetensors': (pack('<Q', 99) + b'{"__metadata__":{}}', 'safetensors'),
    'zip': (b'PK\3\4' + bytes(60), 'zip archive'),
    'pickle': (b'\x80\2}q\0.', 'pickle'),
    'ggml': (b'lmgg' + bytes(60), "ggml's first format"), 'ggjt': (b'tjgg' + bytes(60), "ggml's third format"),
    'one byte': (b'G', "text file that begins 'G'"), 'noise': (b'\xca\xfe\xba\xbe', r"begins with b'\xca\xfe\xba\xbe'"),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_file(tmp_path, name):
    raw, words = BAD[name]
    tracemalloc.start()
    try: assert words in error(tmp_path, raw)
    finally: peak = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
    assert peak < 4 << 20 or 'is unknown' in words  # naming an unknown type may import gguf


def test_every_cut_of_a_file_is_one_line(tmp_path):
    raw = gguf_bytes([key('general.name', 8, text('cut me')), key('a', 9, pack('<IQ', 8, 2) + text('x') + text('yz')), key('n', 10, bytes(8))],
                     [entry('u', [4, 2]), entry('v', [8], 0, 32)], F32 * 2)
    for n in range(len(raw)): error(tmp_path, raw[:n])
    (tmp_path / 'whole.gguf').write_bytes(raw)
    ModelFile(tmp_path / 'whole.gguf').close()


def test_no_file_to_read(tmp_path):
    for path, words in ((tmp_path, 'is a folder'), (tmp_path / 'none.gguf', 'No such file'), ('/dev/null', 'pipe or a device')):
        with pytest.raises(GGUFError, match=words): ModelFile(path)
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(GGUFError, match='pipe or a device'): ModelFile(tmp_path / 'pipe')


def test_names_of_foreign_types():
    for id, name in {137: 'IQ2_K', 138: 'IQ3_K', 139: 'IQ4_K', 140: 'IQ5_K', 141: 'IQ6_K', 144: 'IQ4_KS', 145: 'IQ2_KS', 146: 'IQ4_KSS',
                     152: 'IQ5_KS', 153: 'IQ2_KT', 154: 'IQ3_KT', 155: 'IQ4_KT', 156: 'IQ3_KS', 157: 'IQ2_KL', 158: 'IQ1_KT',
                     212: 'Q4_K_R4', 223: 'IQ4_XS_R8', 399: 'Q8_K_R8'}.items():
        with pytest.raises(ValueError, match=f'{name}, a type of ik_llama.cpp'): type_by_id(id)
    assert not (set(IK_TYPES) | set(REMOVED)) & set(TYPES)


def test_type_that_only_gguf_py_knows(monkeypatch):
    monkeypatch.delitem(TYPES, 40)
    with pytest.raises(ValueError, match='type 40 is NVFP4, newer than this reader'): type_by_id(40)


# Split models

def split_model(folder, n=3, total=None, name='big', **changes):
    paths = [folder / f'{name}-{i + 1:05}-of-{n:05}.gguf' for i in range(n)]
    for i, path in enumerate(paths):
        keys = {'split.no': np.uint16(i), 'split.count': np.uint16(n), 'split.tensors.count': np.int32(n - 1 if total is None else total)}
        if i == 0: keys |= {'general.architecture': 'llama', 'general.name': 'big'}
        tensors = [(f'w{i}', (2, 4), 'F32', np.full((2, 4), i, '<f4'))] if i else []
        write_gguf(path, keys, tensors)
    return paths


def test_split_from_any_part(tmp_path):
    for path in split_model(tmp_path):
        with ModelFile(path) as mf:
            assert mf.meta['general.name'] == 'big' and list(mf.tensors) == ['w1', 'w2'] and len(mf.files) == 3
            assert [t.data.view('<f4').sum() for t in mf.tensors.values()] == [8, 16]
            assert mf.nbytes == sum(p.stat().st_size for p in mf.paths)


def test_split_missing_part(tmp_path):
    paths = split_model(tmp_path, 13)
    paths[1].unlink()
    for path in (paths[0], paths[7]):
        with pytest.raises(GGUFError, match='1 of 13 parts missing beside it: big-00002-of-00013.gguf'): ModelFile(path)
    for p in paths[2:]: p.unlink()
    with pytest.raises(GGUFError, match='12 of 13 parts missing'): ModelFile(paths[0])


def test_split_joined_with_cat(tmp_path):
    paths = split_model(tmp_path)
    for name in ('joined.gguf', 'joined-00001-of-00003.gguf'):
        for some in (paths, paths[:2], paths[1:]):
            message = error(tmp_path, b''.join(p.read_bytes() for p in some), name)
            assert 'joined by `cat`' in message and '-00001-of-00003.gguf' in message


def test_split_renamed_mixed_or_wrong(tmp_path):
    paths = split_model(tmp_path)
    raw = [p.read_bytes() for p in paths]
    assert 'a name that ends in -00002-of-00003.gguf' in error(tmp_path, raw[1], 'renamed.gguf')
    assert 'a name that ends in -00002-of-00003.gguf' in error(tmp_path, raw[1], 'big-00002-of-00004.gguf')
    paths[2].write_bytes(raw[1].replace(pack('<H', 1) + text('split.count'), pack('<H', 2) + text('split.count')))
    with pytest.raises(GGUFError, match="tensor 'w1': stands in an earlier part too"): ModelFile(paths[0])
    paths[2].write_bytes(raw[1])
    with pytest.raises(GGUFError, match='not those of part 3 of 3'): ModelFile(paths[0])
    paths[2].write_bytes(raw[2][:-40])
    with pytest.raises(GGUFError, match="00003-of-00003.gguf: tensor 'w2': needs 32 bytes"): ModelFile(paths[0])
    split_model(tmp_path, total=7)
    with pytest.raises(GGUFError, match='split.tensors.count: is 7; the parts hold 2'): ModelFile(paths[1])
    write_gguf(tmp_path / 'odd.gguf', {'split.count': 'three'}, [])
    with pytest.raises(GGUFError, match="split.count: is 'three'; an integer"): ModelFile(tmp_path / 'odd.gguf')


def test_split_in_one_part(tmp_path):
    write_gguf(tmp_path / 'one.gguf', {'split.count': np.uint16(1), 'split.no': np.uint16(0)}, [('w', (1,), 'F32', bytes(4))])
    with ModelFile(tmp_path / 'one.gguf') as mf: assert len(mf.files) == 1


# Laziness, time, memory, closing

def vocabulary(n=250_000): return [f'token {i}' for i in range(n)]


def test_a_large_vocabulary_opens_at_once(tmp_path):
    tokens = vocabulary()
    write_gguf(tmp_path / 'v.gguf', {'tokenizer.ggml.tokens': tokens, 'tokenizer.ggml.merges': tokens,
                                     'tokenizer.ggml.scores': np.zeros(len(tokens), np.float32)}, [])
    times = []
    for _ in range(3):
        t = time.perf_counter()
        mf = ModelFile(tmp_path / 'v.gguf')
        times.append(time.perf_counter() - t)
    assert min(times) < 0.5
    t, n = time.perf_counter(), mf.meta.count('tokenizer.ggml.tokens')
    assert n == len(tokens) and time.perf_counter() - t < 0.05
    assert mf.meta['tokenizer.ggml.merges'] == tokens and mf.meta['tokenizer.ggml.merges'] is mf.meta['tokenizer.ggml.merges']


def opening_peak(path):
    gc.collect()
    tracemalloc.start()
    mf = ModelFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, mf


@pytest.mark.parametrize('case', ('keys', 'tensors', 'strings', 'arrays', 'nested'))
def test_memory_of_the_worst_files(tmp_path, case):
    "Opening takes at most twice the file plus 16 MiB, even where everything is as small and as many as it can be."
    raw = {'keys': lambda: gguf_bytes([key(f'{i:x}', 10, pack('<Q', 2**63 + i)) for i in range(MAX_COUNT)]),
           'tensors': lambda: gguf_bytes([key(ALIGN, 4, pack('<I', 8))], [entry(f'{i:x}', [2], 0, 8 * i) for i in range(MAX_COUNT)],
                                         bytes(8 * MAX_COUNT), alignment=8),
           'strings': lambda: gguf_bytes([key('a', 9, pack('<IQ', 8, 10**5) + bytes(8 * 10**5))]),
           'arrays': lambda: gguf_bytes([key('a', 9, pack('<IQ', 9, 30_000) + pack('<IQ', 4, 0) * 30_000)]),
           'nested': lambda: gguf_bytes([key('a', 9, pack('<IQ', 9, 10**4) + (pack('<IQ', 9, 2) + pack('<IQ', 8, 0) * 2) * 10**4)])}[case]()
    (tmp_path / 'worst.gguf').write_bytes(raw)
    peak, mf = opening_peak(tmp_path / 'worst.gguf')
    assert peak <= 2 * len(raw) + (16 << 20), f'{peak:,} bytes for a file of {len(raw):,}'
    mf.close()


def test_views_outlive_the_file(tmp_path):
    write_gguf(tmp_path / 'a.gguf', {'list': ['a', 'b']}, [('w', (2, 4), 'F32', F32)])
    before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0
    mf = ModelFile(tmp_path / 'a.gguf')
    view, t = mf.tensors['w'].data, mf.tensors['w']
    mf.close(); mf.close()
    assert view.tobytes() == F32
    for f in (lambda: t.data,):
        with pytest.raises(ValueError, match='a.gguf: the model file is closed'): f()
    del view, mf, t
    gc.collect()
    if before: assert len(os.listdir('/proc/self/fd')) == before
    mf = ModelFile(tmp_path / 'a.gguf')
    mf.close()
    with pytest.raises(ValueError, match='the model file is closed'): mf.meta['list']


def test_failed_opens_leak_nothing(tmp_path):
    (tmp_path / 'bad.gguf').write_bytes(gguf_bytes([], ONE, F32[:-1]))
    if not os.path.isdir('/proc/self/fd'): pytest.skip('needs /proc')
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(20):
        with pytest.raises(GGUFError): ModelFile(tmp_path / 'bad.gguf')
    assert len(os.listdir('/proc/self/fd')) == before


# Writing

def test_rewriting_keeps_every_byte(tmp_path):
    meta = {k: (k, v) for k, v in SCALAR_CASES.items()} | {
        'tokens': ('string[]', ['a', '\udcc3', '']), 'none': ('float32[]', []), 'no lists': ('array[]', []), 'deep': ('int8[][][]', [[[1], []], []]),
        'nan': ('float32', float('nan')), 'raw': '\udcff'}
    write_gguf(tmp_path / 'a.gguf', meta, [(t.name, shape, t.name, raw) for t, shape, raw in random_tensors()], 64)
    with ModelFile(tmp_path / 'a.gguf') as mf:
        write_gguf(tmp_path / 'b.gguf', mf.meta.typed(), [(t.name, t.shape, t.type.name, t.data) for t in mf.tensors.values()])
    assert (tmp_path / 'a.gguf').read_bytes() == (tmp_path / 'b.gguf').read_bytes()


def test_inference_of_kinds():
    for kind, value in {'bool': True, 'uint32': 0, 'int32': -1, 'uint64': 2**32, 'int64': -2**40, 'float32': 1.0, 'string': 'x',
                        'uint16': np.uint16(3), 'float64': np.float64(1), 'int32[]': [1, -1], 'uint32[]': [2**31, 0], 'int64[]': [2**31, -1],
                        'string[]': ['a'], 'float32[]': [0.5], 'bool[]': [True, False], 'float16[]': np.zeros(1, np.float16)}.items():
        assert infer_kind(value) == kind
    assert infer_kind([1, 2]) == 'int32[]'  # as gguf-py writes a list of small numbers
    with pytest.raises(ValueError, match="metadata key 'k': unknown kind 'float16"): pack_key('k', np.zeros(1, np.float16))
    assert pack_key('k', [1.5, 2.5]) == text('k') + pack('<IIQff', 9, 6, 2, 1.5, 2.5)


@pytest.mark.parametrize('value, words', (
    ([], 'no kind fits'), ({}, 'no kind fits'), (None, 'no kind fits'), ([1, 'a'], 'several kinds'), (2**64, 'does not fit'), (-2**63 - 1, 'does not fit'),
    (('uint8', 256), '256 does not fit uint8'), (('int8', -129), '-129 does not fit'), (('uint32', -1), '-1 does not fit'),
    (('uint32', 1.5), '1.5 does not fit'), (('bool', 2), '2 does not fit bool'), (('uint8[]', [1, 300]), '300 does not fit'),
    (('uint8[]', [[1], [2]]), 'no row of numbers'), (('float32', '1'), 'no row'), (('string', 1), 'no string'), (('string[]', ['a', 1]), 'no string'),
    (('word', 1), "unknown kind 'word'"), (('string', b'x'), 'no string'), (('int32[]', 5), 'no row|len')))
def test_values_that_cannot_be_written(tmp_path, value, words):
    with pytest.raises(ValueError, match=f"metadata key 'some.key': .*({words})") as e: write_gguf(tmp_path / 'a.gguf', {'some.key': value}, [])
    assert '\n' not in str(e.value) and not os.listdir(tmp_path)


@pytest.mark.parametrize('tensor, words', (
    (('w', (4,), 'F33', b''), "unknown type 'F33'"), (('w', (), 'F32', b''), 'dimensions'), (('w', (1,) * 5, 'F32', b''), 'dimensions'),
    (('w', (2, 0), 'F32', b''), 'dimensions'), (('w', (33,), 'Q8_0', b''), 'multiple of 32'), (('', (1,), 'F32', b''), 'a name of 1 to 63'),
    (('n' * 64, (1,), 'F32', b''), 'a name of 1 to 63'), (('w', (2,), 'F32', bytes(7)), '7 bytes of data'), (('w', (2,), 'F32', bytes(9)), '9 bytes of data'),
    (('w', (2,), 'F32', []), '0 bytes of data')))
def test_tensors_that_cannot_be_written(tmp_path, tensor, words):
    (tmp_path / 'a.gguf').write_bytes(b'the old file')
    with pytest.raises(ValueError, match=f'tensor .*{words}'): write_gguf(tmp_path / 'a.gguf', {}, [tensor])
    assert os.listdir(tmp_path) == ['a.gguf'] and (tmp_path / 'a.gguf').read_bytes() == b'the old file'


def test_write_refuses(tmp_path):
    for args, words in (((tmp_path, {}, []), 'is a folder'), ((tmp_path / 'no' / 'a.gguf', {}, []), 'there is no folder'),
                        ((tmp_path / 'a.gguf', {}, [('w', (1,), 'F32', bytes(4))] * 2), 'given twice'), ((tmp_path / 'a.gguf', {}, [], 24), 'alignment 24'),
                        ((tmp_path / 'a.gguf', {}, [], 4), 'alignment 4')):
        with pytest.raises(ValueError, match=words): write_gguf(*args)
    assert not os.listdir(tmp_path)


def test_failure_while_streaming_leaves_nothing(tmp_path):
    def broken():
        yield bytes(4)
        raise OSError('the source is gone')
    with pytest.raises(OSError, match='the source is gone'): write_gguf(tmp_path / 'a.gguf', {}, [('w', (2,), 'F32', broken)])
    assert not os.listdir(tmp_path)


def test_atomic_file_syncs_before_it_renames(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, 'fsync', lambda fd: (calls.append('fsync'), fsync(fd)))
    monkeypatch.setattr(os, 'replace', lambda a, b: (calls.append('replace'), replace(a, b)))
    with atomic_file(tmp_path / 'a') as f: f.write(b'x')
    assert calls == ['fsync', 'replace', 'fsync'] and (tmp_path / 'a').read_bytes() == b'x'


def test_writing_streams(tmp_path):
    "64 MB of tensors pass through a few: data are asked for one tensor at a time, when their turn comes."
    asked, block = [], bytes(1 << 20)
    def source(i):
        def give():
            asked.append(i)
            return (block for _ in range(8))
        return give
    tracemalloc.start()
    write_gguf(tmp_path / 'big.gguf', {}, [(f'w{i}', (8 << 20,), 'I8', source(i)) for i in range(8)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert asked == list(range(8)) and peak < 4 << 20
    with ModelFile(tmp_path / 'big.gguf') as mf: assert sum(t.nbytes for t in mf.tensors.values()) == 64 << 20


def test_chunks():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    for data in (a, a.tobytes(), bytearray(a.tobytes()), memoryview(a.tobytes()), list(a), lambda: a, lambda: iter([a[0], a[1]])):
        assert b''.join(chunks(data)) == a.tobytes()
    assert b''.join(chunks(a[:, ::2])) == a[:, ::2].tobytes()
    with pytest.raises(TypeError): list(chunks('text'))


# Summary

def test_summary(tmp_path):
    tensors = [('a', (2, 256), 'Q4_K', bytes(288)), ('b', (4,), 'F32', bytes(16)), ('c', (4,), 'F32', bytes(16))]
    write_gguf(tmp_path / 'a.gguf', {'general.architecture': 'llama', 'general.name': 'tiny', 'llama.context_length': 99, 'llama.block_count': 3,
                                     'tokenizer.ggml.tokens': ['a', 'b']}, tensors)
    with ModelFile(tmp_path / 'a.gguf') as mf: s = summary(mf)
    assert (s['architecture'], s['name'], s['layers'], s['context'], s['tokens'], s['tensors'], s['parameters']) == ('llama', 'tiny', 3, 99, 2, 3, 520)
    assert s['types'] == {'Q4_K': dict(tensors=1, parameters=512, bytes=288), 'F32': dict(tensors=2, parameters=8, bytes=32)}
    assert list(s['types']) == ['Q4_K', 'F32']  # the heaviest first
    assert s['file_bytes'] == (tmp_path / 'a.gguf').stat().st_size and s['tensor_bytes'] == 320 and s['bits_per_weight'] == 4.923
    write_gguf(tmp_path / 'b.gguf', {}, [])
    with ModelFile(tmp_path / 'b.gguf') as mf: assert summary(mf)['bits_per_weight'] == 0 and summary(mf)['architecture'] is None
