/* Runs the library over recordings.bin, and writes what it returns to results.bin. */
#include "spotter.h"

#include <stdio.h>

static _Alignas(SPOTTER_WORKSPACE_ALIGNMENT) unsigned char workspace[SPOTTER_WORKSPACE_BYTES + 1];
static int16_t audio[SPOTTER_AUDIO_SIZE];
static float logits[SPOTTER_RESULT_0_SIZE];
static uint8_t taken[SPOTTER_RESULT_1_SIZE];

int main(void)
{
    FILE *in = fopen("recordings.bin", "rb"), *out = fopen("results.bin", "wb");
    const spotter_inputs inputs = {.audio = audio};
    const spotter_outputs outputs = {.result_0 = logits, .result_1 = taken};
    if (in == NULL || out == NULL)
        return 2;
    while (fread(audio, sizeof audio, 1, in) == 1) {
        if (spotter_run(&inputs, &outputs, workspace, SPOTTER_WORKSPACE_BYTES) != SPOTTER_OK)
            return 3;
        fwrite(logits, sizeof logits, 1, out);
        fwrite(taken, sizeof taken, 1, out);
    }
    fclose(out);
    return 0;
}
