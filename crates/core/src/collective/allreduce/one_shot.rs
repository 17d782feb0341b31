//! Small buckets in shared memory: every rank publishes its whole bucket and reduces everything.

use crate::buffer::Operands;
use crate::error::Error;
use crate::group::SharedGroup;
use crate::reduce::{Reduction, Term, combine};

/// One step: each rank copies its bucket into its staging memory, waits for the others' copies, and
/// reduces all of them, in rank order, straight into the target. The ranks wait for a single
/// exchange of cache lines. Doing the whole arithmetic on every rank is cheaper than a second
/// exchange.
pub(in super::super) fn one_shot(
    shared: &mut SharedGroup<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let length = operands.length();
    operands.gather(0..length, &mut shared.enter()?[..length]);
    shared.publish();
    let staged = |rank| shared.published(rank, 0..length);
    let staged: Vec<&[u8]> = (0..shared.ranks()).map(staged).collect::<Result<_, _>>()?;
    for (at, part) in operands.target_mut().parts_mut(0..length) {
        let range = at..at + part.len();
        combine(part, staged.iter().map(|staged| Term::Of(&staged[range.clone()])), reduction);
    }
    shared.finish();
    Ok(())
}
