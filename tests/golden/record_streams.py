"""Record what Hugging Face's qwen4_exp computes for the model of `streams_model.py`, in streams.npz.

    pip install transformers torch
    python tests/golden/record_streams.py [--llama.cpp CHECKOUT]

The logits of three texts, and those of an MTP block. Transformers leaves the MTP block out, so it is put together here
of transformers' own parts (decoder layer, stream mixer, norm) as vLLM's and SGLang's qwen4_exp do. torch's `topk` may
order equal scores as it likes, and index scores are often exactly zero; the texts are chosen so that no choice depends
on that (a test holds it).

With a checkout of llama.cpp its converter runs on the saved model, and every tensor of its file must equal the one
that the tests write.
"""
import argparse, json, sys, tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4

import streams_model

HERE = Path(__file__).parent


def fill(module, prefix):
    "Give a module the weights that belong to its names."
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.from_numpy(streams_model.weight(prefix + name, tuple(p.shape))))
    return module.float().eval()


class Mtp(torch.nn.Module):
    "The MTP block, its last mixer included."
    def __init__(self, config):
        super().__init__()
        n, streams = config.hidden_size, config.hc_count
        one = qwen4.Qwen4ExpTextConfig(**{**streams_model.CONFIG, 'num_hidden_layers': 1, 'ple_layer_ids': [],
                                          'layer_types': ['indexed_attention']})
        one._attn_implementation = 'eager'
        self.pre_fc_norm_embedding = qwen4.Qwen4ExpTextRMSNorm(n)
        self.pre_fc_norm_hidden = qwen4.Qwen4ExpTextRMSNorm(n*streams)
        self.fc_embedding, self.fc_hidden = (torch.nn.Linear(n, n, bias=False) for _ in range(2))
        self.layers = torch.nn.ModuleList([qwen4.Qwen4ExpTextDecoderLayer(one, 0)])
        self.hyper_connection_mixer = qwen4.Qwen4ExpTextGatedResidual(one, use_combine=False)
        self.rotary = qwen4.Qwen4ExpTextRotaryEmbedding(config=one)

    def forward(self, e, streams): # (1, t, n), (1, t, streams·n)
        e = self.fc_embedding(self.pre_fc_norm_embedding(e))
        h = self.pre_fc_norm_hidden(streams).unflatten(-1, (-1, e.shape[-1]))
        x = (e[..., None, :] + self.fc_hidden(h)).flatten(-2)
        t = e.shape[1]
        position = self.rotary(x, torch.arange(t).view(1, 1, -1).expand(3, 1, -1))
        mask = torch.zeros(1, 1, t, t).masked_fill(torch.ones(t, t).triu(1).bool(), torch.finfo(torch.float32).min)
        return self.hyper_connection_mixer(self.layers[0](x, position_embeddings=position, attention_mask=mask))


def compute(model, mtp):
    "Name → array: ids and logits of each text, and the MTP block's of one."
    out, seen = {}, []
    model.model.hyper_connection_mixer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    for name, ids in streams_model.texts().items():
        logits = model(torch.tensor([ids])).logits[0].numpy()
        rows = np.arange(len(ids)) if len(ids) < 20 else np.arange(3, len(ids), 4)
        out |= {f'{name}.rows': rows, f'{name}.logits': logits[rows]}
        if name == 'long':
            after = model.model.embed_tokens(torch.tensor([ids[1:]]))
            logits = model.lm_head(mtp(after, seen[-1][:, :-1]))[0].numpy()
            out |= {'mtp.rows': rows[rows < len(ids) - 1], 'mtp.logits': logits[rows[rows < len(ids) - 1]]}
    return out


def check_converter(model, checkout):
    "Run llama.cpp's converter and compare its tensors and metadata with ours."
    sys.path[:0] = [str(checkout), str(checkout / 'gguf-py')]
    import gguf
    from conversion import get_model_class
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model.save_pretrained(folder)
        config = json.loads((folder / 'config.json').read_text())
        config['layer_types'] = ['full_attention' if t == 'indexed_attention' else t for t in config['layer_types']]
        (folder / 'config.json').write_text(json.dumps(config))                 # as published
        converter = get_model_class('Qwen4ExpForCausalLM')
        converter.set_vocab = lambda self: None
        with torch.inference_mode():
            converter(folder, gguf.LlamaFileType.ALL_F32, folder / 'm.gguf', eager=True, hparams=config).write()
        reader = gguf.GGUFReader(folder / 'm.gguf')
        theirs = {t.name: np.array(t.data).reshape(t.shape[::-1]) for t in reader.tensors}
        keys = {k: f.contents() for k, f in reader.fields.items() if k.startswith('qwen4exp.')}
    ours, meta = streams_model.tensors(mtp=False), streams_model.meta(mtp=False)
    assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
    for name, x in theirs.items():
        np.testing.assert_array_max_ulp(x, np.float32(ours[name]).reshape(x.shape), 1 if name.endswith('ssm_a') else 0)
    for k, v in meta.items():
        if k.startswith('qwen4exp.'): np.testing.assert_allclose(keys[k], v, rtol=1e-7, err_msg=k)
    print(f'{len(theirs)} tensors equal those of the converter')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--llama.cpp', dest='checkout', type=Path)
    args = parser.parse_args()
    config = qwen4.Qwen4ExpTextConfig(**streams_model.CONFIG)
    config._attn_implementation = 'eager'
    model, mtp = fill(qwen4.Qwen4ExpForCausalLM(config), ''), fill(Mtp(config), 'mtp.')
    hashes = model.model.layers[1].ple.ple_embedding
    assert hashes.layer_multipliers.tolist() == list(streams_model.MULTIPLIERS), hashes.layer_multipliers
    assert hashes.ngram_heads_vocab_sizes.tolist() == list(streams_model.SIZES)
    if args.checkout: check_converter(model, args.checkout)
    with torch.inference_mode(): arrays = compute(model, mtp)
    np.savez_compressed(HERE / 'streams.npz', oracle=f'transformers {transformers.__version__}', **arrays)
    print({k: v.shape for k, v in arrays.items()}, (HERE / 'streams.npz').stat().st_size, 'bytes')
