//! Submissions that nothing waits for: their completion callbacks, and where their results go.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::{Rank, ReduceOp};
use ronde_core::Error;
use ronde_core::buffer::{Buffer, Operand};
use ronde_core::engine::{
    AfterSubmit, AllocateResult, CompletionCallback, Engine, Outcome, Tensors,
};
use ronde_testkit::{Tensor, TestRank, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];
const TIME_LIMIT: Duration = Duration::from_secs(20);

type Came = Sender<Result<Outcome, Error>>;

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

fn send(sender: &Came) -> CompletionCallback {
    let sender = sender.clone();
    Box::new(move |outcome| sender.send(outcome).expect("the test receives"))
}

fn in_place(tensor: &Tensor) -> Tensors {
    Tensor::submission(&sum(), [(tensor, tensor)])
}

/// Averages the tensor again and again, each time from the callback of the previous one.
fn chain(engine: &Arc<Engine>, tensor: &Arc<Tensor>, left: usize, sender: Came) {
    let (again, same) = (Arc::downgrade(engine), tensor.clone());
    let done: CompletionCallback = Box::new(move |outcome| match (outcome, left) {
        (Ok(_), 1..) => chain(&again.upgrade().expect("still alive"), &same, left - 1, sender),
        (outcome, _) => sender.send(outcome).expect("the test receives"),
    });
    let average = CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 0.5 };
    engine.submit_then(TestRank::request("again", average, tensor), in_place(tensor), done);
}

#[test]
fn many_submissions_complete_without_a_waiting_thread() {
    for transport in TRANSPORTS {
        for size in 1..=3 {
            World::new(size).over(transport).run(|member| {
                let (sender, outcomes) = channel();
                let tensors: Vec<Tensor> = (0..100).map(|_| Tensor::floats(&[1.0; 7])).collect();
                for (number, tensor) in tensors.iter().enumerate() {
                    let request = TestRank::request(&format!("x{number}"), sum(), tensor);
                    member.engine.submit_then(request, in_place(tensor), send(&sender));
                }
                for _ in &tensors {
                    outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap();
                }
                assert!(tensors.iter().all(|tensor| tensor.as_floats() == [size as f32; 7]));
            });
        }
    }
}

#[test]
fn a_callback_may_submit_under_the_same_name() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).attempt(|member| {
            let engine = Arc::new(member.unwrap().engine);
            let tensor = Arc::new(Tensor::floats(&[engine.place().rank.0 as f32]));
            let (sender, outcomes) = channel();
            // So many that they would overflow the stack if each were called from the previous one.
            chain(&engine, &tensor, 9999, sender);
            outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap();
            assert_eq!(tensor.as_floats(), [0.5]);
        });
    }
}

#[test]
fn memory_is_released_before_completion_is_reported() {
    for transport in TRANSPORTS {
        for size in 1..=2 {
            World::new(size).over(transport).run(|member| {
                let kinds =
                    [sum(), CollectiveKind::Broadcast { root: Rank(0) }, CollectiveKind::Allgather];
                for kind in kinds {
                    let tensor = Arc::new(Tensor::floats(&[1.0; 5]));
                    let (sender, outcomes) = channel();
                    let same = tensor.clone();
                    // Reading a tensor that is lent out would panic.
                    let done: CompletionCallback = Box::new(move |outcome| {
                        sender.send((outcome, same.as_floats())).expect("the test receives");
                    });
                    let tensors = Tensor::submission(&kind, [(&*tensor, &*tensor)]);
                    let is_sum = matches!(kind, CollectiveKind::Allreduce { .. });
                    member.engine.submit_then(TestRank::request("x", kind, &tensor), tensors, done);
                    let (outcome, seen) = outcomes.recv_timeout(TIME_LIMIT).unwrap();
                    outcome.unwrap();
                    assert_eq!(seen, [if is_sum { size as f32 } else { 1.0 }; 5]);
                }
                member.barrier("end").unwrap();
            });
        }
    }
}

#[test]
fn memory_that_does_not_match_the_request_is_refused() {
    World::new(1).run(|member| {
        let (tensor, short) = (Tensor::floats(&[1.0; 5]), Tensor::floats(&[1.0; 4]));
        let refuse = |kind: CollectiveKind, tensors: Tensors| {
            let request = TestRank::request("x", kind, &tensor);
            let refused = member.engine.submit(request, tensors, AfterSubmit::Waits).unwrap_err();
            assert!(refused.to_string().contains("does not match its shapes"), "{refused}");
        };
        refuse(sum(), in_place(&short));
        refuse(sum(), Tensors::NONE);
        refuse(sum(), Tensors::Made(vec![tensor.lend().into()]));
        refuse(CollectiveKind::Barrier, in_place(&tensor));
        refuse(CollectiveKind::Allgather, in_place(&tensor));
        refuse(CollectiveKind::Allgather, Tensors::Made(vec![short.lend().into()]));
        let input = short.lend().into();
        refuse(sum(), Tensors::Given(vec![Operand::Apart { input, output: tensor.lend() }]));
        // All memory has been released.
        assert_eq!((tensor.as_floats().len(), short.as_floats().len()), (5, 4));
    });
}

/// A thread that submits one tensor after another finds most of them done when the call returns, if
/// there is a core for each rank; ranks that are out of step must not lose anything because of
/// that.
#[test]
fn serial_submissions_may_be_done_when_the_call_returns() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (transport, size) in [(Transport::Auto, 2), (Transport::Tcp, 2), (Transport::Auto, 3)] {
        let done_at_once = World::new(size).over(transport).run(|member| {
            let mut at_once = 0;
            for round in 0..400 {
                let tensor = Tensor::floats(&[1.0; 9]);
                let (sender, outcomes) = channel();
                let own = std::thread::current().id();
                let done: CompletionCallback = Box::new(move |outcome| {
                    let by_own = std::thread::current().id() == own;
                    sender.send((outcome, by_own)).expect("the test receives");
                });
                if (round + member.rank()) % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let request = TestRank::request("x", sum(), &tensor);
                member.engine.submit_then(request, in_place(&tensor), done);
                let (outcome, by_own) = outcomes.recv_timeout(TIME_LIMIT).unwrap();
                outcome.unwrap();
                at_once += usize::from(by_own);
                assert_eq!(tensor.as_floats(), [size as f32; 9]);
            }
            assert_eq!(member.engine.missed_wakeups(), 0);
            at_once
        });
        let some = done_at_once.iter().sum::<usize>() > 0;
        assert!(some || size > cores, "{transport:?}, {size} ranks");
    }
}

#[test]
fn results_go_to_memory_allocated_once_their_size_is_known() {
    for transport in TRANSPORTS {
        for size in 1..=3_usize {
            World::new(size).over(transport).run(|member| {
                let me = member.rank();
                let source = Tensor::floats(&vec![me as f32; me + 1]);
                let given = Arc::new(Mutex::new(None));
                let place = given.clone();
                let allocate: AllocateResult = Box::new(move |index, rows| {
                    assert_eq!(index, 0);
                    let tensor = Tensor::floats(&vec![-1.0; rows.iter().sum::<u64>() as usize]);
                    let output = tensor.lend();
                    *place.lock().unwrap() = Some(tensor);
                    Ok(output)
                });
                let (sender, outcomes) = channel();
                let request = TestRank::request("x", CollectiveKind::Allgather, &source);
                let tensors = Tensors::Placed(vec![source.lend().into()], allocate);
                member.engine.submit_then(request, tensors, send(&sender));
                let Outcome::Placed(rows) = outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap()
                else {
                    panic!("the result is elsewhere");
                };
                assert_eq!(rows, [(1..=size as u64).collect::<Vec<_>>()]);
                let expected: Vec<f32> =
                    (0..size).flat_map(|rank| vec![rank as f32; rank + 1]).collect();
                assert_eq!(given.lock().unwrap().as_ref().unwrap().as_floats(), expected);
            });
        }
    }
}

#[test]
fn a_rank_without_memory_for_the_result_fails_alone() {
    for size in 1..=2 {
        World::new(size).run(|member| {
            let tensor = Tensor::floats(&[1.0, 2.0]);
            let (sender, outcomes) = channel();
            let request = TestRank::request("x", CollectiveKind::Allgather, &tensor);
            if member.rank() == 0 {
                let allocators: [AllocateResult; 2] = [
                    Box::new(|_, _| Err("out of memory".into())),
                    Box::new(|_, _| Ok(Buffer::new(4).into())),
                ];
                for (allocate, text) in allocators.into_iter().zip(["out of memory", "has 4 bytes"])
                {
                    let tensors = Tensors::Placed(vec![tensor.lend().into()], allocate);
                    member.engine.submit_then(request.clone(), tensors, send(&sender));
                    let error = outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap_err();
                    assert!(error.to_string().contains(text), "{error}");
                }
            } else {
                for _ in 0..2 {
                    member.run("x", CollectiveKind::Allgather, &tensor, &tensor).unwrap();
                }
            }
            member.barrier("all continue").unwrap();
        });
    }
}

#[test]
fn a_refusal_and_a_lost_rank_reach_the_callback() {
    for transport in TRANSPORTS {
        let ready = std::sync::Barrier::new(2);
        World::new(2).over(transport).run(|member| {
            let (sender, outcomes) = channel();
            let submit = |name| {
                let tensor = Tensor::floats(&[1.0]);
                let request = TestRank::request(name, sum(), &tensor);
                member.engine.submit_then(request, in_place(&tensor), send(&sender));
            };
            if member.rank() == 1 {
                ready.wait();
                member.launcher.lose(Rank(1), "was killed by signal 9 (SIGKILL)");
                return;
            }
            submit("x");
            submit("x");
            let refused = outcomes.recv_timeout(TIME_LIMIT).unwrap();
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            ready.wait();
            let lost = outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap_err();
            assert_eq!(lost.blames(), Some(Rank(1)));
            submit("after the end");
            let late = outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap_err();
            assert_eq!(late.blames(), Some(Rank(1)));
        });
    }
}

#[test]
fn joining_calls_back_with_the_last_rank() {
    for size in 1..=2 {
        World::new(size).run(|member| {
            let (sender, outcomes) = channel();
            member.engine.join_in_then(send(&sender));
            let outcome = outcomes.recv_timeout(TIME_LIMIT).unwrap().unwrap();
            let last = size as u32;
            assert!(matches!(outcome, Outcome::Joined { last: Rank(rank) } if rank < last));
        });
    }
}
