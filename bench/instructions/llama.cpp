// Reads a prompt and generates, by llama.cpp on one thread: FILE PROMPT_TOKENS NEW_TOKENS. Prints a line after
// each phase. The tokens and the choice of the next are those of main.rs.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

namespace {

void end_phase(const char *name, int32_t last) {
    std::printf("%s %d\n", name, last);
    std::fflush(stdout);
}

int32_t likeliest(llama_context *context, int32_t vocabulary) {
    const float *logits = llama_get_logits_ith(context, -1);
    int32_t best = 0;
    for (int32_t token = 1; token < vocabulary; token++) {
        if (logits[token] > logits[best]) {
            best = token;
        }
    }
    return best;
}

bool decode(llama_context *context, std::vector<llama_token> &tokens) {
    return llama_decode(context, llama_batch_get_one(tokens.data(), int32_t(tokens.size()))) == 0;
}

}  // namespace

int main(int count, char **arguments) {
    if (count != 4) {
        std::fprintf(stderr, "usage: FILE PROMPT_TOKENS NEW_TOKENS\n");
        return 2;
    }
    const int32_t prompt = std::atoi(arguments[2]), wanted = std::atoi(arguments[3]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (!model) {
        return 1;
    }
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = 512;
    parameters.n_batch = parameters.n_ubatch = 512;
    parameters.n_threads = parameters.n_threads_batch = 1;
    llama_context *context = llama_init_from_model(model, parameters);
    if (!context) {
        return 1;
    }
    const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    end_phase("load", 0);
    std::vector<llama_token> tokens;
    for (int32_t i = 0; i < prompt; i++) {
        tokens.push_back(llama_token(uint32_t(i) * 2654435761u % uint32_t(vocabulary)));
    }
    if (!decode(context, tokens)) {
        return 1;
    }
    int32_t next = likeliest(context, vocabulary);
    end_phase("prefill", next);
    for (int32_t i = 0; i < wanted; i++) {
        tokens.assign(1, next);
        if (!decode(context, tokens)) {
            return 1;
        }
        next = likeliest(context, vocabulary);
    }
    end_phase("decode", next);
    return 0;
}
