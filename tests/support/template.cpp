// Writes a model with every tensor that the loader asks for, given nothing but metadata.
//
//   template KEYS OUT
//
// KEYS is a GGUF file without tensors. All values are F32, small and the same at every run.

#include "llama.h"

#include "ggml-backend.h"
#include "gguf.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

static const float MAX_VALUE = 0.0173f; // a standard deviation of 0.01

static void fill(ggml_tensor * tensor, void * file) {
    uint64_t state = 0;
    for (const char * c = tensor->name; *c; c++) {
        state = state*131 + (unsigned char) *c;
    }
    std::vector<float> values(ggml_nelements(tensor));
    for (float & value : values) {
        state = state*6364136223846793005u + 1442695040888963407u;
        value = ((int32_t) (state >> 32))/2147483648.0f*MAX_VALUE;
    }
    if (tensor->type != GGML_TYPE_F32) {
        GGML_ABORT("%s is not F32", tensor->name);
    }
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    if (std::string(tensor->name).find("rope_") != 0) { // optional, asked for by many layers under one name
        gguf_add_tensor((gguf_context *) file, tensor);
    }
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: template KEYS OUT\n");
        return 1;
    }
    gguf_context * keys = gguf_init_from_file(argv[1], { /*.no_alloc =*/ true, /*.ctx =*/ nullptr });
    if (keys == nullptr) {
        return 1;
    }
    gguf_context * file = gguf_init_empty();
    gguf_set_kv(file, keys);

    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    llama_model * model = llama_model_init_from_user(keys, fill, file, params);
    if (model == nullptr) {
        return 1;
    }
    const bool is_written = gguf_write_to_file(file, argv[2], false);
    llama_model_free(model);
    gguf_free(file);
    gguf_free(keys);
    llama_backend_free();
    return is_written ? 0 : 1;
}
