/* GloVe as published, one pair at a time: the reference of static_vectors.py.
 *
 *   glove PAIRS NUM_WORDS VECTOR_SIZE EPOCHS X_MAX OUTPUT
 *
 * PAIRS are records of two word ids and a count (int32, int32, float32), each pair in both orders. Prints the mean cost
 * of each epoch; OUTPUT gets the sums of word and context vectors as float32. Learning rate 0.05, alpha 0.75.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t first, second; float count; } Pair;

static uint64_t state = 88172645463325252ULL;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double train_epoch(const Pair *pairs, long num_pairs, float *values, float *squares, long num_words, int size, float x_max) {
    const float learning_rate = 0.05f;
    double cost = 0;
    for (long at = 0; at < num_pairs; at++) {
        long word = pairs[at].first * (long)(size + 1), context = (num_words + pairs[at].second) * (long)(size + 1);
        float *w = values + word, *c = values + context, *squares_w = squares + word, *squares_c = squares + context;
        float error = w[size] + c[size] - logf(pairs[at].count);
        for (int d = 0; d < size; d++) error += w[d] * c[d];
        float weighted = (pairs[at].count < x_max ? powf(pairs[at].count / x_max, 0.75f) : 1.0f) * error;
        cost += 0.5 * weighted * error;
        for (int d = 0; d <= size; d++) { /* the bias is last: its gradient is the weighted error */
            float grad_w = learning_rate * weighted * (d < size ? c[d] : 1.0f), grad_c = learning_rate * weighted * (d < size ? w[d] : 1.0f);
            w[d] -= grad_w / sqrtf(squares_w[d]);
            c[d] -= grad_c / sqrtf(squares_c[d]);
            squares_w[d] += grad_w * grad_w;
            squares_c[d] += grad_c * grad_c;
        }
    }
    return cost / num_pairs;
}

int main(int count, char **arguments) {
    if (count != 7) return 2;
    long num_words = atol(arguments[2]);
    int size = atoi(arguments[3]), epochs = atoi(arguments[4]);
    FILE *file = fopen(arguments[1], "rb");
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    long num_pairs = ftell(file) / (long)sizeof(Pair), num_values = 2 * num_words * (size + 1);
    rewind(file);
    Pair *pairs = malloc(num_pairs * sizeof(Pair));
    float *values = malloc(num_values * sizeof(float)), *squares = malloc(num_values * sizeof(float));
    if (!pairs || !values || !squares || fread(pairs, sizeof(Pair), num_pairs, file) != (size_t)num_pairs) return 1;
    fclose(file);
    for (long at = 0; at < num_values; at++) {
        values[at] = ((next_random() >> 40) / 16777216.0f - 0.5f) / (size + 1);
        squares[at] = 1.0f;
    }
    for (int epoch = 0; epoch < epochs; epoch++) {
        for (long at = num_pairs - 1; at > 0; at--) {
            long other = next_random() % (at + 1);
            Pair swapped = pairs[at];
            pairs[at] = pairs[other];
            pairs[other] = swapped;
        }
        printf("%.6f\n", train_epoch(pairs, num_pairs, values, squares, num_words, size, atof(arguments[5])));
    }
    if (!(file = fopen(arguments[6], "wb"))) return 1;
    for (long word = 0; word < num_words; word++)
        for (int d = 0; d < size; d++) {
            float sum = values[word * (size + 1) + d] + values[(num_words + word) * (size + 1) + d];
            fwrite(&sum, sizeof(float), 1, file);
        }
    return fclose(file) != 0;
}
