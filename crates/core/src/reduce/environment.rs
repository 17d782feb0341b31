//! The floating-point environment that reductions run in.
//!
//! A waiting thread drives, so arithmetic may run on one of the user's threads, and the program may
//! have set that thread to flush denormal numbers to zero (`torch.set_flush_denormal`). Other
//! ranks, and this rank's background thread, might not flush, so their bits would differ.

/// Runs `work` with denormals enabled and rounding to nearest, whatever the thread's setting, and
/// restores that setting.
pub(crate) fn in_plain_environment<T>(work: impl FnOnce() -> T) -> T {
    let _guard = FpGuard(control::swap(control::PLAIN));
    work()
}

struct FpGuard(u64);

impl Drop for FpGuard {
    fn drop(&mut self) {
        control::swap(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// All exceptions masked, rounding to nearest, no flushing.
    pub(super) const PLAIN: u64 = 0x1f80;

    pub(super) fn swap(new: u64) -> u64 {
        let (mut old, new) = (0u32, new as u32);
        // SAFETY: stores the control word into a local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut old, options(nostack, preserves_flags)) };
        if old & FLUSHES != 0 || new & FLUSHES != 0 {
            // SAFETY: both words are valid: one is the default, the other was in effect before.
            unsafe {
                asm!("ldmxcsr [{}]", in(reg) &raw const new, options(nostack, preserves_flags));
            };
        }
        u64::from(old)
    }

    /// Flush to zero, denormals are zero, and the two bits of the rounding mode.
    const FLUSHES: u32 = 0x8040 | 0x6000;
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) const PLAIN: u64 = 0;

    pub(super) fn swap(new: u64) -> u64 {
        let old: u64;
        // SAFETY: reads the control register.
        unsafe { asm!("mrs {}, fpcr", out(reg) old, options(nomem, nostack, preserves_flags)) };
        if old != new {
            // SAFETY: the value is the default, or was in effect before.
            unsafe { asm!("msr fpcr, {}", in(reg) new, options(nomem, nostack, preserves_flags)) };
        }
        old
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) const PLAIN: u64 = 0;

    pub(super) fn swap(new: u64) -> u64 {
        new
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use ronde_control::{DType, ReduceOp};

    use super::*;
    use crate::reduce::{Reduction, fold};

    #[test]
    fn a_thread_that_flushes_denormals_reduces_like_all_others_and_keeps_its_setting() {
        let before = control::swap(control::PLAIN | 0x8040);
        let (a, b) = (f32::from_bits(1), f32::from_bits(2));
        let sum = || {
            let mut sum = 0f32;
            let sources = [(&raw const a).cast(), (&raw const b).cast()];
            let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
            let reduction = Reduction { dtype: DType::F32, op, prescale, postscale };
            // SAFETY: one element each.
            unsafe { fold((&raw mut sum).cast(), &sources, 1, &reduction) };
            sum.to_bits()
        };
        let flushed = sum();
        let plain = in_plain_environment(sum);
        let flushed_again = sum();
        control::swap(before);
        assert_eq!((flushed, plain, flushed_again), (0, 3, 0));
    }
}
