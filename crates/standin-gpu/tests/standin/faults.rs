//! Every fault that can be configured happens, and where a hang ends.

use std::ffi::c_char;
use std::time::Duration;

use ronde_standin_gpu::SYMBOLS;

use crate::interface::*;

#[test]
fn the_library_exports_all_symbols() {
    let library = ronde_standin_gpu::library(&std::env::current_exe().unwrap()).unwrap();
    #[expect(unsafe_code, reason = "opens a library")]
    // SAFETY: it is ours, and runs nothing when it is opened.
    let library = unsafe { libloading::Library::new(&library) }.unwrap();
    for symbol in SYMBOLS {
        #[expect(unsafe_code, reason = "looks a symbol up")]
        // SAFETY: it is not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.name) };
        assert!(found.is_ok(), "{}", symbol.name);
    }
}

#[test]
fn versions_and_devices_are_as_configured() {
    let _turn = Turn::with("devices=4,driver=11040,nccl=21805");
    assert_eq!(made(|to| cuDeviceGetCount(to)), 4);
    assert_eq!(made(|to| cuDriverGetVersion(to)), 11040);
    assert_eq!(made(|to| ncclGetVersion(to)), 21805);
    configure("devices=0");
    assert_eq!(cuInit(0), 100);
}

#[test]
fn calls_fail_as_configured() {
    let _turn = Turn::with("fail=cuEventCreate:2,fail=ncclGetVersion,fail=cuMemAlloc_v2:1:2");
    enter(0);
    let codes = [0; 3].map(|_| cuEventCreate(&mut 0, 0));
    assert_eq!(codes, [0, 999, 0]);
    assert_eq!([ncclGetVersion(&mut 0), ncclGetVersion(&mut 0)], [3, 3]);
    assert_eq!(cuMemAlloc_v2(&mut 0, 8), 2);
    assert_eq!(cuMemFree_v2(room(8)), 0);
}

#[test]
fn an_error_that_sticks_ends_waits_and_can_be_named() {
    let _turn = Turn::with("hang=cuMemsetD8Async");
    let context = enter(0);
    let stream = stream();
    assert_eq!(cuMemsetD8Async(room(8), 0, 8, stream), 0);
    let waiting = std::thread::spawn(move || {
        cuCtxSetCurrent(context);
        cuStreamSynchronize(stream)
    });
    configure("sticky=709");
    assert_eq!(waiting.join().unwrap(), 709);
    assert_eq!(cuMemAlloc_v2(&mut 0, 8), 709);
    let mut name: *const c_char = std::ptr::null();
    assert_eq!(cuGetErrorName(709, &mut name), 0);
    assert!(!name.is_null());
    configure("sticky=0");
    assert_eq!(cuStreamDestroy_v2(stream), 0);
}

#[test]
fn an_abort_ends_a_collective_that_hangs_and_the_stream_goes_on() {
    let _turn = Turn::with("devices=2,hang=ncclAllReduce:1+");
    ranks(2, |rank| {
        let data = upload_floats(&[1.0]);
        let (done, copy) = (event(), room(4));
        assert_eq!(rank.all_reduce(data, 1), 0);
        assert_eq!(cuEventRecord(done, rank.stream), 0);
        assert_eq!(cuMemcpyDtoDAsync_v2(copy, data, 4, rank.stream), 0);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!([cuEventQuery(done), rank.status()], [NOT_READY, 0]);
        assert_eq!(ncclCommAbort(rank.communicator), 0);
        rank.synchronize();
        assert_eq!(download_floats(copy, 1), [1.0]);
    });
}

#[test]
fn an_abort_ends_a_set_up_that_hangs() {
    let _turn = Turn::with("hang=ncclCommInitRankConfig");
    enter(0);
    let mut communicator = 0;
    let code = ncclCommInitRankConfig(&mut communicator, 1, unique_id(), 0, &NcclConfig::new(0));
    assert_eq!([code, status(communicator)], [IN_PROGRESS; 2]);
    assert_eq!(ncclCommAbort(communicator), 0);
    assert_eq!(ncclCommGetAsyncError(communicator, &mut 0), 4);
}

#[test]
fn who_records_before_the_launch_is_done_records_too_early() {
    let _turn = Turn::with("lag=ncclAllReduce:100ms");
    enter(0);
    let (mut communicator, stream, early) = (0, stream(), event());
    ncclCommInitRankConfig(&mut communicator, 1, unique_id(), 0, &NcclConfig::new(0));
    eventually("the set-up", || status(communicator) == 0);
    configure("hang=ncclAllReduce");
    let data: usize = upload_floats(&[1.0]);
    let launch = || ncclAllReduce(data, data, 1, F32, SUM, communicator, stream);
    assert_eq!(launch(), IN_PROGRESS);
    assert_eq!(cuEventRecord(early, stream), 0);
    eventually("the launch", || status(communicator) == 0);
    assert_eq!(cuEventSynchronize(early), 0);
    assert_eq!(launch(), 0, "only the first is launched later");
    assert_eq!(cuStreamQuery(stream), NOT_READY);
    assert_eq!(ncclCommAbort(communicator), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
}

#[test]
fn an_id_that_nobody_made_is_refused() {
    let _turn = Turn::with("");
    enter(0);
    let id = UniqueId([7; 128]);
    let code = ncclCommInitRankConfig(&mut 0, 1, id, 0, &NcclConfig::new(1));
    assert_eq!(code, 4);
}

#[test]
fn who_does_not_know_the_secret_of_an_id_cannot_join() {
    let _turn = Turn::with("peer-death=error");
    enter(0);
    let (id, config, mut intruder) = (unique_id(), NcclConfig::new(0), 0);
    let mut guess = id;
    // The name of the socket comes first, then the secret.
    guess.0[40] ^= 1;
    assert_eq!(ncclCommInitRankConfig(&mut intruder, 1, guess, 0, &config), IN_PROGRESS);
    eventually("the refusal", || status(intruder) == 6);
    assert_eq!(ncclCommAbort(intruder), 0);
    let invited = Rank::join(id, 0, 1);
    assert_eq!(invited.status(), 0);
    assert_eq!(ncclCommDestroy(invited.communicator), 0);
}
