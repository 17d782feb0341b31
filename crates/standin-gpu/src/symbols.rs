//! The C symbols that this library exports, and which of them queue an operation on a stream.

/// An exported function.
#[derive(Debug, PartialEq, Eq)]
pub struct StandinSymbol {
    /// The name in the C header.
    pub name: &'static str,
    /// Whether a call can be told to hang: its operation on the stream, or the set-up of a
    /// communicator, then never ends by itself.
    pub can_hang: bool,
}

const fn plain(name: &'static str) -> StandinSymbol {
    StandinSymbol { name, can_hang: false }
}

const fn queued(name: &'static str) -> StandinSymbol {
    StandinSymbol { name, can_hang: true }
}

/// All exported functions of the driver and of NCCL.
pub const ALL: &[StandinSymbol] = &[
    plain("cuInit"),
    plain("cuDriverGetVersion"),
    plain("cuDeviceGetCount"),
    plain("cuDeviceGet"),
    plain("cuDeviceGetName"),
    plain("cuDeviceTotalMem_v2"),
    plain("cuDeviceGetUuid_v2"),
    plain("cuDeviceGetPCIBusId"),
    plain("cuDevicePrimaryCtxRetain"),
    plain("cuDevicePrimaryCtxRelease_v2"),
    plain("cuCtxSetCurrent"),
    plain("cuCtxGetCurrent"),
    plain("cuCtxPushCurrent_v2"),
    plain("cuCtxPopCurrent_v2"),
    plain("cuCtxGetDevice"),
    plain("cuCtxRecordEvent"),
    plain("cuPointerGetAttribute"),
    plain("cuMemAlloc_v2"),
    plain("cuMemFree_v2"),
    plain("cuMemAllocAsync"),
    queued("cuMemFreeAsync"),
    plain("cuMemHostAlloc"),
    plain("cuMemFreeHost"),
    plain("cuMemHostRegister_v2"),
    plain("cuMemHostUnregister"),
    plain("cuMemGetInfo_v2"),
    queued("cuMemcpyDtoHAsync_v2"),
    queued("cuMemcpyHtoDAsync_v2"),
    queued("cuMemcpyDtoDAsync_v2"),
    queued("cuMemsetD8Async"),
    plain("cuStreamCreateWithPriority"),
    plain("cuStreamDestroy_v2"),
    plain("cuStreamWaitEvent"),
    plain("cuStreamQuery"),
    plain("cuStreamGetCtx"),
    plain("cuStreamSynchronize"),
    plain("cuEventCreate"),
    plain("cuEventRecord"),
    plain("cuEventQuery"),
    plain("cuEventSynchronize"),
    plain("cuEventElapsedTime"),
    plain("cuEventDestroy_v2"),
    plain("cuGetErrorName"),
    plain("cuGetErrorString"),
    plain("cuModuleLoadData"),
    plain("cuModuleGetFunction"),
    plain("cuModuleUnload"),
    queued("cuLaunchKernel"),
    plain("ncclGetVersion"),
    plain("ncclGetUniqueId"),
    queued("ncclCommInitRankConfig"),
    queued("ncclCommSplit"),
    plain("ncclCommGetAsyncError"),
    plain("ncclCommFinalize"),
    plain("ncclCommDestroy"),
    plain("ncclCommAbort"),
    plain("ncclCommCount"),
    plain("ncclGetErrorString"),
    plain("ncclGetLastError"),
    queued("ncclAllReduce"),
    queued("ncclBroadcast"),
    queued("ncclAllGather"),
    queued("ncclReduceScatter"),
    queued("ncclSend"),
    queued("ncclRecv"),
    plain("ncclGroupStart"),
    plain("ncclGroupEnd"),
    plain("ncclRedOpCreatePreMulSum"),
    plain("ncclRedOpDestroy"),
];
