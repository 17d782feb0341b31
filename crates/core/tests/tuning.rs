//! Results are correct whatever the tuning: a threshold may exceed what the memory allows.

use ronde_control::ReduceOp;
use ronde_control::negotiate::CollectiveKind;
use ronde_testkit::{Tensor, World};

#[test]
fn a_tensor_larger_than_the_staging_memory_is_not_reduced_in_one_shot() {
    let world = World::new(2).with(|settings| settings.tuning.one_shot = u64::MAX);
    world.run(|member| {
        for length in [1000, 100_000, 1_000_000] {
            let tensor = Tensor::floats(&vec![1.0; length]);
            let kind =
                CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
            member.run(&format!("{length}"), kind, &tensor, &tensor).unwrap();
            assert!(tensor.as_floats().iter().all(|value| *value == 2.0), "{length}");
        }
    });
}
