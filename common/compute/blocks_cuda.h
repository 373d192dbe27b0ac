#pragma once

#include <cuda_runtime_api.h>

#include "common/compute/block_pieces.h"

namespace nereus {

// Kernels of common/compute/blocks.h and block_pieces.h for a GPU. One launch
// treats all pieces of one layer, one thread block for each piece: made for
// pieces of some ten thousand values, the default.
//
// Pointers are of device memory, aligned to their types. Work is queued on
// `stream`; the calls do not wait. Errors: those of the launch.

// SplitPieces, except that norms[k] is set and not added to. The values have
// the bits of the CPU. The norms are added up in another order, which is fixed
// too: equal inputs give equal bits. Their relative error is at most (block /
// 256 + 9) * 2^-24, for blocks of up to a million values: all terms are
// positive, and a value passes block / 256 additions in its thread and 8 in the
// tree.
cudaError_t SplitPiecesCuda(const BlockPieces& pieces, float momentum,
                            float weight_decay, const PieceUse* uses,
                            const float* parameters, float* gradient,
                            float* velocity, float* held, float* norms,
                            cudaStream_t stream);

// GatherPieces. `chosen` ascends, so only the first and the last piece of all
// may be short, and the place of a piece follows from its index in `chosen`.
cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream);

}  // namespace nereus
