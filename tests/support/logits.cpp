// Writes the logits of fixed token ids, for comparing builds and modes bit by bit.
//
//   logits MODEL OUT [threads=N] [ubatch=N] [io=NAME] [io-threads=N] [cache=BYTES] [keep=N] [prefetch=1]
//
// Compiled against the unpatched headers it takes the first two options only. io=NAME turns streaming on.
// OUT holds, as raw floats: for each ubatch size, the logits of every token of the prompt and of each
// token decoded alone after it. The engine's statistics go to stderr with the log.

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#if __has_include("llama-expert.h")
    #include "llama-expert.h"
    #define HAS_STREAMING
#endif

static const int N_SINGLE = 4;

static int              n_prompt  = 40;
static int              n_threads = 2;
static std::vector<int> ubatches  = { 1, 7, 33 };

[[noreturn]] static void fail(const std::string & what) {
    fprintf(stderr, "logits: %s\n", what.c_str());
    exit(1);
}

#ifdef HAS_STREAMING
static void set_option(llama_expert_stream_params & params, const std::string & key, const std::string & value) {
    if (key == "io") {
        params.enabled = true;
        if (!llama_expert_io_from_str(value.c_str(), &params.io)) {
            fail("no such io: " + value);
        }
        return;
    }
    const uint64_t number = std::stoull(value);
    if (key == "io-threads") {
        params.io_threads = (uint32_t) number;
        return;
    }
    if (key == "cache") {
        params.cache_size = number;
        return;
    }
    if (key == "keep") {
        params.keep_recent = (uint32_t) number;
        return;
    }
    if (key == "prefetch") {
        params.prefetch = number != 0;
        return;
    }
    fail("no such option: " + key);
}
#endif

// true when it was one of the options that do not concern streaming
static bool set_shape(const std::string & key, const std::string & value) {
    if (key == "threads") {
        n_threads = std::stoi(value);
        return true;
    }
    if (key == "ubatch") {
        ubatches = { std::stoi(value) };
        n_prompt = std::max(n_prompt, ubatches[0] + 5); // more than one batch
        return true;
    }
    return false;
}

// decodes tokens in batches of at most n_ubatch, then the last few one by one
static void decode(llama_model * model, const std::vector<llama_token> & tokens, int n_ubatch, std::ofstream & out) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = (n_prompt + N_SINGLE + 255)/256*256;
    params.n_batch         = n_ubatch;
    params.n_ubatch        = n_ubatch;
    params.n_threads       = n_threads;
    params.n_threads_batch = n_threads;

    llama_context * ctx = llama_init_from_model(model, params);
    if (ctx == nullptr) {
        fail("cannot create a context");
    }
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    for (int pos = 0; pos < (int) tokens.size();) {
        const int     n     = pos < n_prompt ? std::min(n_ubatch, n_prompt - pos) : 1;
        llama_batch   batch = llama_batch_init(n, 0, 1);
        batch.n_tokens = n;
        for (int i = 0; i < n; i++) {
            batch.token[i]     = tokens[pos + i];
            batch.pos[i]       = pos + i;
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i]    = 1;
        }
        if (llama_decode(ctx, batch) != 0) {
            fail("cannot decode at " + std::to_string(pos));
        }
        for (int i = 0; i < n; i++) {
            out.write((const char *) llama_get_logits_ith(ctx, i), n_vocab*sizeof(float));
        }
        llama_batch_free(batch);
        pos += n;
    }
    llama_free(ctx);
}

int main(int argc, char ** argv) {
    if (argc < 3) {
        fail("usage: logits MODEL OUT [option=value ...]");
    }
    llama_backend_init();

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers    = 0;
    params.use_extra_bufts = false;
#ifdef HAS_STREAMING
    llama_expert_stream_params stream = llama_expert_stream_default_params();
    params.expert_stream = &stream;
#endif
    for (int i = 3; i < argc; i++) {
        const std::string arg = argv[i];
        const size_t      eq  = arg.find('=');
        if (eq == std::string::npos) {
            fail("not option=value: " + arg);
        }
        if (set_shape(arg.substr(0, eq), arg.substr(eq + 1))) {
            continue;
        }
#ifdef HAS_STREAMING
        set_option(stream, arg.substr(0, eq), arg.substr(eq + 1));
#else
        fail("this build has no such option: " + arg);
#endif
    }
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) {
        fail("cannot load the model");
    }

    const uint32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> tokens;
    uint32_t                 state = 1;
    for (int i = 0; i < n_prompt + N_SINGLE; i++) {
        state = state*1664525u + 1013904223u;
        tokens.push_back((state >> 8) % n_vocab);
    }

    std::ofstream out(argv[2], std::ios::binary);
    for (const int n_ubatch : ubatches) {
        decode(model, tokens, n_ubatch, out);
    }
    llama_model_free(model);
    llama_backend_free();

    out.close();
    return out ? 0 : 1;
}
