//! What goes wrong on GPUs is an error that says what, in time; nothing waits for ever.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ronde_control::negotiate::CollectiveKind;
use ronde_control::{DType, Rank, ReduceOp};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Outcome};
use ronde_testkit::World;

use crate::standin::{Standin, Stream, eventually, request};

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn a_death_ends_a_collective_that_is_already_on_the_gpu() {
    let standin = Standin::with("devices=3,hang=ncclAllReduce");
    let (launched, done) = (Barrier::new(3), Barrier::new(3));
    World::new(3).run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        let tensor = stream.floats(&[1.0; 10]);
        let outcome =
            stream.reduce(rank, request("x", sum(), DType::F32, &[&[10]]), &[&tensor]).unwrap();
        let Outcome::Launched { done: event, .. } = outcome else { panic!("{outcome:?}") };
        assert!(!event.is_done().unwrap());
        launched.wait();
        let start = Instant::now();
        if rank.rank() == 2 {
            rank.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
        } else {
            // Nobody calls anything: the engine's own thread ends what hangs, and the caller's
            // stream goes on.
            eventually(|| event.is_done().unwrap());
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
            stream.read(&tensor);
            let again = request("y", sum(), DType::F32, &[&[10]]);
            let error = stream.reduce(rank, again, &[&tensor]).unwrap_err();
            assert_eq!(error.blames(), Some(Rank(2)), "{error}");
        }
        done.wait();
    });
}

#[test]
fn an_error_of_nccl_or_the_driver_ends_the_world_with_its_text() {
    for (fault, expected) in [
        ("fail=ncclAllReduce", "NCCL error 3 in ncclAllReduce"),
        ("fail=cuStreamWaitEvent", "CUDA error 999 in cuStreamWaitEvent"),
        ("sticky=709", "the program has reset or shut down CUDA"),
    ] {
        let standin = Standin::with("devices=2");
        let ready = Barrier::new(2);
        let texts = World::new(2).run(|rank| {
            let stream = Stream::on(&standin.gpu(rank.rank() as u32));
            let tensor = stream.floats(&[1.0; 10]);
            let first = request("x", sum(), DType::F32, &[&[10]]);
            stream.reduce(rank, first, &[&tensor]).unwrap();
            stream.read(&tensor);
            let tensors = stream.tensors(&[&tensor]);
            ready.wait();
            if rank.rank() == 0 {
                standin.configure(fault);
            }
            ready.wait();
            let second = request("y", sum(), DType::F32, &[&[10]]);
            let error = Stream::submit(rank, second, tensors).unwrap_err();
            ready.wait();
            if rank.rank() == 0 {
                standin.configure("reset,devices=2");
            }
            ready.wait();
            error.to_string()
        });
        assert!(texts.iter().any(|text| text.contains(expected)), "{fault}: {texts:?}");
    }
}

#[test]
fn a_death_ends_the_wait_for_a_rank_that_never_connects() {
    for call in ["ncclCommInitRankConfig", "ncclCommSplit"] {
        let standin = Standin::with(&format!("devices=2,hang={call}"));
        let submitted = Barrier::new(2);
        World::new(2).run(|rank| {
            let stream = Stream::on(&standin.gpu(rank.rank() as u32));
            let tensor = stream.floats(&[1.0; 10]);
            let request = request("x", sum(), DType::F32, &[&[10]]);
            let tensors = stream.tensors(&[&tensor]);
            let ticket = rank.engine.submit(request, tensors, AfterSubmit::GoesOn).unwrap();
            submitted.wait();
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(50));
                rank.launcher.lose(Rank(1), "was killed by signal 9 (SIGKILL)");
            } else {
                let error = rank.wait(&ticket).unwrap_err();
                assert_eq!(error.blames(), Some(Rank(1)), "{call}: {error}");
            }
        });
    }
}

#[test]
fn an_error_that_nccl_reports_later_ends_the_world() {
    let standin = Standin::with("devices=2,hang=ncclAllReduce");
    let launched = Barrier::new(2);
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        let tensor = stream.floats(&[1.0; 10]);
        let first = request("x", sum(), DType::F32, &[&[10]]);
        let outcome = stream.reduce(rank, first, &[&tensor]).unwrap();
        let Outcome::Launched { done, .. } = outcome else { panic!("{outcome:?}") };
        launched.wait();
        if rank.rank() == 0 {
            standin.configure("fail=ncclCommGetAsyncError:1+:6");
        }
        eventually(|| done.is_done().unwrap());
        eventually(|| rank.engine.verdict().is_some());
    });
}

#[test]
fn too_little_memory_on_the_gpu_is_an_error_that_says_so() {
    let standin = Standin::with("devices=2");
    let (ready, over) = (Barrier::new(2), Barrier::new(2));
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        let (a, b) = (stream.floats(&[1.0; 1000]), stream.floats(&[1.0; 1000]));
        ready.wait();
        if rank.rank() == 0 {
            standin.configure("memory=1K");
        }
        ready.wait();
        let both = request("x", sum(), DType::F32, &[&[1000], &[1000]]);
        let error = stream.reduce(rank, both, &[&a, &b]).unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
        assert!(error.contains("HOROVOD_FUSION_THRESHOLD"), "{error}");
        over.wait();
    });
}

#[test]
fn old_libraries_and_missing_gpus_are_named() {
    let standin = Standin::with("driver=11010");
    let error = standin.libraries().err().unwrap().to_string();
    assert!(error.contains("supports CUDA 11.1, and Ronde needs 11.4"), "{error}");
    standin.configure("reset,nccl=21300");
    let libraries = standin.libraries().unwrap();
    let error = libraries.nccl().err().unwrap().to_string();
    assert!(error.contains("NCCL 2.13.0") && error.contains("2.14.0 or newer"), "{error}");
    let error = ronde_core::device::Gpu::open(&libraries, 7).err().unwrap().to_string();
    assert!(error.contains("there is no GPU 7: this process sees 1"), "{error}");
}

#[test]
fn a_rank_keeps_to_one_gpu() {
    let standin = Standin::with("devices=4");
    World::new(2).run(|rank| {
        let mine = Stream::on(&standin.gpu(rank.rank() as u32));
        let first = mine.floats(&[1.0]);
        mine.reduce(rank, request("x", sum(), DType::F32, &[&[1]]), &[&first]).unwrap();
        let other = Stream::on(&standin.gpu(rank.rank() as u32 + 2));
        let second = other.floats(&[1.0]);
        let error = other.reduce(rank, request("y", sum(), DType::F32, &[&[1]]), &[&second]);
        let Err(Error::Invalid(text)) = error else { panic!("{error:?}") };
        assert!(text.contains("earlier tensors were on GPU"), "{text}");
        rank.barrier("end").unwrap();
    });
}

#[test]
fn a_world_of_one_copies_and_scales() {
    let standin = Standin::with("devices=1,lag=1ms");
    World::new(1).run(|rank| {
        let stream = Stream::on(&standin.gpu(0));
        let tensor = stream.floats(&[1.0, 2.0]);
        let (op, prescale, postscale) = (ReduceOp::Sum, 3.0, 1.0);
        let kind = CollectiveKind::Allreduce { op, prescale, postscale };
        stream.reduce(rank, request("x", kind, DType::F32, &[&[2]]), &[&tensor]).unwrap();
        assert_eq!(stream.read_floats(&tensor), [3.0, 6.0]);
        let gather = request("g", CollectiveKind::Allgather, DType::F32, &[&[2]]);
        let (outcome, made) = stream.make(rank, gather, &[&tensor]);
        outcome.unwrap();
        assert_eq!(stream.read_floats(&made[0]), [3.0, 6.0]);
    });
}
