//! Memory is registered, limited, and its misuse is an error as on a GPU.

use crate::interface::*;

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_ORDINAL: i32 = 9;

#[test]
fn a_pointer_tells_where_it_points() {
    let _turn = Turn::with("devices=3");
    let context = enter(2);
    let (device, host, ours) = (room(100), pinned(100), 0_u64);
    let ask = |attribute, address| {
        let mut answer = 0;
        (cuPointerGetAttribute(&mut answer, attribute, address), answer)
    };
    assert_eq!(ask(DEVICE_ORDINAL, device + 99), (0, 2));
    assert_eq!(ask(MEMORY_TYPE, device), (0, 2));
    assert_eq!(ask(MEMORY_TYPE, host), (0, 1));
    assert_eq!(ask(CONTEXT, device), (0, context as u64));
    assert_eq!(ask(MEMORY_TYPE, (&raw const ours) as usize), (1, 0));
    assert_eq!(cuMemFree_v2(device), 0);
    assert_eq!(ask(DEVICE_ORDINAL, device), (1, 0));
}

#[test]
fn memory_of_a_device_is_limited() {
    let _turn = Turn::with("memory=1M,devices=7");
    // A device that no other test has left memory on.
    enter(6);
    let first = room(768 << 10);
    assert_eq!(cuMemAlloc_v2(&mut 0, 512 << 10), 2);
    let (mut free, mut total) = (0, 0);
    assert_eq!(cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!((free, total), (256 << 10, 1 << 20));
    let stream = stream();
    assert_eq!(cuMemFreeAsync(first, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(cuMemFree_v2(room(1 << 20)), 0);
}

#[test]
fn memory_that_is_freed_too_early_is_an_illegal_address() {
    let _turn = Turn::with("hang=cuMemsetD8Async:1");
    enter(0);
    let (blocked, user, owner, gate) = (stream(), stream(), stream(), event());
    let data = room(64);
    assert_eq!(cuMemsetD8Async(room(8), 1, 8, blocked), 0);
    assert_eq!(cuEventRecord(gate, blocked), 0);
    assert_eq!(cuStreamWaitEvent(user, gate, 0), 0);
    assert_eq!(cuMemsetD8Async(data, 1, 64, user), 0);
    // Without an event between the two streams, the free comes first.
    assert_eq!(cuMemFreeAsync(data, owner), 0);
    assert_eq!(cuStreamSynchronize(owner), 0);
    assert_eq!(cuMemsetD8Async(data, 1, 64, owner), 1, "known to be free at the call");
    assert_eq!(cuStreamDestroy_v2(blocked), 0);
    assert_eq!(cuStreamSynchronize(user), 700);
    assert_eq!(cuMemAlloc_v2(&mut 0, 8), 700, "the error sticks");
}

#[test]
fn a_destroyed_context_is_an_error() {
    let _turn = Turn::with("devices=5");
    enter(4);
    let (stream, event, data) = (stream(), event(), room(8));
    assert_eq!(cuMemsetD8Async(data, 1, 8, stream), 0);
    assert_eq!([0; 2].map(|_| cuDevicePrimaryCtxRelease_v2(4)), [0, 201]);
    // The codes that an H200 gave.
    let codes = [
        cuMemAlloc_v2(&mut 0, 8),
        cuMemFree_v2(data),
        cuStreamQuery(stream),
        cuStreamDestroy_v2(stream),
        cuEventQuery(event),
        cuEventRecord(event, stream),
        cuMemsetD8Async(data, 1, 8, stream),
        cuMemsetD8Async(data, 1, 8, 0),
    ];
    assert_eq!(codes, [709; 8]);
    assert_eq!(cuPointerGetAttribute(&mut 0, DEVICE_ORDINAL, data), 1);
    enter(4);
    assert_eq!(cuMemFree_v2(room(8)), 0);
    assert_eq!(cuStreamQuery(stream), 709, "it belonged to the context before");
}

#[test]
fn only_what_has_no_other_way_to_know_needs_a_current_context() {
    let _turn = Turn::with("");
    enter(0);
    let (stream, event, data) = (stream(), event(), room(8));
    assert_eq!(cuCtxSetCurrent(0), 0);
    // The codes that an H200 gave.
    let without = [
        cuMemAlloc_v2(&mut 0, 8),
        cuMemHostAlloc(&mut 0, 8, 0),
        cuStreamCreateWithPriority(&mut 0, 1, 0),
        cuEventCreate(&mut 0, 0),
        cuMemsetD8Async(data, 1, 8, 0),
        cuEventRecord(event, 0),
        cuStreamWaitEvent(0, event, 0),
    ];
    assert_eq!(without, [201; 7]);
    let with_handles = [
        cuMemsetD8Async(data, 1, 8, stream),
        cuEventRecord(event, stream),
        cuStreamWaitEvent(stream, event, 0),
        cuEventSynchronize(event),
        cuStreamSynchronize(stream),
        cuMemFreeAsync(data, stream),
        cuStreamDestroy_v2(stream),
    ];
    assert_eq!(with_handles, [0; 7]);
}
