//! Streams run by themselves and events order them: what is not waited for is not there yet.

use std::ffi::c_void;

use crate::interface::*;

#[test]
fn who_does_not_wait_for_the_event_reads_old_data() {
    let _turn = Turn::with("hang=cuMemsetD8Async:1");
    enter(0);
    let (writer, reader, written) = (stream(), stream(), event());
    let (data, copy) = (upload(&[1; 64]), room(64));
    assert_eq!(cuMemsetD8Async(data, 2, 64, writer), 0);
    assert_eq!(cuEventRecord(written, writer), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(copy, data, 64, reader), 0);
    assert_eq!(cuStreamSynchronize(reader), 0);
    assert_eq!(download(copy, 64), [1; 64]);
    assert_eq!([cuEventQuery(written), cuStreamQuery(writer)], [NOT_READY; 2]);
    assert_eq!(cuStreamDestroy_v2(writer), 0);
}

#[test]
fn who_waits_for_the_event_reads_new_data() {
    let _turn = Turn::with("lag=cuMemsetD8Async:50ms");
    enter(0);
    let (writer, reader, written, done) = (stream(), stream(), event(), event());
    let (data, copy) = (upload(&[1; 64]), room(64));
    assert_eq!(cuMemsetD8Async(data, 2, 64, writer), 0);
    assert_eq!(cuEventRecord(written, writer), 0);
    assert_eq!(cuStreamWaitEvent(reader, written, 0), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(copy, data, 64, reader), 0);
    assert_eq!(cuEventRecord(done, reader), 0);
    assert_eq!(cuEventSynchronize(done), 0);
    assert_eq!(download(copy, 64), [2; 64]);
}

#[test]
fn a_wait_is_for_the_latest_record_at_the_time_of_the_call() {
    let _turn = Turn::with("hang=cuMemsetD8Async:2");
    enter(0);
    let (first, second, waiting, event) = (stream(), stream(), stream(), event());
    let data = room(8);
    // Never recorded: complete.
    assert_eq!(cuEventQuery(event), 0);
    assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
    assert_eq!(cuMemsetD8Async(data, 1, 8, first), 0);
    assert_eq!(cuEventRecord(event, first), 0);
    assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
    // A later record, which is never reached, does not matter to the wait before.
    assert_eq!(cuMemsetD8Async(data, 2, 8, second), 0);
    assert_eq!(cuEventRecord(event, second), 0);
    assert_eq!(cuStreamSynchronize(waiting), 0);
    assert_eq!(cuEventQuery(event), NOT_READY);
    assert_eq!(cuStreamWaitEvent(waiting, event, 0), 0);
    assert_eq!(cuStreamQuery(waiting), NOT_READY);
    assert_eq!(cuStreamDestroy_v2(second), 0);
    assert_eq!(cuStreamSynchronize(waiting), 0);
}

#[test]
fn an_event_of_the_context_waits_for_all_its_streams() {
    let _turn = Turn::with("hang=cuMemsetD8Async:1");
    let context = enter(0);
    let (busy, _idle, all) = (stream(), stream(), event());
    assert_eq!(cuMemsetD8Async(room(8), 1, 8, busy), 0);
    assert_eq!(cuCtxRecordEvent(context, all), 0);
    assert_eq!(cuEventQuery(all), NOT_READY);
    assert_eq!(cuStreamDestroy_v2(busy), 0);
    assert_eq!(cuEventSynchronize(all), 0);
}

#[test]
fn events_tell_how_long_the_work_between_them_took() {
    let _turn = Turn::with("lag=20ms");
    enter(0);
    let (stream, start, end) = (stream(), event(), event());
    let early = cuEventElapsedTime(&mut 0.0, start, end);
    assert_eq!(early, 400, "never recorded");
    assert_eq!(cuEventRecord(start, stream), 0);
    assert_eq!(cuMemsetD8Async(room(8), 1, 8, stream), 0);
    assert_eq!(cuEventRecord(end, stream), 0);
    assert_eq!(cuEventSynchronize(end), 0);
    let elapsed: f32 = made(|to| cuEventElapsedTime(to, start, end));
    assert!(elapsed >= 19.0, "{elapsed}");
}

#[test]
fn the_default_stream_is_one_queue_of_the_context() {
    let _turn = Turn::with("devices=2,lag=10ms");
    enter(0);
    let (data, copy) = (upload(&[1; 8]), room(8));
    assert_eq!(cuMemsetD8Async(data, 3, 8, 0), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(copy, data, 8, 0), 0);
    assert_eq!(cuStreamSynchronize(0), 0);
    assert_eq!(download(copy, 8), [3; 8]);
}

#[test]
fn a_kernel_is_known_by_name_and_its_parameters_are_copied() {
    let _turn = Turn::with("lag=cuLaunchKernel:20ms");
    enter(0);
    let (from, to) = (upload_floats(&[1.0, -2.0, 8.0]), upload_floats(&[0.0; 3]));
    let module = made(|to| cuModuleLoadData(to, c".version 8.0".as_ptr()));
    let unknown = cuModuleGetFunction(&mut 0, module, c"no_such_kernel".as_ptr());
    assert_eq!(unknown, 500);
    let function = made(|to| cuModuleGetFunction(to, module, c"ronde_copy_ranges".as_ptr()));
    let mut ranges = [0_u64; 504];
    ranges[..3].copy_from_slice(&[from as u64, to as u64, 8]);
    let mut count = 1_u32;
    let parameters = [(&raw const ranges).cast::<c_void>(), (&raw const count).cast()];
    let (stream, none) = (stream(), std::ptr::null());
    let launch = |threads| {
        cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters.as_ptr(), none)
    };
    assert_eq!(launch(2048), 1, "too many threads");
    assert_eq!(launch(256), 0);
    (ranges, count) = ([0; 504], 0);
    assert_eq!((ranges[0], count), (0, 0));
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(download_floats(to, 3), [1.0, -2.0, 0.0]);
}

#[test]
fn a_stream_knows_its_device() {
    let _turn = Turn::with("devices=2");
    enter(1);
    let own = stream();
    let context = made(|to| cuStreamGetCtx(own, to));
    assert_eq!(made(|to| cuCtxGetDevice(to)), 1);
    enter(0);
    assert_eq!(made(|to| cuCtxGetDevice(to)), 0);
    // The default stream is that of the current context.
    assert_ne!(made(|to| cuStreamGetCtx(0, to)), context);
    assert_eq!(cuCtxSetCurrent(context), 0);
    assert_eq!(made(|to| cuCtxGetDevice(to)), 1);
    assert_eq!(cuStreamGetCtx(77, &mut 0), 400);
}
