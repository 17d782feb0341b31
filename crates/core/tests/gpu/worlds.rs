//! Process sets, ranks that have joined, and ranks that disagree about the device.

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DType, DeviceKind, ReduceOp};
use ronde_core::engine::AfterSubmit;
use ronde_testkit::{Tensor, World};

use crate::standin::{PATHS, Standin, Stream, gpu_of, request};

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn every_process_set_has_its_own_communicator() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(4).run(|rank| {
            let stream = Stream::on(&standin.gpu(gpu_of(path, rank.rank())));
            let even = rank.add_set(&[0, 2]).unwrap();
            let odd = rank.add_set(&[1, 3]).unwrap();
            let set = if rank.rank() % 2 == 0 { even } else { odd };
            for _ in 0..3 {
                let tensor = stream.floats(&[rank.rank() as f32]);
                let request = Request { set, ..request("x", sum(), DType::F32, &[&[1]]) };
                stream.reduce(rank, request, &[&tensor]).unwrap();
                let expected = if rank.rank() % 2 == 0 { 2.0 } else { 4.0 };
                assert_eq!(stream.read_floats(&tensor), [expected], "{path}");
            }
            rank.barrier("end").unwrap();
            rank.remove_set(even).unwrap();
            let tensor = stream.floats(&[1.0]);
            stream.reduce(rank, request("y", sum(), DType::F32, &[&[1]]), &[&tensor]).unwrap();
            assert_eq!(stream.read_floats(&tensor), [4.0], "{path}");
        });
    }
}

#[test]
fn a_rank_that_has_joined_takes_part_with_zeros() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(3).run(|rank| {
            let stream = Stream::on(&standin.gpu(gpu_of(path, rank.rank())));
            // Rank 2 never had anything on its GPU.
            if rank.rank() < 2 {
                for step in 0..4 {
                    let (a, b) = (stream.floats(&[1.0; 500]), stream.floats(&[step as f32]));
                    let request = request("x", sum(), DType::F32, &[&[500], &[1]]);
                    stream.reduce(rank, request, &[&a, &b]).unwrap();
                    assert_eq!(stream.read_floats(&a), [2.0; 500], "{path}");
                    assert_eq!(stream.read_floats(&b), [2.0 * step as f32], "{path}");
                }
            }
            rank.join().unwrap();
        });
    }
}

#[test]
fn a_rank_that_joins_later_keeps_its_gpu() {
    let standin = Standin::with("devices=2");
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        for step in 0..3 {
            if rank.rank() == 1 && step > 0 {
                break;
            }
            let (a, b) = (stream.floats(&[1.0; 7]), stream.floats(&[2.0]));
            let request = request("x", sum(), DType::F32, &[&[7], &[1]]);
            stream.reduce(rank, request, &[&a, &b]).unwrap();
            let ranks = if step == 0 { 2.0 } else { 1.0 };
            assert_eq!(stream.read_floats(&a), [ranks; 7]);
            assert_eq!(stream.read_floats(&b), [2.0 * ranks]);
            let alone = stream.floats(&[1.0; 3]);
            let request = crate::standin::request("alone", sum(), DType::F32, &[&[3]]);
            stream.reduce(rank, request, &[&alone]).unwrap();
            assert_eq!(stream.read_floats(&alone), [ranks; 3]);
        }
        rank.join().unwrap();
    });
}

#[test]
fn ranks_that_disagree_about_the_device_are_told_who_has_what() {
    let standin = Standin::with("devices=2");
    World::new(2).run(|rank| {
        let error = if rank.rank() == 0 {
            let stream = Stream::on(&standin.gpu(0));
            let tensor = stream.floats(&[1.0]);
            stream.reduce(rank, request("x", sum(), DType::F32, &[&[1]]), &[&tensor]).unwrap_err()
        } else {
            let tensor = Tensor::floats(&[1.0]);
            rank.run("x", sum(), &tensor, &tensor).unwrap_err()
        };
        let text = error.to_string();
        assert!(text.contains("Mismatched ALLREDUCE CPU/GPU device selection"), "{text}");
        assert!(text.contains("rank 1") && text.contains("CPU"), "{text}");
        rank.barrier("end").unwrap();
    });
}

#[test]
fn what_is_ready_while_the_gpu_works_travels_together() {
    let standin = Standin::with("devices=2,lag=ncclAllReduce:5ms");
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        let tensors: Vec<_> = (0..100).map(|_| stream.floats(&[1.0; 3])).collect();
        let submit = |(index, tensor)| {
            let request = request(&format!("t{index}"), sum(), DType::F32, &[&[3]]);
            assert_eq!(request.device, DeviceKind::Gpu);
            rank.engine.submit(request, stream.tensors(&[tensor]), AfterSubmit::GoesOn).unwrap()
        };
        let tickets: Vec<_> = tensors.iter().enumerate().map(submit).collect();
        for (ticket, tensor) in tickets.iter().zip(&tensors) {
            stream.wait(rank, ticket).unwrap();
            assert_eq!(stream.read_floats(tensor), [2.0; 3]);
        }
    });
}
