//! Collectives of every kind and type, groups, and how communicators begin and end.

use std::ffi::{CStr, c_int};

use half::{bf16, f16};

use crate::interface::*;

type Encode = fn(i32) -> Vec<u8>;

/// Each data type by number, and small integers in it.
const DTYPES: [(c_int, Encode); 10] = [
    (0, |value| vec![value as i8 as u8]),
    (1, |value| vec![value as u8]),
    (2, |value| value.to_le_bytes().into()),
    (3, |value| (value as u32).to_le_bytes().into()),
    (4, |value| i64::from(value).to_le_bytes().into()),
    (5, |value| (value as u64).to_le_bytes().into()),
    (6, |value| f16::from_f32(value as f32).to_le_bytes().into()),
    (7, |value| (value as f32).to_le_bytes().into()),
    (8, |value| f64::from(value).to_le_bytes().into()),
    (9, |value| bf16::from_f32(value as f32).to_le_bytes().into()),
];

/// The result of each operator on 1, 2 and 6.
const OPERATORS: [(c_int, i32); 5] = [(0, 9), (1, 12), (2, 6), (3, 1), (4, 3)];

#[test]
fn an_allreduce_works_for_all_types_and_operators() {
    let _turn = Turn::with("devices=3");
    ranks(3, |rank| {
        for (dtype, encode) in DTYPES {
            for (operator, result) in OPERATORS {
                let own = [1, 2, 6][rank.rank];
                let data = upload(&encode(own).repeat(5));
                let (communicator, stream) = (rank.communicator, rank.stream);
                let code = ncclAllReduce(data, data, 5, dtype, operator, communicator, stream);
                assert_eq!(code, 0);
                rank.synchronize();
                let wanted = encode(result).repeat(5);
                let found = download(data, wanted.len());
                assert_eq!(found, wanted, "type {dtype}, operator {operator}");
            }
        }
    });
}

#[test]
fn the_other_collectives_put_everything_where_it_belongs() {
    let _turn = Turn::with("devices=4,lag=1ms");
    ranks(4, |rank| {
        let (own, communicator, stream) = (rank.rank as f32, rank.communicator, rank.stream);
        assert_eq!(made(|to| ncclCommCount(communicator, to)), 4);
        let send = upload_floats(&[own, 10.0 * own, 1.0, 2.0]);
        let receive = room(64);
        assert_eq!(ncclBroadcast(send, receive, 2, F32, 3, communicator, stream), 0);
        rank.synchronize();
        assert_eq!(download_floats(receive, 2), [3.0, 30.0]);
        assert_eq!(ncclAllGather(send, receive, 2, F32, communicator, stream), 0);
        rank.synchronize();
        assert_eq!(download_floats(receive, 8), [0.0, 0.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        assert_eq!(ncclReduceScatter(send, receive, 1, F32, SUM, communicator, stream), 0);
        rank.synchronize();
        assert_eq!(download_floats(receive, 1), [[6.0, 60.0, 4.0, 8.0][rank.rank]]);
        assert_eq!(ncclAllReduce(0, 0, 0, F32, SUM, communicator, stream), 0);
        rank.synchronize();
    });
}

#[test]
fn factors_are_applied_before_the_sum() {
    const ON_DEVICE: c_int = 0;
    const ON_HOST: c_int = 1;
    let _turn = Turn::with("devices=2");
    ranks(2, |rank| {
        let factor = 0.5_f32;
        for (residence, scalar) in
            [(ON_HOST, (&raw const factor) as usize), (ON_DEVICE, upload_floats(&[0.5]))]
        {
            let communicator = rank.communicator;
            let operator =
                made(|to| ncclRedOpCreatePreMulSum(to, scalar, F32, residence, communicator));
            assert!(operator >= 5);
            let data = upload_floats(&[2.0 + rank.rank as f32]);
            let code = ncclAllReduce(data, data, 1, F32, operator, communicator, rank.stream);
            assert_eq!([code, ncclRedOpDestroy(operator, communicator)], [0, 0]);
            rank.synchronize();
            assert_eq!(download_floats(data, 1), [2.5]);
        }
    });
}

#[test]
fn sends_and_receives_in_a_group_do_not_wait_for_each_other() {
    let _turn = Turn::with("devices=3");
    ranks(3, |rank| {
        let (own, communicator, stream) = (rank.rank, rank.communicator, rank.stream);
        let send = upload_floats(&[own as f32, 10.0, 20.0]);
        let receive = room(12);
        assert_eq!(ncclGroupStart(), 0);
        for peer in 0..rank.size {
            let (from, to) = (receive + 4 * peer, peer as c_int);
            assert_eq!(ncclSend(send, 1, F32, to, communicator, stream), 0);
            assert_eq!(ncclRecv(from, 1, F32, to, communicator, stream), 0);
        }
        assert_eq!(rank.all_reduce(send + 4, 2), 0);
        assert_eq!(ncclGroupEnd(), 0);
        rank.synchronize();
        assert_eq!(download_floats(receive, 3), [0.0, 1.0, 2.0]);
        assert_eq!(download_floats(send, 3), [own as f32, 30.0, 60.0]);
        // A failed call fails its group, and nothing of it is launched.
        assert_eq!(ncclGroupStart(), 0);
        assert_eq!(rank.all_reduce(send, 1), 0);
        assert_eq!(ncclSend(send, 1, F32, 9, communicator, stream), 4);
        assert_eq!(ncclGroupEnd(), 4);
    });
}

#[test]
fn one_thread_can_set_up_all_ranks_in_a_group() {
    let _turn = Turn::with("devices=2");
    let (id, config) = (unique_id(), NcclConfig::new(1));
    assert_eq!(ncclGroupStart(), 0);
    let communicators = [0, 1].map(|rank| {
        enter(rank);
        made(|to| ncclCommInitRankConfig(to, 2, id, rank, &config))
    });
    assert_eq!(ncclGroupEnd(), 0);
    for communicator in communicators {
        assert_eq!([status(communicator), ncclCommDestroy(communicator)], [0, 0]);
    }
}

#[test]
fn a_non_blocking_communicator_is_in_progress_until_all_have_come() {
    let _turn = Turn::with("devices=2,in-progress=always");
    enter(0);
    let (id, config, mut first) = (unique_id(), NcclConfig::new(0), 0);
    assert_eq!(ncclCommInitRankConfig(&mut first, 2, id, 0, &config), IN_PROGRESS);
    assert_eq!(status(first), IN_PROGRESS);
    let (stream, data) = (stream(), upload_floats(&[1.0]));
    let other = std::thread::spawn(move || {
        enter(1);
        let rank = Rank::join(id, 1, 2);
        let data = upload_floats(&[2.0]);
        assert_eq!(rank.all_reduce(data, 1), 0);
        rank.synchronize();
        assert_eq!(ncclCommDestroy(rank.communicator), 0);
    });
    eventually("the set-up", || status(first) == 0);
    let code = ncclAllReduce(data, data, 1, F32, SUM, first, stream);
    assert_eq!(code, IN_PROGRESS);
    eventually("the launch", || status(first) == 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(download_floats(data, 1), [3.0]);
    assert_eq!(ncclCommFinalize(first), IN_PROGRESS);
    eventually("the end", || status(first) == 0);
    assert_eq!(ncclCommDestroy(first), 0);
    assert_eq!(ncclCommDestroy(first), 4, "it is gone");
    other.join().unwrap();
}

#[test]
fn an_error_sticks_to_a_non_blocking_communicator() {
    let _turn = Turn::with("");
    enter(0);
    let (data, stream) = (upload_floats(&[1.0]), stream());
    for blocking in [0, 1] {
        let config = NcclConfig::new(blocking);
        let mut communicator = 0;
        let started = ncclCommInitRankConfig(&mut communicator, 1, unique_id(), 0, &config);
        assert_eq!(started, if blocking == 0 { IN_PROGRESS } else { 0 });
        eventually("the set-up", || status(communicator) == 0);
        let reduce = |dtype| ncclAllReduce(data, data, 1, dtype, SUM, communicator, stream);
        let codes = [reduce(99), status(communicator), reduce(F32), ncclCommDestroy(communicator)];
        // What NCCL 2.28.9 returned on an H200.
        assert_eq!(codes, if blocking == 0 { [4; 4] } else { [4, 0, 0, 0] });
        assert_eq!(ncclCommAbort(communicator), if blocking == 0 { 0 } else { 4 });
    }
    assert_eq!(cuStreamSynchronize(stream), 0);
}

#[test]
fn a_call_before_the_set_up_is_done_fails_the_communicator() {
    let _turn = Turn::with("");
    enter(0);
    let (data, stream, mut communicator) = (upload_floats(&[1.0]), stream(), 0);
    let code = ncclCommInitRankConfig(&mut communicator, 2, unique_id(), 0, &NcclConfig::new(0));
    assert_eq!(code, IN_PROGRESS);
    assert_eq!(ncclAllReduce(data, data, 1, F32, SUM, communicator, stream), 4);
    assert_eq!(status(communicator), 4);
    assert_eq!(ncclCommAbort(communicator), 0);
}

#[test]
fn two_ranks_on_one_device_are_refused_on_all_ranks() {
    let _turn = Turn::with("devices=2,nccl=22809");
    let (id, config) = (unique_id(), NcclConfig::new(0));
    let communicators = [(0, 0), (1, 1), (2, 1)].map(|(rank, device)| {
        enter(device);
        let mut communicator = 0;
        let code = ncclCommInitRankConfig(&mut communicator, 3, id, rank, &config);
        assert_eq!(code, IN_PROGRESS);
        communicator
    });
    for communicator in communicators {
        eventually("the refusal", || status(communicator) == 5);
        let text = last_error();
        assert!(text.contains("Duplicate GPU detected"), "{text}");
        assert_eq!(ncclCommAbort(communicator), 0);
    }
}

#[test]
fn ranks_that_disagree_get_an_asynchronous_error() {
    let _turn = Turn::with("devices=2");
    ranks(2, |rank| {
        let data = upload_floats(&[1.0, 2.0]);
        assert_eq!(rank.all_reduce(data, 1 + rank.rank), 0);
        eventually("the error", || rank.status() == 5);
        assert_eq!(ncclCommAbort(rank.communicator), 0);
        rank.synchronize();
    });
}

#[test]
fn memory_of_the_host_is_refused() {
    let _turn = Turn::with("");
    ranks(1, |rank| {
        let ours = [1.0_f32];
        assert_eq!(rank.all_reduce(ours.as_ptr() as usize, 1), 4);
    });
}

#[expect(unsafe_code, reason = "the library returns a C string")]
fn last_error() -> String {
    // SAFETY: it ends with a zero and is never freed.
    unsafe { CStr::from_ptr(ncclGetLastError(0)) }.to_string_lossy().into_owned()
}
