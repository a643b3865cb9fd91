// The part of cuDNN 9 that the project uses: own declarations, bound at run time, with owners and checks around them.
//
// Two interfaces of it serve different ops. The graph interface (the `Backend` functions; cudnn_graph.h) gives
// convolution, batch norm and pooling; the older one call an op for activation, softmax and evaluation's batch norm.
// tests/native/test_declarations.cpp holds every declaration and number below against NVIDIA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/handle.h"

namespace mnist::cudnn {

using RawContext = struct OpaqueContext*;
using RawTensor = struct OpaqueTensor*;
using RawPooling = struct OpaquePooling*;
using RawActivation = struct OpaqueActivation*;
using RawOpTensor = struct OpaqueOpTensor*;
using RawBackend = void*;

// The numbers of cuDNN's enumerations: ours, NVIDIA's, the value.
#define MNIST_CUDNN_CONSTANTS(X)                                                                    \
  X(kSuccess, CUDNN_STATUS_SUCCESS, 0)                                                              \
  X(kFloat, CUDNN_DATA_FLOAT, 0)                                                                    \
  X(kInt8, CUDNN_DATA_INT8, 3)                                                                      \
  X(kBfloat16, CUDNN_DATA_BFLOAT16, 9)                                                              \
  X(kInt64, CUDNN_DATA_INT64, 10)                                                                   \
  X(kChannelsFirst, CUDNN_TENSOR_NCHW, 0)                                                           \
  X(kChannelsLast, CUDNN_TENSOR_NHWC, 1)                                                            \
  X(kPropagateNan, CUDNN_PROPAGATE_NAN, 1)                                                          \
  X(kRelu, CUDNN_ACTIVATION_RELU, 1)                                                                \
  X(kMaxDeterministic, CUDNN_POOLING_MAX_DETERMINISTIC, 3)                                          \
  X(kLogSoftmax, CUDNN_SOFTMAX_LOG, 2)                                                              \
  X(kPerInstance, CUDNN_SOFTMAX_MODE_INSTANCE, 0)                                                   \
  X(kAdd, CUDNN_OP_TENSOR_ADD, 0)                                                                   \
  X(kSpatial, CUDNN_BATCHNORM_SPATIAL, 1)                                                           \
  X(kSpatialPersistent, CUDNN_BATCHNORM_SPATIAL_PERSISTENT, 2)                                      \
  X(kBatchNormOnly, CUDNN_BATCHNORM_OPS_BN, 0)                                                      \
  X(kCrossCorrelation, CUDNN_CROSS_CORRELATION, 1)                                                  \
  X(kMaxPool, CUDNN_RESAMPLE_MAXPOOL, 3)                                                            \
  X(kNegativeInfinityPad, CUDNN_NEG_INF_PAD, 1)                                                     \
  X(kBatchNorm, CUDNN_BATCH_NORM, 2)                                                                \
  X(kNormTraining, CUDNN_NORM_FWD_TRAINING, 1)                                                      \
  X(kBnFinalizeTraining, CUDNN_BN_FINALIZE_STATISTICS_TRAINING, 0)                                  \
  X(kPointwiseAdd, CUDNN_POINTWISE_ADD, 0)                                                          \
  X(kPointwiseMultiply, CUDNN_POINTWISE_MUL, 1)                                                     \
  X(kPointwiseRelu, CUDNN_POINTWISE_RELU_FWD, 100)                                                  \
  X(kReduceAdd, CUDNN_REDUCE_TENSOR_ADD, 0)                                                         \
  X(kHeuristicsA, CUDNN_HEUR_MODE_A, 3)                                                             \
  X(kHeuristicsFallback, CUDNN_HEUR_MODE_FALLBACK, 2)                                               \
  X(kNoteTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0)                                           \
  X(kNoteDownConvert, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)                                  \
  X(kNoteReducedReduction, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2)                     \
  X(kNoteFft, CUDNN_NUMERICAL_NOTE_FFT, 3)                                                          \
  X(kNoteNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 4)                                \
  X(kNoteWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD, 5)                                                \
  X(kTypeHandle, CUDNN_TYPE_HANDLE, 0)                                                              \
  X(kTypeDataType, CUDNN_TYPE_DATA_TYPE, 1)                                                         \
  X(kTypeBoolean, CUDNN_TYPE_BOOLEAN, 2)                                                            \
  X(kTypeInt64, CUDNN_TYPE_INT64, 3)                                                                \
  X(kTypeFloat, CUDNN_TYPE_FLOAT, 4)                                                                \
  X(kTypePointer, CUDNN_TYPE_VOID_PTR, 6)                                                           \
  X(kTypeConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE, 7)                                           \
  X(kTypeHeuristicsMode, CUDNN_TYPE_HEUR_MODE, 8)                                                   \
  X(kTypeNanPropagation, CUDNN_TYPE_NAN_PROPOGATION, 10)                                            \
  X(kTypeNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE, 11)                                              \
  X(kTypePointwiseMode, CUDNN_TYPE_POINTWISE_MODE, 14)                                              \
  X(kTypeDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)                                             \
  X(kTypeBnFinalizeMode, CUDNN_TYPE_BN_FINALIZE_STATS_MODE, 17)                                     \
  X(kTypeReduction, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 18)                                         \
  X(kTypeResampleMode, CUDNN_TYPE_RESAMPLE_MODE, 21)                                                \
  X(kTypePaddingMode, CUDNN_TYPE_PADDING_MODE, 22)                                                  \
  X(kTypeFraction, CUDNN_TYPE_FRACTION, 26)                                                         \
  X(kTypeNormMode, CUDNN_TYPE_NORM_MODE, 27)                                                        \
  X(kTypeNormPhase, CUDNN_TYPE_NORM_FWD_PHASE, 28)                                                  \
  X(kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                                              \
  X(kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, 1)                                          \
  X(kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 2)                                                    \
  X(kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                                           \
  X(kHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                                            \
  X(kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                                     \
  X(kConvolutionForward, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10)                \
  X(kConvolutionBackwardFilter, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11) \
  X(kConvolutionBackwardData, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12)     \
  X(kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                          \
  X(kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                                   \
  X(kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                                        \
  X(kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                                                   \
  X(kBnFinalize, CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, 20)                     \
  X(kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, 21)                                             \
  X(kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)                          \
  X(kResample, CUDNN_BACKEND_RESAMPLE_DESCRIPTOR, 24)                                               \
  X(kResampleForward, CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, 25)                          \
  X(kResampleBackward, CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, 26)                         \
  X(kNormForward, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, 29)                              \
  X(kNormBackward, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, 30)                            \
  X(kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE, 0)                                                   \
  X(kPointwiseComputeType, CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                                       \
  X(kConvolutionComputeType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, 100)                                 \
  X(kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE, 101)                                        \
  X(kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS, 102)                                   \
  X(kConvolutionStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 103)                                \
  X(kConvolutionPostPaddings, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 104)                            \
  X(kConvolutionPrePaddings, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 105)                              \
  X(kConvolutionSpatialDims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 106)                              \
  X(kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE, 200)                                               \
  X(kHeuristicsOperationGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                          \
  X(kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                                         \
  X(kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE, 300)                                          \
  X(kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                                             \
  X(kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                                \
  X(kPlanWorkspaceSize, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                              \
  X(kForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)                             \
  X(kForwardBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 701)                               \
  X(kForwardConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 702)                   \
  X(kForwardW, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, 703)                                     \
  X(kForwardX, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, 704)                                     \
  X(kForwardY, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, 705)                                     \
  X(kBackwardDataAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 706)                       \
  X(kBackwardDataBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 707)                         \
  X(kBackwardDataConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, 708)             \
  X(kBackwardDataW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, 709)                               \
  X(kBackwardDataDx, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, 710)                             \
  X(kBackwardDataDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, 711)                             \
  X(kBackwardFilterAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 712)                   \
  X(kBackwardFilterBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 713)                     \
  X(kBackwardFilterConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, 714)         \
  X(kBackwardFilterDw, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, 715)                         \
  X(kBackwardFilterX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, 716)                           \
  X(kBackwardFilterDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, 717)                         \
  X(kPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                        \
  X(kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                                         \
  X(kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                                         \
  X(kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                                         \
  X(kBnFinalizeMode, CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE, 780)                              \
  X(kBnFinalizeComputeType, CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC, 781)                        \
  X(kBnFinalizeSum, CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC, 782)                               \
  X(kBnFinalizeSquares, CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC, 783)                        \
  X(kBnFinalizeScale, CUDNN_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC, 784)                             \
  X(kBnFinalizeBias, CUDNN_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC, 785)                               \
  X(kBnFinalizeRunningMean, CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC, 786)           \
  X(kBnFinalizeRunningVar, CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC, 787)             \
  X(kBnFinalizeNextMean, CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC, 788)           \
  X(kBnFinalizeNextVar, CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC, 789)             \
  X(kBnFinalizeMean, CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC, 790)                         \
  X(kBnFinalizeInverse, CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC, 791)                   \
  X(kBnFinalizeFactor, CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC, 792)                         \
  X(kBnFinalizeShift, CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC, 793)                           \
  X(kBnFinalizeCount, CUDNN_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC, 794)                       \
  X(kBnFinalizeEpsilon, CUDNN_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC, 795)                         \
  X(kBnFinalizeMomentum, CUDNN_ATTR_OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC, 796)             \
  X(kOperationGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                                   \
  X(kOperationGraphOps, CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                                         \
  X(kOperationGraphEngineCount, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, 802)                 \
  X(kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)                                        \
  X(kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                                              \
  X(kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                                           \
  X(kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES, 903)                                                 \
  X(kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                                              \
  X(kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                                            \
  X(kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908)                                           \
  X(kVariantPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                                      \
  X(kVariantPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                              \
  X(kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)                                 \
  X(kEngineOperationGraph, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 1300)                                 \
  X(kEngineIndex, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1301)                                             \
  X(kEngineNumericalNote, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303)                                   \
  X(kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR, 1600)                                        \
  X(kReductionComputeType, CUDNN_ATTR_REDUCTION_COMP_TYPE, 1601)                                    \
  X(kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 1610)                                        \
  X(kReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 1611)                                        \
  X(kReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC, 1612)                                \
  X(kResampleMode, CUDNN_ATTR_RESAMPLE_MODE, 1700)                                                  \
  X(kResampleComputeType, CUDNN_ATTR_RESAMPLE_COMP_TYPE, 1701)                                      \
  X(kResampleSpatialDims, CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, 1702)                                   \
  X(kResamplePostPaddings, CUDNN_ATTR_RESAMPLE_POST_PADDINGS, 1703)                                 \
  X(kResamplePrePaddings, CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, 1704)                                   \
  X(kResampleStrides, CUDNN_ATTR_RESAMPLE_STRIDES, 1705)                                            \
  X(kResampleWindow, CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, 1706)                                         \
  X(kResampleNanPropagation, CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, 1707)                             \
  X(kResamplePaddingMode, CUDNN_ATTR_RESAMPLE_PADDING_MODE, 1708)                                   \
  X(kResampleForwardX, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, 1710)                               \
  X(kResampleForwardY, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, 1711)                               \
  X(kResampleForwardIndex, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, 1712)                         \
  X(kResampleForwardResample, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, 1716)                         \
  X(kResampleBackwardDx, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, 1720)                            \
  X(kResampleBackwardDy, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, 1721)                            \
  X(kResampleBackwardIndex, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC, 1722)                        \
  X(kResampleBackwardResample, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC, 1725)                        \
  X(kNormForwardMode, CUDNN_ATTR_OPERATION_NORM_FWD_MODE, 2000)                                     \
  X(kNormForwardPhase, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, 2001)                                   \
  X(kNormForwardX, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, 2002)                                       \
  X(kNormForwardMean, CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, 2003)                                \
  X(kNormForwardInverse, CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, 2004)                     \
  X(kNormForwardScale, CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, 2005)                              \
  X(kNormForwardBias, CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, 2006)                                \
  X(kNormForwardEpsilon, CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, 2007)                          \
  X(kNormForwardY, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, 2013)                                       \
  X(kNormBackwardMode, CUDNN_ATTR_OPERATION_NORM_BWD_MODE, 2100)                                    \
  X(kNormBackwardX, CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, 2101)                                      \
  X(kNormBackwardMean, CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, 2102)                               \
  X(kNormBackwardInverse, CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, 2103)                    \
  X(kNormBackwardDy, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, 2104)                                    \
  X(kNormBackwardScale, CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, 2105)                             \
  X(kNormBackwardDscale, CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, 2107)                           \
  X(kNormBackwardDbias, CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, 2108)                             \
  X(kNormBackwardDx, CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, 2109)

enum Constant : int {
#define MNIST_ROW(name, real, value) name = value,
  MNIST_CUDNN_CONSTANTS(MNIST_ROW)
#undef MNIST_ROW
};

// A ratio in the graph interface's pooling.
struct Fraction {
  std::int64_t numerator, denominator;
};

// The functions: name without `cudnn`, result, parameters as in cuDNN's reference (enumerations are ints).
#define MNIST_CUDNN_FUNCTIONS(X)                                                                                     \
  X(GetVersion, std::size_t, ())                                                                                     \
  X(GetErrorString, const char*, (int status))                                                                       \
  X(GetLastErrorString, void, (char* message, std::size_t room))                                                     \
  X(Create, int, (RawContext*))                                                                                      \
  X(Destroy, int, (RawContext))                                                                                      \
  X(SetStream, int, (RawContext, cudaStream_t))                                                                      \
  X(CreateTensorDescriptor, int, (RawTensor*))                                                                       \
  X(DestroyTensorDescriptor, int, (RawTensor))                                                                       \
  X(SetTensor4dDescriptor, int, (RawTensor, int format, int type, int n, int c, int h, int w))                       \
  X(AddTensor, int, (RawContext, const void* alpha, RawTensor, const void* a, const void* beta, RawTensor, void* c)) \
  X(TransformTensor, int,                                                                                            \
    (RawContext, const void* alpha, RawTensor, const void* x, const void* beta, RawTensor, void* y))                 \
  X(CreatePoolingDescriptor, int, (RawPooling*))                                                                     \
  X(DestroyPoolingDescriptor, int, (RawPooling))                                                                     \
  X(SetPooling2dDescriptor, int,                                                                                     \
    (RawPooling, int mode, int nan, int window_h, int window_w, int pad_h, int pad_w, int stride_h, int stride_w))   \
  X(PoolingForward, int,                                                                                             \
    (RawContext, RawPooling, const void* alpha, RawTensor, const void* x, const void* beta, RawTensor, void* y))     \
  X(PoolingBackward, int,                                                                                            \
    (RawContext, RawPooling, const void* alpha, RawTensor, const void* y, RawTensor, const void* dy, RawTensor,      \
     const void* x, const void* beta, RawTensor, void* dx))                                                          \
  X(CreateActivationDescriptor, int, (RawActivation*))                                                               \
  X(DestroyActivationDescriptor, int, (RawActivation))                                                               \
  X(SetActivationDescriptor, int, (RawActivation, int mode, int nan, double coefficient))                            \
  X(ActivationForward, int,                                                                                          \
    (RawContext, RawActivation, const void* alpha, RawTensor, const void* x, const void* beta, RawTensor, void* y))  \
  X(ActivationBackward, int,                                                                                         \
    (RawContext, RawActivation, const void* alpha, RawTensor, const void* y, RawTensor, const void* dy, RawTensor,   \
     const void* x, const void* beta, RawTensor, void* dx))                                                          \
  X(SoftmaxForward, int,                                                                                             \
    (RawContext, int algorithm, int mode, const void* alpha, RawTensor, const void* x, const void* beta, RawTensor,  \
     void* y))                                                                                                       \
  X(SoftmaxBackward, int,                                                                                            \
    (RawContext, int algorithm, int mode, const void* alpha, RawTensor, const void* y, RawTensor, const void* dy,    \
     const void* beta, RawTensor, void* dx))                                                                         \
  X(CreateOpTensorDescriptor, int, (RawOpTensor*))                                                                   \
  X(DestroyOpTensorDescriptor, int, (RawOpTensor))                                                                   \
  X(SetOpTensorDescriptor, int, (RawOpTensor, int op, int compute_type, int nan))                                    \
  X(OpTensor, int,                                                                                                   \
    (RawContext, RawOpTensor, const void* alpha1, RawTensor, const void* a, const void* alpha2, RawTensor,           \
     const void* b, const void* beta, RawTensor, void* c))                                                           \
  X(BatchNormalizationForwardInference, int,                                                                         \
    (RawContext, int mode, const void* alpha, const void* beta, RawTensor, const void* x, RawTensor, void* y,        \
     RawTensor, const void* scale, const void* bias, const void* mean, const void* var, double epsilon))             \
  X(GetBatchNormalizationForwardTrainingExWorkspaceSize, int,                                                        \
    (RawContext, int mode, int ops, RawTensor x, RawTensor z, RawTensor y, RawTensor parameters, RawActivation,      \
     std::size_t* bytes))                                                                                            \
  X(GetBatchNormalizationBackwardExWorkspaceSize, int,                                                               \
    (RawContext, int mode, int ops, RawTensor x, RawTensor y, RawTensor dy, RawTensor dz, RawTensor dx,              \
     RawTensor parameters, RawActivation, std::size_t* bytes))                                                       \
  X(BatchNormalizationForwardTrainingEx, int,                                                                        \
    (RawContext, int mode, int ops, const void* alpha, const void* beta, RawTensor, const void* x, RawTensor,        \
     const void* z, RawTensor, void* y, RawTensor, const void* scale, const void* bias, double factor,               \
     void* running_mean, void* running_var, double epsilon, void* saved_mean, void* saved_inverse, RawActivation,    \
     void* workspace, std::size_t workspace_bytes, void* reserve, std::size_t reserve_bytes))                        \
  X(BatchNormalizationBackwardEx, int,                                                                               \
    (RawContext, int mode, int ops, const void* alpha_data, const void* beta_data, const void* alpha_parameters,     \
     const void* beta_parameters, RawTensor, const void* x, RawTensor, const void* y, RawTensor, const void* dy,     \
     RawTensor, void* dz, RawTensor, void* dx, RawTensor, const void* scale, const void* bias, void* dscale,         \
     void* dbias, double epsilon, const void* saved_mean, const void* saved_inverse, RawActivation, void* workspace, \
     std::size_t workspace_bytes, void* reserve, std::size_t reserve_bytes))                                         \
  X(BackendCreateDescriptor, int, (int type, RawBackend*))                                                           \
  X(BackendDestroyDescriptor, int, (RawBackend))                                                                     \
  X(BackendFinalize, int, (RawBackend))                                                                              \
  X(BackendSetAttribute, int, (RawBackend, int attribute, int type, std::int64_t count, const void* values))         \
  X(BackendGetAttribute, int,                                                                                        \
    (RawBackend, int attribute, int type, std::int64_t room, std::int64_t* count, void* values))                     \
  X(BackendExecute, int, (RawContext, RawBackend plan, RawBackend variant_pack))

struct Api {
#define MNIST_ROW(name, result, parameters) result(*name) parameters = nullptr;
  MNIST_CUDNN_FUNCTIONS(MNIST_ROW)
#undef MNIST_ROW
  std::string path;
};

// Loads cuDNN on the first call. Throws UnavailableError if it is missing or not version 9.
const Api& api();

[[noreturn]] void throw_error(int status, const char* expression, const char* file, int line);

inline int destroy(RawContext raw) { return api().Destroy(raw); }
inline int destroy(RawTensor raw) { return api().DestroyTensorDescriptor(raw); }
inline int destroy(RawPooling raw) { return api().DestroyPoolingDescriptor(raw); }
inline int destroy(RawActivation raw) { return api().DestroyActivationDescriptor(raw); }
inline int destroy(RawOpTensor raw) { return api().DestroyOpTensorDescriptor(raw); }
inline int destroy(RawBackend raw) { return api().BackendDestroyDescriptor(raw); }

template <class Raw>
using Owner = cuda::Handle<static_cast<int (*)(Raw)>(destroy)>;

Owner<RawContext> create_context(cudaStream_t stream);

// (n, c, h, w); `format` is the order in memory, kChannelsLast or kChannelsFirst.
Owner<RawTensor> tensor4d(int type, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                          int format = kChannelsLast);

}  // namespace mnist::cudnn

// A cuDNN call by its name without the prefix: MNIST_CUDNN(SetStream(context, stream)).
#define MNIST_CUDNN(call)                                                           \
  do {                                                                              \
    const int mnist_status = ::mnist::cudnn::api().call;                            \
    if (mnist_status != ::mnist::cudnn::kSuccess)                                   \
      ::mnist::cudnn::throw_error(mnist_status, "cudnn" #call, __FILE__, __LINE__); \
  } while (false)
