#pragma once

#include <cuda_runtime_api.h>

#include "common/compute/block_pieces.h"

namespace nereus {

// common/compute/blocks.h, and block_pieces.h, on a GPU: one layer at a time,
// all its pieces in one launch, a block of threads each: for pieces of some ten
// thousand values, as they are by default.
//
// Pointers are of device memory, aligned to their types. Work is queued on
// `stream`; nothing waits. Errors: what the launch came to.

// SplitPieces, and norms[k] = what that adds. The same bits as on a CPU, but
// for the norms, which come of another order of additions, though a fixed one:
// equal inputs give equal bits. Their relative error <= (block / 256 + 9) *
// 2^-24, for blocks of up to a million values: all terms are positive, and a
// value passes block / 256 additions in its thread and 8 in the tree.
cudaError_t SplitPiecesCuda(const BlockPieces& pieces, float momentum,
                            float weight_decay, const PieceUse* uses,
                            const float* parameters, float* gradient,
                            float* velocity, float* held, float* norms,
                            cudaStream_t stream);

// GatherPieces on a GPU. As `chosen` ascends, only the first piece of all and
// the last one may be short, so the place of a piece follows from its number
// among the chosen.
cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream);

}  // namespace nereus
