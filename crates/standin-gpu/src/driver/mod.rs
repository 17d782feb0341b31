//! The driver, `libcuda.so.1`: devices, memory, streams, events and kernels over host memory.
//!
//! Each exported function is a few lines that call [`driver`], which applies the configured faults
//! and turns a `Result` into the code that C expects.

mod codes;
mod copies;
pub(crate) mod devices;
mod events;
mod kernels;
pub(crate) mod memory;
pub(crate) mod streams;

use crate::config::{self, CallPlan};

pub(crate) use codes::{CuCode, CuResult};

/// Runs a function of the driver that needs `cuInit` to have been called.
fn driver(symbol: &'static str, body: impl FnOnce(&CallPlan) -> CuResult) -> i32 {
    before_init(symbol, |call| {
        if !devices::is_initialized() {
            return Err(CuCode::NOT_INITIALIZED);
        }
        body(call)
    })
}

/// Runs a function of the driver that works at any time.
fn before_init(symbol: &'static str, body: impl FnOnce(&CallPlan) -> CuResult) -> i32 {
    let call = config::call(symbol);
    if let Some(code) = call.failure {
        return code.unwrap_or(CuCode::UNKNOWN.0);
    }
    match config::read().sticky {
        0 => {}
        code => return code,
    }
    match body(&call) {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

/// Writes a result; null is an invalid argument.
fn answer<T>(to: *mut T, value: T) -> CuResult {
    if crate::pointers::put(to, value) { Ok(()) } else { Err(CuCode::INVALID_VALUE) }
}
