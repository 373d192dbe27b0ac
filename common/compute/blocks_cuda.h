#pragma once

#include <cuda_runtime_api.h>

#include "common/compute/block_pieces.h"

namespace nereus {

// Kernels of common/compute/blocks.h and block_pieces.h for a GPU. One launch
// treats all pieces of one layer, with one thread block for each piece. That
// suits pieces of some ten thousand values. Without --block, a job chooses
// blocks of at most 32768 values.
//
// Pointers are of device memory, aligned to their types. Work is queued on
// `stream`; the calls do not wait. Errors: those of the launch.

// Does what SplitPieces does, except that it sets norms[k] and adds nothing to
// it. Its gradient, velocity and residual have the bits of SplitPieces. Its
// norms have other bits, because it adds in another order. That order is fixed,
// so equal inputs give equal bits. The relative error of a norm is at most
// (block / 256 + 9) * 2^-24, for blocks of up to a million values: no term is
// negative, and a value passes block / 256 additions in its thread and 8 in the
// sum over the threads.
cudaError_t SplitPiecesCuda(const BlockPieces& pieces, float momentum,
                            float weight_decay, const PieceUse* uses,
                            const float* parameters, float* gradient,
                            float* velocity, float* held, float* norms,
                            cudaStream_t stream);

// Does what GatherPieces does, except that `packed` and `values` must not
// overlap at all. `chosen` ascends, so only the first and the last chosen piece
// may be short, and the place of a piece follows from its index in `chosen`.
cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream);

}  // namespace nereus
