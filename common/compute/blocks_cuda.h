#pragma once

#include <cuda_runtime_api.h>

#include "common/compute/block_pieces.h"

namespace nereus {

// Functions of common/compute/blocks.h for a GPU. One launch treats all
// its pieces of one layer, with one CUDA thread block for each piece. That
// suits pieces of ten to a hundred thousand values: without --block, a job's
// blocks have at most 32,768 values.
//
// Pointer arguments are to device memory, aligned to their types. Work is
// queued on `stream`; the calls do not wait. Errors: those of the launch.

// Does what SplitPieces does, except that it overwrites the norm of each piece
// k, norms[k], where SplitPieces adds to it. `gradient`, `velocity` and `held`
// get the same bits as by SplitPieces. Norms do not, because 256 threads add in
// another order. This order is fixed, so equal inputs give equal bits.
//
// A norm is a sum of absolute values. Its error, relative to the exact sum, is
// at most (block / 256 + 9) * 2^-24, where `block` is the number of values of a
// block, at most 2^20. No term is negative; a term passes block / 256 additions
// in its thread and 8 in the sum over the threads, and the ninth one bounds the
// products of these errors.
cudaError_t SplitPiecesCuda(const BlockPieces& pieces, float momentum,
                            float weight_decay, const PieceUse* uses,
                            const float* parameters, float* gradient,
                            float* velocity, float* held, float* norms,
                            cudaStream_t stream);

// Does what GatherPieces does, except that `packed` and `values` must not
// overlap at all. `chosen` must ascend. Only the first and the last piece of a
// layer may be shorter than a block, so the place of piece chosen[i] in
// `packed` follows from i and the length of piece chosen[0].
cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream);

}  // namespace nereus
