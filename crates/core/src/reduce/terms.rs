//! A safe interface to the kernels: slices guarantee what the kernels require.

use super::{Reduction, fold};

/// One of the sources of a reduction.
#[derive(Clone, Copy, Debug)]
pub enum Term<'a> {
    /// The content of the target before the reduction.
    Target,
    /// Other elements, as many as the target has.
    Of(&'a [u8]),
}

impl<'a> From<Option<&'a [u8]>> for Term<'a> {
    /// An operand without memory of its own is in the target.
    fn from(own: Option<&'a [u8]>) -> Term<'a> {
        own.map_or(Term::Target, Term::Of)
    }
}

/// Writes the terms, reduced in their order, to `target`; see [`fold`].
pub fn combine<'a>(
    target: &mut [u8],
    terms: impl IntoIterator<Item = Term<'a>>,
    reduction: &Reduction,
) {
    let length = target.len();
    let start = target.as_mut_ptr();
    /// Enough for most worlds, which then need no allocation.
    const FEW: usize = 16;
    let (mut few, mut many, mut count) = ([std::ptr::null(); FEW], Vec::new(), 0);
    for term in terms {
        let source = match term {
            Term::Target => start.cast_const(),
            Term::Of(source) => {
                assert_eq!(source.len(), length, "sources have equal lengths");
                source.as_ptr()
            }
        };
        match few.get_mut(count) {
            Some(place) => *place = source,
            None => many.push(source),
        }
        count += 1;
    }
    let sources = match count {
        ..=FEW => &few[..count],
        _ => {
            many.splice(..0, few);
            &many
        }
    };
    // SAFETY: each source is the target itself, or a slice of the same length that nothing writes
    // and that cannot overlap the target, which is borrowed mutably.
    unsafe { fold(start, sources, length / reduction.dtype.size(), reduction) };
}

#[cfg(test)]
mod tests {
    use ronde_control::{DType, ReduceOp};

    use super::*;

    #[test]
    fn any_number_of_terms_is_reduced_in_order_and_the_target_may_be_one() {
        let reduction =
            Reduction { dtype: DType::U8, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        for count in [1, 2, 15, 16, 17, 40] {
            for own in 0..count {
                let mut target = [100; 3];
                let term = |index| if index == own { Term::Target } else { Term::Of(&[1, 2, 3]) };
                combine(&mut target, (0..count).map(term), &reduction);
                let right = [1, 2, 3].map(|each| 100 + each * (count as u8 - 1));
                assert_eq!(target, right, "{count} terms");
            }
        }
    }

    #[test]
    #[should_panic(expected = "sources have equal lengths")]
    fn a_source_of_another_length_is_refused() {
        let reduction =
            Reduction { dtype: DType::U8, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        combine(&mut [0; 3], [Term::Of(&[0; 2])], &reduction);
    }
}
