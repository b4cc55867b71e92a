"""Make files that look like published ones: by llama.cpp's converter and quantizer, from the published configuration.

    python tests/golden/record_replicas.py convert NAME WORK --llama.cpp SOURCE     (needs transformers, torch)
    python tests/golden/record_replicas.py quantize NAME WORK                       (needs llama-cpp-python, gguf)
    python tests/golden/record_replicas.py pack NAME WORK                           (needs neither)

NAME is one of REPLICAS. A replica has the metadata keys, the tensor names, the chat template, the types and the shards
that the published model's conversion has; its weights are random (tests/golden/hf_models.py), it has fewer layers,
experts and heads, a small vocabulary, and it says so in general.name and general.description. Shards are written by
llama.cpp's quantizer, the file for the MTP block alone by its converter (--mtp).

`quantize` also computes logits of the 64 ids by llama.cpp, from the file as it is (its K-quant products quantize
activations to 8 bits) and from the same weights dequantized to F32 (float32 KV, no flash attention). `pack` leaves
tests/golden/replicas/NAME/shards.tar.xz and logits.npz: `ids`; `llama`, `route`, `mtp`, `mtp_route` of the F32 run;
`quantized`, the cosine per position of the two runs. (Qwen3.8-Flash-Next: routes only; llama.cpp is no oracle for it.)
"""
import argparse, ctypes, io, json, lzma, shutil, sys, tarfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from record_hf import XZ, LlamaCpp, cosine, run_converter

EIGHT = dict(num_hidden_layers=8)
# name: (family, publisher's repository, licence, changes of hf_models' configuration, file type, where MTP is)
REPLICAS = {
    'Qwen3.6-35B-A3B': ('qwen35moe', 'Qwen/Qwen3.6-35B-A3B', 'apache-2.0', EIGHT, 'Q4_K_M', 'inside'),
    'Qwen3.6-27B': ('qwen35', 'Qwen/Qwen3.6-27B', 'apache-2.0', EIGHT, 'Q4_K_M', 'beside'),
    'Qwen3.8-Flash-Next': ('qwen4exp', 'Qwen/Qwen3.8-Flash-Next', 'apache-2.0', {}, 'Q4_K_M', None),
    'Qwen3-Next-80B-A3B-Instruct': ('qwen3next', 'Qwen/Qwen3-Next-80B-A3B-Instruct', 'apache-2.0', EIGHT, 'Q4_K_M',
                                    'inside'),
    'Qwen3-30B-A3B': ('qwen3moe', 'Qwen/Qwen3-30B-A3B', 'apache-2.0', EIGHT, 'Q4_K_M', None),
    'OLMoE-1B-7B-0924-Instruct': ('olmoe', 'allenai/OLMoE-1B-7B-0924-Instruct', 'apache-2.0', EIGHT,
                                  'Q4_K_M', None),
    'Qwen3-8B': ('qwen3', 'Qwen/Qwen3-8B', 'apache-2.0', {}, 'Q4_K_M', None),
    'Meta-Llama-3-8B': ('llama', 'meta-llama/Meta-Llama-3-8B', 'llama3', dict(
        max_position_embeddings=8192, rope_parameters=dict(rope_type='default', rope_theta=500000.0)), 'Q4_K_M', None),
    'gpt-oss-20b': ('gpt-oss', 'openai/gpt-oss-20b', 'apache-2.0', dict(num_hidden_layers=6), 'MXFP4', None),
}
FTYPES = {'Q4_K_M': 15, 'MXFP4': 38}
SHARDS = 3


def label(name): return f'Derived replica of {name}: random weights, reduced sizes'


def convert(name, work, source):
    "The checkpoint under its published name, and the converter's F16 file in shards (and the MTP block's own file)."
    import hf_models
    family, repo, licence, changes, ftype, mtp = REPLICAS[name]
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    model, block = hf_models.build(family, **changes)
    hf_models.save(family, folder, model, block, published=True)
    sampling = dict(do_sample=True, temperature=1.0, top_k=20, top_p=0.95, eos_token_id=[258, 256], pad_token_id=256)
    (folder / 'generation_config.json').write_text(json.dumps(sampling))
    card = f'license: {licence}\nbase_model:\n- {repo}\npipeline_tag: text-generation\n'
    (folder / 'README.md').write_text(f'---\n{card}---\n')
    (work / 'override.json').write_text(json.dumps({'general.name': label(name), 'general.description':
        'Metadata, tensor names, types and shards as llama.cpp writes them for the published model; not its weights'}))
    common = ['--metadata', str(work / 'override.json')]
    tensors = count(folder, model, block if mtp == 'inside' else None)
    split = ['--split-max-tensors', str(-(-tensors // SHARDS))]
    no_mtp = ['--no-mtp'] if mtp == 'beside' else []
    shutil.rmtree(work / 'f16', ignore_errors=True)
    (work / 'f16').mkdir()
    run_converter(family, folder, work / 'f16' / f'{name}-F16.gguf', source, 'f16', *common, *split, *no_mtp)
    if mtp == 'beside':
        run_converter(family, folder, work / f'mtp-{name}-Q8_0.gguf', source, 'q8_0', *common, '--mtp')


def count(folder, model, block):
    "Tensors of the GGUF file, about: experts are merged, fused ones split."
    names = {n for m in (model, block) if m is not None for n, _ in m.named_parameters()}
    return len(names) + sum('gate_up_proj' in n or 'qkvz' in n or 'index_qk' in n for n in names)


def quantize(name, work):
    "llama.cpp's quantizer on the shards, then its logits."
    import llama_cpp as ll
    ids = prompt(name)
    _, _, _, _, ftype, mtp = REPLICAS[name]
    first = sorted((work / 'f16').glob('*-00001-of-*.gguf'))[0]
    out = work / 'out'
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    p = ll.llama_model_quantize_default_params()
    p.nthread, p.ftype, p.keep_split = 2, FTYPES[ftype], True
    if ll.llama_model_quantize(str(first).encode(), str(out / f'{name}-{ftype}').encode(), ctypes.byref(p)):
        sys.exit(f'{name}: llama.cpp does not quantize it')
    shards = sorted(out.glob('*.gguf'))
    join_f32(shards, work / 'joined-f32.gguf')
    inside = mtp == 'inside'
    quantized = LlamaCpp(shards[0], f32=False).run(ids, mtp=inside)
    truth = LlamaCpp(work / 'joined-f32.gguf').run(ids, mtp=inside, hidden=mtp == 'beside')
    if mtp == 'beside':     # the block's own file on the trunk's hidden states; embedding and head are the trunk's, too
        join_f32(sorted(work.glob('mtp-*.gguf')), work / 'side-f32.gguf', instead=shards)
        truth['mtp'], truth['mtp_route'] = LlamaCpp(work / 'side-f32.gguf').draft(ids[1:], truth['hidden'][:-1])
    keep = dict(ids=np.array(ids, np.int16), llama=truth['logits'], quantized=quantized['logits'].astype(np.float16))
    if REPLICAS[name][0] == 'qwen4exp': del keep['llama'], keep['quantized']       # llama.cpp calls its own unfinished
    if 'route' in truth: keep['route'] = truth['route'].astype(np.int8)
    if 'mtp' in truth: keep['mtp'] = truth['mtp'].astype(np.float16)
    if 'mtp' in truth and truth['mtp_route'].size: keep['mtp_route'] = truth['mtp_route'].astype(np.int8)
    np.savez_compressed(work / 'logits.npz', **keep)
    c = cosine(truth['logits'], quantized['logits'])
    print(f'{name}: {len(shards)} shards; as it is against F32: least cosine {c.min():.6f}, median {np.median(c):.6f}',
          flush=True)


def prompt(name):
    "hf_models.prompt, without transformers."
    from hf_models import prompt
    return prompt(REPLICAS[name][0])


def join_f32(shards, out, instead=()):
    "One file of the shards' weights as float32, by gguf-py; what files of `instead` have, too, is taken from there."
    import gguf
    readers = [gguf.GGUFReader(s) for s in shards]
    writer = gguf.GGUFWriter(out, readers[0].get_field('general.architecture').contents(), use_temp_file=False)
    for field in readers[0].fields.values():
        if field.name.startswith(('GGUF.', 'split.', 'general.architecture', 'general.file_type')): continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if sub is None or len(value): writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    other = {t.name: t for s in instead for t in gguf.GGUFReader(s).tensors}
    tensors = [other.get(t.name, t) for r in readers for t in r.tensors]
    for t in tensors:
        shape = [int(n) for n in reversed(t.shape)]
        writer.add_tensor_info(t.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_ti_data_to_file()
    for t in tensors:
        writer.write_tensor_data(np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32))
    writer.close()


def pack(name, work):
    "All files in one archive (rows repeat across shards), and what was computed."
    out = HERE / 'replicas' / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode='w', format=tarfile.USTAR_FORMAT) as t:
        for f in [*sorted((work / 'out').glob('*.gguf')), *sorted(work.glob('mtp-*.gguf'))]:
            info = tarfile.TarInfo(f.name)                                           # no times, no owners
            info.size = f.stat().st_size
            with open(f, 'rb') as data: t.addfile(info, data)
    (out / 'shards.tar.xz').write_bytes(lzma.compress(tar.getvalue(), filters=XZ))
    with np.load(work / 'logits.npz') as z: keep = {k: z[k] for k in z.files if k != 'quantized_route'}
    if 'quantized' in keep: keep['quantized'] = cosine(keep['quantized'], keep['llama']).astype(np.float32)
    for k in ('llama', 'mtp'):
        if k in keep: keep[k] = keep[k].astype(np.float16)
    np.savez_compressed(out / 'logits.npz', **keep)
    print(name, sum(f.stat().st_size for f in out.iterdir()), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    ap.add_argument('step', choices=('convert', 'quantize', 'pack'))
    ap.add_argument('name', choices=REPLICAS)
    ap.add_argument('work', type=Path)
    ap.add_argument('--llama.cpp', dest='source', type=Path)
    args = ap.parse_args()
    if args.step == 'convert': convert(args.name, args.work, args.source.resolve())
    else: {'quantize': quantize, 'pack': pack}[args.step](args.name, args.work)


if __name__ == '__main__': main()
