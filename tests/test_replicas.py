"""Files that look like published ones: metadata, names, types and shards by llama.cpp's converter and quantizer.

They are derived (tests/golden/replicas/README.md): random weights, reduced sizes. Each loads from its shards, is
printed, answers,
and has llama.cpp's logits (of the same weights as F32; figures: data/results/cpu/oracle-families-*.json)."""
import contextlib, functools, io, json

import pytest

from alphabook.chat import ChatTemplate
from alphabook.cli import main
from alphabook.config import load_config, load_mtp_config
from alphabook.modelfile import ModelFile
from family_oracle import REPLICAS, computed, cosine, replica

ARCH = {'Qwen3.6-35B-A3B': 'qwen35moe', 'Qwen3.6-27B': 'qwen35', 'Qwen3.8-Flash-Next': 'qwen4exp',
        'Qwen3-Next-80B-A3B-Instruct': 'qwen3next', 'Qwen3-30B-A3B': 'qwen3moe', 'OLMoE-1B-7B-0924-Instruct': 'olmoe',
        'gpt-oss-20b': 'gpt-oss', 'Qwen3-8B': 'qwen3', 'Meta-Llama-3-8B': 'llama'}
MTP = ('Qwen3.6-35B-A3B', 'Qwen3.6-27B', 'Qwen3-Next-80B-A3B-Instruct')


@functools.cache
def ours(name, arm):
    path, side, rec = replica(name)
    return computed(path, rec, arm, side=side)


def command(*argv):
    "(exit code, stdout) of the command line, in this process."
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([str(a) for a in argv])
    return code or 0, out.getvalue()


def test_every_family_is_there(): assert set(REPLICAS) == set(ARCH)


@pytest.mark.parametrize('name', REPLICAS)
def test_metadata_types_and_shards(name):
    path, side, _ = replica(name)
    with ModelFile(path) as mf:
        cfg = load_config(mf)
        assert cfg.arch == ARCH[name] and cfg.n_mtp == (name in MTP and side is None)
        assert len(list(path.parent.glob(f'{name}-*.gguf'))) == mf.meta['split.count'] == 3
        assert len(mf.tensors) == mf.meta['split.tensors.count']
        assert 'Derived' in mf.meta['general.name']
        assert mf.meta['general.license'] == ('llama3' if cfg.arch == 'llama' else 'apache-2.0')
        types = {t.type.name for t in mf.tensors.values()}
        assert types >= ({'MXFP4', 'Q8_0', 'F32'} if name == 'gpt-oss-20b' else {'Q4_K', 'Q6_K', 'F32'})
        text = ChatTemplate.from_meta(mf.meta).render([{'role': 'user', 'content': 'Hi'}])
        assert text == '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
        if side:
            with ModelFile(side) as block: assert load_mtp_config(block, cfg).n_mtp == 1


@pytest.mark.parametrize('name', REPLICAS)
def test_info_and_generate(name):
    path, _, _ = replica(name)
    code, out = command('info', path, '--json')
    facts = json.loads(out)
    assert code == 0 and facts['architecture'] == ARCH[name] and facts['supported'] is True
    assert command('info', path)[0] == 0
    code, out = command('generate', '-m', path, '-p', 'the first', '-n', 8, '--json', '--device', 'cpu')
    said = json.loads(out)
    assert code == 0 and len(said['token_ids']) == 8 or said['finish_reason'] == 'stop'


@pytest.mark.parametrize('name', REPLICAS)
def test_reference(name):
    "The same weights, the same experts: float32 in another order."
    pytest.importorskip('torch')
    got, rec = ours(name, 'reference'), replica(name)[2]
    if 'llama' in rec: assert cosine(got['forced'], rec['llama']).min() >= 0.9999
    if 'mtp' in rec: assert cosine(got['mtp'], rec['mtp']).min() >= 0.9999


@pytest.mark.parametrize('name', REPLICAS)
def test_round(name):
    "Activations quantized as the contract says; llama.cpp's own way is as far or further from its F32 run."
    got, rec = ours(name, 'round'), replica(name)[2]
    truth = rec['llama'] if 'llama' in rec else ours(name, 'reference')['forced']
    assert cosine(got['forced'], truth).min() >= 0.999
