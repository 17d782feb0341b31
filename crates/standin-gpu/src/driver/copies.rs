//! Copies and fills, which run on their stream.
//!
//! Host memory that is not pinned behaves as the real driver documents: a copy to the device takes
//! the bytes at once, and a copy from the device returns when it is done.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::sync::{Arc, Mutex};

use super::{CuCode, CuResult, driver, memory, streams};
use crate::config::CallPlan;
use crate::handles::lock;
use crate::pointers;

/// An address of the device must be known when the call is made, as the real driver checks.
fn check(address: usize, size: usize) -> CuResult {
    memory::hold(address, size).map(|_| ()).map_err(|_| CuCode::INVALID_VALUE)
}

fn copy_registered(
    from: usize,
    to: usize,
    size: usize,
    stream: usize,
    call: &CallPlan,
) -> CuResult {
    let stream = streams::find(stream)?;
    check(from, size)?;
    check(to, size)?;
    stream.work(call, move || {
        let _held = (memory::hold(from, size)?, memory::hold(to, size)?);
        pointers::copy(from, to, size);
        Ok(())
    });
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, size: usize, stream: usize) -> i32 {
    driver("cuMemcpyDtoDAsync_v2", |call| copy_registered(from, to, size, stream, call))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, size: usize, stream: usize) -> i32 {
    driver("cuMemcpyHtoDAsync_v2", |call| {
        if memory::find(from).is_some() {
            return copy_registered(from, to, size, stream, call);
        }
        let stream = streams::find(stream)?;
        check(to, size)?;
        let bytes = pointers::bytes(from, size);
        stream.work(call, move || {
            let _held = memory::hold(to, size)?;
            pointers::put_bytes(to, &bytes);
            Ok(())
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, size: usize, stream: usize) -> i32 {
    driver("cuMemcpyDtoHAsync_v2", |call| {
        if memory::find(to).is_some() {
            return copy_registered(from, to, size, stream, call);
        }
        let stream = streams::find(stream)?;
        check(from, size)?;
        // If an error ends the wait, the caller may free its memory before the copy runs.
        let is_wanted = Arc::new(Mutex::new(true));
        let waiting = Arc::clone(&is_wanted);
        stream.work(call, move || {
            let _held = memory::hold(from, size)?;
            let is_wanted = lock(&is_wanted);
            if *is_wanted {
                pointers::copy(from, to, size);
            }
            Ok(())
        });
        stream.drain().inspect_err(|_| *lock(&waiting) = false)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: usize, byte: u8, size: usize, stream: usize) -> i32 {
    driver("cuMemsetD8Async", |call| {
        let stream = streams::find(stream)?;
        check(to, size)?;
        stream.work(call, move || {
            let _held = memory::hold(to, size)?;
            pointers::fill(to, byte, size);
            Ok(())
        });
        Ok(())
    })
}
