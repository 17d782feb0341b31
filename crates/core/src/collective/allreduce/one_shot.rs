//! Small buckets in shared memory: everybody publishes all, everybody reduces all.

use super::super::Operands;
use crate::error::Error;
use crate::group::Shared;
use crate::reduce::{Reduction, fold_regions};

/// One step: each rank copies its bucket into its staging memory, waits for the others' copies, and
/// reduces all of them, in rank order, straight into the target. One exchange of cache lines is
/// all that the ranks wait for; that every rank does the whole arithmetic costs less than a second
/// exchange would.
pub(in super::super) fn one_shot(
    shared: &mut Shared<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let length = operands.source.length();
    shared.enter()?;
    operands.source.gather(0..length, shared.staging(shared.me()).part(0..length));
    shared.publish();
    (0..shared.ranks()).try_for_each(|rank| shared.await_published(rank))?;
    for (at, part) in operands.target.parts(0..length) {
        let range = at..at + part.length();
        let sources: Vec<_> =
            (0..shared.ranks()).map(|rank| shared.staging(rank).part(range.clone())).collect();
        fold_regions(part, &sources, reduction);
    }
    shared.finish();
    Ok(())
}
