//! The guarantees of the kernels, checked against one-element arithmetic without loops.
//!
//! Every variant of the kernels that this CPU runs is compared with the reference bit by bit, from
//! and to any address, in place and not, and must not write to the bytes around the destination.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use ronde_control::{DType, ReduceOp};

use super::kernel::FoldTask;
use super::reference::{Source, mask, reference, specials};
use super::variant::Variant;
use super::{Reduction, fold, scale};

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
const FACTORS: [f64; 10] =
    [1.0, 0.5, 1.0 / 3.0, 1.0 / 49.0, -1.0, 0.0, 1e-8, 3e9, f64::INFINITY, f64::NAN];

/// Sources in one piece of memory, at chosen distances from an aligned address.
struct SharedElements {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    size: usize,
    count: usize,
}

impl SharedElements {
    /// Fills the bytes that must not be written.
    const GUARD: u8 = 0xA5;

    fn new(sources: &[Source], size: usize, offsets: &[usize]) -> SharedElements {
        let count = sources.first().map_or(0, Vec::len);
        let stride = (count * size).next_multiple_of(64) + 128;
        let mut bytes = vec![SharedElements::GUARD; (sources.len() + 1) * stride];
        let aligned = bytes.as_ptr().align_offset(64);
        let mut starts = vec![];
        for place in 0..=sources.len() {
            starts.push(aligned + place * stride + offsets[place % offsets.len()]);
        }
        for (source, start) in sources.iter().zip(&starts) {
            for (i, word) in source.iter().enumerate() {
                let at = start + i * size;
                bytes[at..at + size].copy_from_slice(&word.to_le_bytes()[..size]);
            }
        }
        SharedElements { bytes, starts, size, count }
    }

    fn read(&self, place: usize) -> Source {
        let start = self.starts[place];
        let element = |i: usize| {
            let mut word = [0; 8];
            let at = start + i * self.size;
            word[..self.size].copy_from_slice(&self.bytes[at..at + self.size]);
            u64::from_le_bytes(word)
        };
        (0..self.count).map(element).collect()
    }

    /// Folds all sources into the place, with one variant or through the public function, and
    /// checks that nothing else was written.
    fn fold(&mut self, place: usize, variant: Option<Variant>, reduction: &Reduction) -> Source {
        let mut expected = self.bytes.clone();
        let base = self.bytes.as_mut_ptr();
        let (places, _) = self.starts.split_at(self.starts.len() - 1);
        let srcs: Vec<_> =
            places.iter().map(|start| base.wrapping_add(*start).cast_const()).collect();
        let dst = base.wrapping_add(self.starts[place]);
        match variant {
            // SAFETY: every place has space for `count` elements.
            None => unsafe { fold(dst, &srcs, self.count, reduction) },
            Some(variant) => {
                assert!(variant.runs_here());
                let Reduction { dtype, op, prescale, postscale } = *reduction;
                let task = FoldTask { dst, srcs: &srcs, count: self.count, prescale, postscale };
                // SAFETY: as above, and the variant runs here.
                unsafe { variant.kernel(dtype, op)(&task) }
            }
        }
        let written = self.starts[place]..self.starts[place] + self.count * self.size;
        expected[written.clone()].copy_from_slice(&self.bytes[written]);
        assert!(expected == self.bytes, "something besides the destination was written");
        self.read(place)
    }
}

/// Checks every variant, into a place of its own and in place on every source.
fn check(sources: &[Source], offsets: &[usize], reduction: &Reduction) {
    let expected = reference(sources, reduction);
    let runs_here = |variant: &Variant| variant.runs_here();
    let variants = Variant::ALL.iter().copied().filter(runs_here).map(Some).chain([None]);
    // A plain copy may leave a NaN unchanged.
    let copied = sources.len() == 1 && (reduction.prescale, reduction.postscale) == (1.0, 1.0);
    for variant in variants.filter(|variant| variant.is_some() || !copied) {
        for place in 0..=sources.len() {
            let mut memory = SharedElements::new(sources, reduction.dtype.size(), offsets);
            let result = memory.fold(place, variant, reduction);
            let wrong = (0..expected.len()).find(|i| result[*i] != expected[*i]);
            assert!(
                wrong.is_none(),
                "{variant:?} into place {place}, {reduction:?}: element {wrong:?} of {:x?} is {:x?}",
                wrong.map(|i| sources.iter().map(|source| source[i]).collect::<Vec<_>>()),
                wrong.map(|i| (result[i], expected[i])),
            );
        }
    }
}

/// Elements with many difficult ones among them.
fn elements(dtype: DType) -> BoxedStrategy<u64> {
    let special = specials(dtype);
    let near = match dtype {
        DType::F16 => {
            (-30i16..30).prop_map(|n| f16::from_f32(f32::from(n) / 8.0).to_bits().into()).boxed()
        }
        DType::BF16 => {
            (-30i16..30).prop_map(|n| bf16::from_f32(f32::from(n) / 8.0).to_bits().into()).boxed()
        }
        DType::F32 => (-1e3f32..1e3).prop_map(|value| value.to_bits().into()).boxed(),
        DType::F64 => (-1e3f64..1e3).prop_map(f64::to_bits).boxed(),
        _ => (-9i64..9).prop_map(|value| value as u64).boxed(),
    };
    let mask = mask(dtype);
    prop_oneof![3 => near, 2 => any::<u64>(), 1 => select(special)]
        .prop_map(move |bits| bits & mask)
        .boxed()
}

fn counts() -> impl Strategy<Value = usize> {
    let odd = select(vec![0usize, 1, 2, 7, 8, 31, 33, 64, 1000]);
    let around_a_block = select(vec![1023usize, 1024, 1025, 2100]);
    prop_oneof![3 => odd, 1 => around_a_block, 2 => 0usize..200]
}

prop_compose! {
    fn cases()(
        dtype in select(DType::ALL.to_vec()),
        op in select(OPS.to_vec()),
        prescale in prop_oneof![2 => Just(1.0), 1 => select(FACTORS.to_vec())],
        postscale in prop_oneof![2 => Just(1.0), 1 => select(FACTORS.to_vec())],
        count in counts(),
        number in 1usize..=9,
    )(
        sources in prop::collection::vec(prop::collection::vec(elements(dtype), count), number),
        offsets in prop::collection::vec(0usize..64, 1..4),
        reduction in Just(Reduction { dtype, op, prescale, postscale }),
    ) -> (Vec<Source>, Vec<usize>, Reduction) {
        (sources, offsets, reduction)
    }
}

proptest! {
    #[test]
    fn every_variant_gives_the_bits_of_the_reference((sources, offsets, reduction) in cases()) {
        check(&sources, &offsets, &reduction);
    }
}

#[test]
fn every_type_and_operation_handles_every_pair_of_special_values() {
    for &dtype in DType::ALL {
        let specials = specials(dtype);
        let number = specials.len();
        let pairs = (0..number * number).map(|i| (specials[i / number], specials[i % number]));
        let (first, second): (Source, Source) = pairs.unzip();
        for op in OPS {
            for postscale in FACTORS {
                let reduction = Reduction { dtype, op, prescale: 1.0, postscale };
                check(&[first.clone(), second.clone()], &[0], &reduction);
            }
            for prescale in FACTORS {
                let reduction = Reduction { dtype, op, prescale, postscale: 1.0 };
                check(std::slice::from_ref(&first), &[2], &reduction);
            }
        }
    }
}

#[test]
fn every_half_converts_in_both_directions() {
    let all: Source = (0..=0xFFFF).collect();
    for dtype in [DType::F16, DType::BF16] {
        // A factor that changes all values, so that none is just copied, and factors that cause
        // ties.
        for prescale in [-1.0, 0.5, 1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 / 4096.0] {
            let reduction = Reduction { dtype, op: ReduceOp::Sum, prescale, postscale: 1.0 };
            check(std::slice::from_ref(&all), &[0], &reduction);
        }
    }
}

#[test]
fn rounding_to_halves_is_to_nearest_even() {
    // 1 + 2^-11 is halfway between two halves, 65520 between the largest half and infinity.
    let cases = [
        (DType::F16, [0x3C00, 0x1000], 0x3C00),
        (DType::F16, [0x3C01, 0x1000], 0x3C02),
        (DType::F16, [0x7BFF, 0x4B80], 0x7BFF),
        (DType::F16, [0x7BFF, 0x4C00], 0x7C00),
        (DType::F16, [0x0001, 0x0001], 0x0002),
        (DType::BF16, [0x3F80, 0x3B80], 0x3F80),
        (DType::BF16, [0x3F81, 0x3B80], 0x3F82),
        (DType::BF16, [0x7F7F, 0x7B00], 0x7F80),
    ];
    for (dtype, [first, second], expected) in cases {
        let reduction = Reduction { dtype, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        let mut memory = SharedElements::new(&[vec![first], vec![second]], 2, &[0]);
        assert_eq!(memory.fold(2, None, &reduction), [expected], "{dtype}: {first:x} + {second:x}");
    }
}

#[test]
fn a_single_unscaled_source_is_copied_bit_by_bit() {
    for &dtype in DType::ALL {
        let size = dtype.size();
        let source: Vec<u8> = (0..=255).cycle().take(33 * size).collect();
        let mut dst = vec![0; source.len()];
        // SAFETY: both have 33 elements.
        unsafe { scale(dst.as_mut_ptr(), source.as_ptr(), 33, dtype, 1.0) };
        assert_eq!(dst, source, "{dtype}");
        let reduction = Reduction { dtype, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
        // SAFETY: both have 33 elements.
        unsafe { fold(dst.as_mut_ptr(), &[source.as_ptr()], 33, &reduction) };
        let truth: Vec<u8> = source.iter().map(|byte| u8::from(*byte != 0)).collect();
        assert_eq!(dst, if dtype == DType::Bool { truth } else { source }, "{dtype}");
    }
}

#[test]
fn an_average_of_integers_truncates_toward_zero() {
    let mut values = [-7i32, 7, i32::MAX, 0];
    let start = values.as_mut_ptr().cast::<u8>();
    // SAFETY: there are four elements.
    unsafe { scale(start, start, 4, DType::I32, 0.5) };
    assert_eq!(values, [-3, 3, i32::MAX / 2, 0]);
    // SAFETY: there are four elements.
    unsafe { scale(start, start, 4, DType::I32, 1e30) };
    assert_eq!(values, [i32::MIN, i32::MAX, i32::MAX, 0]);
}

#[test]
fn an_average_is_the_sum_divided_by_the_number_of_ranks() {
    for ranks in [3u16, 5, 6, 7, 12, 49, 1000] {
        let sums: Vec<f32> = (0..4096).map(|i| (i * i) as f32 - 1e6).collect();
        let mut values = sums.clone();
        let start = values.as_mut_ptr().cast::<u8>();
        let factor = 1.0 / f64::from(ranks);
        // SAFETY: there are 4096 elements.
        unsafe { scale(start, start, sums.len(), DType::F32, factor) };
        assert!(sums.iter().zip(&values).all(|(sum, value)| sum / f32::from(ranks) == *value));
        let mut wide: Vec<f64> = sums.iter().map(|sum| f64::from(*sum)).collect();
        let start = wide.as_mut_ptr().cast::<u8>();
        // SAFETY: as above.
        unsafe { scale(start, start, sums.len(), DType::F64, factor) };
        let exact = |sum: &f32| f64::from(*sum) / f64::from(ranks);
        assert!(sums.iter().zip(&wide).all(|(sum, value)| exact(sum) == *value), "{ranks}");
        let mut whole: Vec<i64> = (0..4096).map(|i| i * i64::from(ranks)).collect();
        let start = whole.as_mut_ptr().cast::<u8>();
        // SAFETY: as above.
        unsafe { scale(start, start, whole.len(), DType::I64, factor) };
        assert!(whole.iter().zip(0..).all(|(value, i)| *value == i), "{ranks}");
    }
}

#[test]
fn the_destination_may_be_every_source() {
    let reduction =
        Reduction { dtype: DType::I32, op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    for number in 1..=4 {
        let mut values: Vec<i32> = (0..1100).collect();
        let dst = values.as_mut_ptr().cast::<u8>();
        // SAFETY: there are 1100 elements.
        unsafe { fold(dst, &vec![dst.cast_const(); number as usize], 1100, &reduction) };
        assert!(values.iter().zip(0..).all(|(value, i)| *value == number * i), "{values:?}");
    }
}

#[test]
fn nothing_is_touched_without_elements_or_sources() {
    let reduction =
        Reduction { dtype: DType::F32, op: ReduceOp::Sum, prescale: 2.0, postscale: 2.0 };
    let null = std::ptr::null_mut();
    // SAFETY: no element is read or written.
    unsafe { fold(null, &[null, null.wrapping_add(1)], 0, &reduction) };
    // SAFETY: as above.
    unsafe { fold(null, &[], 8, &reduction) };
    // SAFETY: as above.
    unsafe { scale(null, null, 0, DType::F16, 1.0) };
}
