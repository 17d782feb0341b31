//! The CPU features that the kernels are compiled for, and the choice of the kernel for a task.
//!
//! All variants are compiled from the same code; only half precision has instructions of its own.
//! There is no AVX-512 variant: most of these loops wait for caches, not for arithmetic, and it
//! needs a newer compiler than the rest.

use std::sync::OnceLock;

use ronde_control::{DType, ReduceOp};

use super::element::{Bool, Element};
#[cfg(target_arch = "x86_64")]
use super::f16c::F16c;
use super::half::{Bf16, F16, Pairs};
use super::kernel::{self, FoldTask};
use super::number::{FoldOp, Max, Min, Product, Sum};

/// A kernel for one element type and one operation.
///
/// Calling it is safe if its variant runs on this CPU and the task meets the requirements of
/// `kernel::run`.
pub(super) type Kernel = unsafe fn(&FoldTask);

/// A set of CPU features that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// The features of every CPU of the architecture; on `aarch64` that includes NEON.
    Portable,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Variant {
    /// Every variant of this architecture, the best one last.
    pub(super) const ALL: &[Variant] = &[
        Variant::Portable,
        #[cfg(target_arch = "x86_64")]
        Variant::Avx2,
    ];

    /// The best variant that runs on this CPU.
    pub(super) fn detected() -> Variant {
        static DETECTED: OnceLock<Variant> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let best = Variant::ALL.iter().rfind(|variant| variant.runs_here());
            best.copied().unwrap_or(Variant::Portable)
        })
    }

    /// Whether this CPU has the features.
    pub(super) fn runs_here(self) -> bool {
        match self {
            Variant::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
        }
    }

    /// The kernel of this variant.
    pub(super) fn kernel(self, dtype: DType, op: ReduceOp) -> Kernel {
        match self {
            Variant::Portable => by_type::<Portable>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => by_type::<Avx2>(dtype, op),
        }
    }
}

/// A variant as a type.
trait CpuTarget {
    /// The half-precision element type for these features.
    type Half: Element;

    fn kernel<E: Element, O: FoldOp>() -> Kernel;
}

struct Portable;

impl CpuTarget for Portable {
    type Half = Pairs<F16>;

    fn kernel<E: Element, O: FoldOp>() -> Kernel {
        kernel::run::<E, O>
    }
}

#[cfg(target_arch = "x86_64")]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl CpuTarget for Avx2 {
    type Half = F16c;

    fn kernel<E: Element, O: FoldOp>() -> Kernel {
        /// # Safety
        ///
        /// The CPU must have the features, and the task must meet the requirements of
        /// `kernel::run`.
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn run<E: Element, O: FoldOp>(task: &FoldTask) {
            // SAFETY: the caller vouches for the task.
            unsafe { kernel::run::<E, O>(task) }
        }
        run::<E, O>
    }
}

fn by_type<T: CpuTarget>(dtype: DType, op: ReduceOp) -> Kernel {
    match dtype {
        DType::U8 => by_op::<T, u8>(op),
        DType::I8 => by_op::<T, i8>(op),
        DType::U16 => by_op::<T, u16>(op),
        DType::I16 => by_op::<T, i16>(op),
        DType::I32 => by_op::<T, i32>(op),
        DType::I64 => by_op::<T, i64>(op),
        DType::F16 => by_op::<T, T::Half>(op),
        DType::BF16 => by_op::<T, Pairs<Bf16>>(op),
        DType::F32 => by_op::<T, f32>(op),
        DType::F64 => by_op::<T, f64>(op),
        DType::Bool => by_op::<T, Bool>(op),
    }
}

fn by_op<T: CpuTarget, E: Element>(op: ReduceOp) -> Kernel {
    match op {
        // The only fold that Adasum needs has one source, which is scaled.
        ReduceOp::Sum | ReduceOp::Adasum => T::kernel::<E, Sum>(),
        ReduceOp::Min => T::kernel::<E, Min>(),
        ReduceOp::Max => T::kernel::<E, Max>(),
        ReduceOp::Product => T::kernel::<E, Product>(),
    }
}
