/* Passes over gradients in host memory: round to the grid and add; add what peers sent and scale it back.
 *
 * The same bits as the tensor operations in buckets.py. It must be compiled with -ffp-contract=off and without
 * -ffast-math: a fused multiply-add would round once where twice is meant.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Values that stay in the first cache between the loops. */
#define BLOCK 4096

/* Returns the bits of the largest |gradient|; as whole numbers they are ordered, and NaN is above infinity. */
uint32_t everstep_fold(const float *gradient, double *sum, int64_t count, float scale, int32_t first) {
    uint32_t peak = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        int64_t end = count - start < BLOCK ? count : start + BLOCK;
        for (int64_t i = start; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, gradient + i, sizeof bits);
            bits &= 0x7fffffffu;
            peak = bits > peak ? bits : peak;
        }
        if (first) {
            for (int64_t i = start; i < end; i++)
                sum[i] = (double)rintf(gradient[i] * scale);
        } else {
            for (int64_t i = start; i < end; i++)
                sum[i] += (double)rintf(gradient[i] * scale);
        }
    }
    return peak;
}

/* mean[i] = (sum over parts of part[i]) * grid / weight; parts lie `stride` values apart, the world's first one first. */
void everstep_mean(const double *parts, int64_t stride, int32_t world, int64_t count, double grid, double weight,
                   float *mean) {
    double block[BLOCK];
    for (int64_t start = 0; start < count; start += BLOCK) {
        int64_t length = count - start < BLOCK ? count - start : BLOCK;
        memcpy(block, parts + start, length * sizeof *block);
        for (int32_t place = 1; place < world; place++) {
            const double *part = parts + place * stride + start;
            for (int64_t i = 0; i < length; i++)
                block[i] += part[i];
        }
        for (int64_t i = 0; i < length; i++)
            /* -0 becomes +0: how many peers gave a zero must not show. */
            mean[start + i] = (float)((block[i] + 0.0) * grid / weight);
    }
}
