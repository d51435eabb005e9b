"""ik_llama.cpp by the names that llama-cpp-python has for the same low-level calls."""

import ctypes

from ik_llama_cpp import __version__, _ctypes_api as api

llama_token = api.llama_token
llama_batch_init, llama_batch_free, llama_decode = api.llama_batch_init, api.llama_batch_free, api.llama_decode
llama_get_logits_ith, llama_free = api.llama_get_logits_ith, api.llama_free
llama_context_default_params, llama_init_from_model = api.llama_context_default_params, api.llama_init_from_model

__all__ = ["Llama", "__version__"]

PIECE = 256


class Llama:
    def __init__(self, path, n_ctx, n_batch, n_threads, n_threads_batch, verbose):
        api.llama_backend_init()
        options = api.llama_model_default_params()
        # Its kernels for rows of blocks that lie beside each other.
        options.repack_tensors, options.use_mmap = True, False
        self.model = api.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            raise RuntimeError(f"{path} is refused")
        parameters = llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = n_ctx, n_batch, n_batch
        parameters.n_threads, parameters.n_threads_batch = n_threads, n_threads_batch
        self.ctx = llama_init_from_model(self.model, parameters)
        self.vocabulary = api.llama_model_get_vocab(self.model)

    def n_vocab(self):
        return api.llama_vocab_n_tokens(self.vocabulary)

    def tokenize(self, text, add_bos, special):
        room = len(text) + 8
        tokens = (llama_token * room)()
        count = api.llama_tokenize(self.vocabulary, text, len(text), tokens, room, add_bos, special)
        return list(tokens[:count])

    def detokenize(self, tokens):
        return b"".join(self.piece(token) for token in tokens)

    def piece(self, token):
        room = ctypes.create_string_buffer(PIECE)
        return room.raw[: api.llama_token_to_piece(self.vocabulary, token, room, PIECE, 0, False)]


def llama_get_memory(context):
    return context


def llama_memory_clear(context, _data):
    api.llama_kv_cache_clear(context)


def llama_batch_get_one(tokens, count, position):
    """Tokens of one sequence after so many others; logits of the last."""
    return api.llama_batch(n_tokens=count, token=tokens, all_pos_0=position, all_pos_1=1, all_seq_id=0)
