/* GloVe as published, one pair after another: the yardstick of static_vectors.py.
 *
 *   glove PAIRS NUM_WORDS WIDTH EPOCHS X_MAX OUT
 *
 * PAIRS are records of two numbers of words and a count (int32, int32, float32), each pair in both orders. Prints the
 * mean cost of each epoch; OUT gets the sums of word and context vectors as float32. Rate 0.05 and alpha 0.75 are fixed.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t first, second; float count; } Pair;

static uint64_t state = 88172645463325252ULL;

static uint64_t drawn(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double learn(const Pair *pairs, long num_pairs, float *values, float *seen, long num_words, int width, float x_max) {
    const float rate = 0.05f;
    double cost = 0;
    for (long at = 0; at < num_pairs; at++) {
        long word = pairs[at].first * (long)(width + 1), context = (num_words + pairs[at].second) * (long)(width + 1);
        float *w = values + word, *c = values + context, *seen_w = seen + word, *seen_c = seen + context;
        float miss = w[width] + c[width] - logf(pairs[at].count);
        for (int d = 0; d < width; d++) miss += w[d] * c[d];
        float pull = (pairs[at].count < x_max ? powf(pairs[at].count / x_max, 0.75f) : 1.0f) * miss;
        cost += 0.5 * pull * miss;
        for (int d = 0; d <= width; d++) { /* the bias comes last: its slope is the pull alone */
            float step_w = rate * pull * (d < width ? c[d] : 1.0f), step_c = rate * pull * (d < width ? w[d] : 1.0f);
            w[d] -= step_w / sqrtf(seen_w[d]);
            c[d] -= step_c / sqrtf(seen_c[d]);
            seen_w[d] += step_w * step_w;
            seen_c[d] += step_c * step_c;
        }
    }
    return cost / num_pairs;
}

int main(int count, char **given) {
    if (count != 7) return 2;
    long num_words = atol(given[2]);
    int width = atoi(given[3]), epochs = atoi(given[4]);
    FILE *file = fopen(given[1], "rb");
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    long num_pairs = ftell(file) / (long)sizeof(Pair), size = 2 * num_words * (width + 1);
    rewind(file);
    Pair *pairs = malloc(num_pairs * sizeof(Pair));
    float *values = malloc(size * sizeof(float)), *seen = malloc(size * sizeof(float));
    if (!pairs || !values || !seen || fread(pairs, sizeof(Pair), num_pairs, file) != (size_t)num_pairs) return 1;
    fclose(file);
    for (long at = 0; at < size; at++) {
        values[at] = ((drawn() >> 40) / 16777216.0f - 0.5f) / (width + 1);
        seen[at] = 1.0f;
    }
    for (int epoch = 0; epoch < epochs; epoch++) {
        for (long at = num_pairs - 1; at > 0; at--) {
            long other = drawn() % (at + 1);
            Pair kept = pairs[at];
            pairs[at] = pairs[other];
            pairs[other] = kept;
        }
        printf("%.6f\n", learn(pairs, num_pairs, values, seen, num_words, width, atof(given[5])));
    }
    if (!(file = fopen(given[6], "wb"))) return 1;
    for (long word = 0; word < num_words; word++)
        for (int d = 0; d < width; d++) {
            float sum = values[word * (width + 1) + d] + values[(num_words + word) * (width + 1) + d];
            fwrite(&sum, sizeof(float), 1, file);
        }
    return fclose(file) != 0;
}
