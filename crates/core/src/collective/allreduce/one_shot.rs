//! Small buckets in shared memory: everybody publishes all, everybody reduces all.

use crate::buffer::Operands;
use crate::error::Error;
use crate::group::Shared;
use crate::reduce::{Reduction, Term, combine};

/// One step: each rank copies its bucket into its staging memory, waits for the others' copies, and
/// reduces all of them, in rank order, straight into the target. One exchange of cache lines is
/// all that the ranks wait for; that every rank does the whole arithmetic costs less than a second
/// exchange would.
pub(in super::super) fn one_shot(
    shared: &mut Shared<'_>,
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
