/* Log-probabilities of a prompt, as a canary asks for them. One weight version has one value at
 * each place; those of two versions differ by some nats. */
#include "tests/fakes/engine.h"

static double logprob(uint32_t maker, size_t i)
{
    return -1.0 - (double)((maker + (uint32_t)i * 2654435761U) % 9973) / 500;
}

void put_prompt_logprobs(struct buf *b, const uint32_t *prompt, size_t n, uint32_t maker)
{
    buf_puts(b, ",\"prompt_logprobs\":[null");
    for (size_t i = 1; i < n; i++)
        buf_printf(b,
                   ",{\"%u\":{\"logprob\":%.9f,\"rank\":700,\"decoded_token\":\"x\"},"
                   "\"82\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"s\"}}",
                   prompt[i], logprob(maker, i));
    buf_puts(b, "]");
}

void put_input_token_logprobs(struct buf *b, const uint32_t *prompt, size_t n, uint32_t maker)
{
    buf_puts(b, ",\"input_token_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        buf_puts(b, i > 0 ? ",[" : "[null");
        if (i > 0)
            buf_printf(b, "%.9f", logprob(maker, i));
        buf_printf(b, ",%u,null]", prompt[i]);
    }
    buf_puts(b, "]");
}
