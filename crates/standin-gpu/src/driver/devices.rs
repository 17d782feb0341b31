//! Devices and their primary contexts.
//!
//! `CUDA_VISIBLE_DEVICES` chooses among the configured devices at `cuInit`, as with the real
//! driver. A context that nobody holds any more is destroyed: its streams, events and memory are
//! gone. As with the real driver, it can still be made current, and calls then fail.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CuCode, CuResult, answer, before_init, driver, memory, streams};
use crate::handles::lock;
use crate::{config, pointers};

/// The handle of device 0's context; the others follow at a fixed distance.
const FIRST_CONTEXT: usize = 0x4300_0000;

static DEVICES: Mutex<Option<Vec<FakeDevice>>> = Mutex::new(None);

static NEXT_LIFE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The ordinals of the contexts that this thread has pushed.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone)]
struct FakeDevice {
    /// Its number on the machine, regardless of `CUDA_VISIBLE_DEVICES`.
    physical: usize,
    /// How often its primary context is held.
    holders: usize,
    /// Identifies its current context; a context made later has another number.
    life: u64,
}

pub(crate) fn is_initialized() -> bool {
    lock(&DEVICES).is_some()
}

/// The ordinal of the current context's device.
pub(crate) fn current() -> CuResult<usize> {
    let ordinal =
        CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(CuCode::INVALID_CONTEXT)?;
    life(ordinal)?;
    Ok(ordinal)
}

/// The number of a device on the machine.
pub(crate) fn physical(ordinal: usize) -> Option<usize> {
    lock(&DEVICES).as_ref()?.get(ordinal).map(|device| device.physical)
}

fn count() -> usize {
    lock(&DEVICES).as_ref().map_or(0, Vec::len)
}

/// Identifies a device's current context; a context made later has another number.
pub(super) fn life(ordinal: usize) -> CuResult<u64> {
    let devices = lock(&DEVICES);
    let device = devices.as_ref().and_then(|devices| devices.get(ordinal));
    let alive = device.filter(|device| device.holders > 0);
    alive.map(|device| device.life).ok_or(CuCode::CONTEXT_IS_DESTROYED)
}

/// An error if the context that an object belongs to was destroyed.
pub(super) fn check_life(ordinal: usize, own: u64) -> CuResult {
    if life(ordinal)? == own { Ok(()) } else { Err(CuCode::CONTEXT_IS_DESTROYED) }
}

fn checked(device: c_int) -> CuResult<usize> {
    usize::try_from(device).ok().filter(|ordinal| *ordinal < count()).ok_or(CuCode::INVALID_DEVICE)
}

pub(super) fn handle_of(ordinal: usize) -> usize {
    FIRST_CONTEXT + (ordinal << 8)
}

/// The device of a context, even a destroyed one.
pub(super) fn ordinal_of(context: usize) -> CuResult<usize> {
    let ordinal = context.checked_sub(FIRST_CONTEXT).ok_or(CuCode::INVALID_CONTEXT)? >> 8;
    if ordinal >= count() || handle_of(ordinal) != context {
        return Err(CuCode::INVALID_CONTEXT);
    }
    Ok(ordinal)
}

/// The devices that `CUDA_VISIBLE_DEVICES` names, by number or UUID, up to the first invalid one.
fn visible(devices: usize, chosen: Option<&str>) -> Vec<usize> {
    let Some(chosen) = chosen else { return (0..devices).collect() };
    chosen
        .split(',')
        .map(|name| {
            let name = name.trim();
            let named = |device: &usize| name.len() > 4 && uuid_text(*device).starts_with(name);
            name.parse().ok().filter(|device| *device < devices).or((0..devices).find(named))
        })
        .map_while(|device| device)
        .collect()
}

fn uuid(physical: usize) -> [u8; 16] {
    let mut uuid = *b"ronde-standin\0\0\0";
    uuid[15] = physical as u8;
    uuid
}

fn uuid_text(physical: usize) -> String {
    let hex: String = uuid(physical).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn put_text(to: *mut c_char, room: c_int, text: &str) -> CuResult {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(CuCode::INVALID_VALUE)?;
    if to.is_null() {
        return Err(CuCode::INVALID_VALUE);
    }
    let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
    bytes.push(0);
    pointers::put_bytes(to as usize, &bytes);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> i32 {
    before_init("cuInit", |_| {
        if flags != 0 {
            return Err(CuCode::INVALID_VALUE);
        }
        let seen = {
            let config = config::read();
            let chosen = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            let chosen = chosen.filter(|_| config.heeds_visible_devices);
            visible(config.devices, chosen.as_deref())
        };
        if seen.is_empty() {
            return Err(CuCode::NO_DEVICE);
        }
        let mut devices = lock(&DEVICES);
        let known = devices.iter().flatten().map(|device| device.physical);
        if !known.eq(seen.iter().copied()) {
            *devices = Some(
                seen.iter().map(|&physical| FakeDevice { physical, holders: 0, life: 0 }).collect(),
            );
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> i32 {
    before_init("cuDriverGetVersion", |_| answer(version, config::read().driver))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(to: *mut c_int) -> i32 {
    driver("cuDeviceGetCount", |_| answer(to, count() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> i32 {
    driver("cuDeviceGet", |_| answer(device, checked(ordinal)? as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> i32 {
    driver("cuDeviceGetName", |_| {
        checked(device)?;
        put_text(name, room, "Ronde stand-in GPU")
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, device: c_int) -> i32 {
    driver("cuDeviceTotalMem_v2", |_| {
        checked(device)?;
        answer(to, config::read().memory)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: c_int) -> i32 {
    driver("cuDeviceGetUuid_v2", |_| {
        answer(to, uuid(physical(checked(device)?).ok_or(CuCode::INVALID_DEVICE)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, room: c_int, device: c_int) -> i32 {
    driver("cuDeviceGetPCIBusId", |_| {
        let physical = physical(checked(device)?).ok_or(CuCode::INVALID_DEVICE)?;
        put_text(to, room, &format!("0000:{:02X}:00.0", physical + 1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> i32 {
    driver("cuDevicePrimaryCtxRetain", |_| {
        let ordinal = checked(device)?;
        answer(context, handle_of(ordinal))?;
        if let Some(device) = lock(&DEVICES).as_mut().map(|devices| &mut devices[ordinal]) {
            if device.holders == 0 {
                device.life = NEXT_LIFE.fetch_add(1, Ordering::Relaxed);
            }
            device.holders += 1;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> i32 {
    driver("cuDevicePrimaryCtxRelease_v2", |_| {
        let ordinal = checked(device)?;
        let is_last = match lock(&DEVICES).as_mut().map(|devices| &mut devices[ordinal].holders) {
            None | Some(0) => return Err(CuCode::INVALID_CONTEXT),
            Some(holders) => {
                *holders -= 1;
                *holders == 0
            }
        };
        if is_last {
            streams::cut_off_all_of(ordinal);
            memory::free_all_of(ordinal);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> i32 {
    driver("cuCtxSetCurrent", |_| {
        let ordinal = if context == 0 { None } else { Some(ordinal_of(context)?) };
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(ordinal);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut usize) -> i32 {
    driver("cuCtxGetCurrent", |_| {
        let top = CURRENT.with_borrow(|stack| stack.last().copied());
        answer(context, top.map_or(0, handle_of))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> i32 {
    driver("cuCtxPushCurrent_v2", |_| {
        let ordinal = ordinal_of(context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(ordinal));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> i32 {
    driver("cuCtxPopCurrent_v2", |_| {
        let top = CURRENT.with_borrow_mut(Vec::pop).ok_or(CuCode::INVALID_CONTEXT)?;
        // The pointer may be null.
        let _ = pointers::put(context, handle_of(top));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> i32 {
    driver("cuCtxGetDevice", |_| answer(device, current()? as c_int))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_chosen_by_number_or_uuid() {
        let second = uuid_text(1);
        for (chosen, seen) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("2,0"), vec![2, 0]),
            (Some("1,7,0"), vec![1]),
            (Some(second.as_str()), vec![1]),
        ] {
            assert_eq!(visible(3, chosen), seen, "{chosen:?}");
        }
    }
}
