//! The kernels over regions, whose makers have promised what the kernels ask for.

use super::{Reduction, fold};
use crate::buffer::Region;

/// [`fold`] over regions of equal length; the target may be one of the sources.
pub(crate) fn fold_regions(target: Region, sources: &[Region], reduction: &Reduction) {
    let length = target.length();
    assert!(sources.iter().all(|source| source.length() == length), "regions of equal length");
    let count = length / reduction.dtype.size();
    /// Most worlds fit here, and then nothing is allocated.
    const FEW: usize = 16;
    if sources.len() <= FEW {
        let mut starts = [std::ptr::null(); FEW];
        for (start, source) in starts.iter_mut().zip(sources) {
            *start = source.start().cast_const();
        }
        // SAFETY: a region is valid for its length, and the algorithms agree on who touches it.
        return unsafe { fold(target.start(), &starts[..sources.len()], count, reduction) };
    }
    let starts: Vec<_> = sources.iter().map(|source| source.start().cast_const()).collect();
    // SAFETY: as above.
    unsafe { fold(target.start(), &starts, count, reduction) };
}
