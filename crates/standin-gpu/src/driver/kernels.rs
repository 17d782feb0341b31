//! Kernels, known by name: PTX cannot run here.
//!
//! To add one, add a row to [`KERNELS`]: its name in the PTX, the sizes of its parameters in bytes,
//! and a function that does the same. Any image can be loaded, and has all of these kernels.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use super::{CuCode, CuResult, answer, driver, memory, streams};
use crate::handles::Handles;
use crate::pointers;

struct FakeKernel {
    name: &'static str,
    parameters: &'static [usize],
    /// Takes the bytes of the parameters, in order.
    run: fn(&[Vec<u8>]) -> CuResult,
}

const KERNELS: &[FakeKernel] =
    &[FakeKernel { name: "ronde_copy_ranges", parameters: &[4032, 4], run: copy_ranges }];

/// `ronde_copy_ranges(struct { uint64_t from, to, length; } ranges[168], uint32_t count)`.
fn copy_ranges(parameters: &[Vec<u8>]) -> CuResult {
    let [ranges, count] = parameters else { return Err(CuCode::INVALID_VALUE) };
    let count = u32::from_le_bytes(count.as_slice().try_into().unwrap_or_default());
    for range in ranges.as_chunks::<24>().0.iter().take(count as usize) {
        let [from, to, length] =
            [0, 8, 16].map(|at| u64::from_le_bytes(*range[at..].first_chunk().unwrap_or(&[0; 8])));
        let _read = memory::hold(from as usize, length as usize)?;
        let _written = memory::hold(to as usize, length as usize)?;
        pointers::put_bytes(to as usize, &pointers::bytes(from as usize, length as usize));
    }
    Ok(())
}

struct FakeModule;

static MODULES: Handles<FakeModule> = Handles::new();
static FUNCTIONS: Handles<&'static FakeKernel> = Handles::new();

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> i32 {
    driver("cuModuleLoadData", |_| {
        super::devices::current()?;
        if image.is_null() {
            return Err(CuCode::INVALID_VALUE);
        }
        answer(module, MODULES.add(Arc::new(FakeModule)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> i32 {
    driver("cuModuleUnload", |_| MODULES.remove(module).map(|_| ()).ok_or(CuCode::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(to: *mut usize, module: usize, name: *const c_char) -> i32 {
    driver("cuModuleGetFunction", |_| {
        MODULES.find(module).ok_or(CuCode::INVALID_HANDLE)?;
        let name = pointers::text(name).ok_or(CuCode::INVALID_VALUE)?;
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name).ok_or(CuCode::NOT_FOUND)?;
        answer(to, FUNCTIONS.add(Arc::new(kernel)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: usize,
    parameters: *const *const u8,
    extra: *const *const c_void,
) -> i32 {
    driver("cuLaunchKernel", |call| {
        let kernel = *FUNCTIONS.find(function).ok_or(CuCode::INVALID_HANDLE)?;
        let blocks = [grid_x, grid_y, grid_z].map(u64::from);
        let threads = [block_x, block_y, block_z].map(u64::from);
        let is_possible = blocks.iter().all(|size| *size > 0)
            && threads.iter().all(|size| *size > 0)
            && threads.iter().product::<u64>() <= 1024;
        if !is_possible || !extra.is_null() {
            return Err(CuCode::INVALID_VALUE);
        }
        let stream = streams::find(stream)?;
        // Parameters are copied before the call returns.
        let parameters = copied(parameters, kernel.parameters).ok_or(CuCode::INVALID_VALUE)?;
        stream.work(call, move || (kernel.run)(&parameters));
        Ok(())
    })
}

fn copied(parameters: *const *const u8, sizes: &[usize]) -> Option<Vec<Vec<u8>>> {
    let one = |(index, size): (usize, &usize)| {
        let parameter = pointers::value(parameters.wrapping_add(index))?;
        if parameter.is_null() {
            return None;
        }
        Some(pointers::bytes(parameter as usize, *size))
    };
    sizes.iter().enumerate().map(one).collect()
}
