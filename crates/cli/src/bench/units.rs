//! Bytes, times and bandwidths in a form for people.

use ronde_control::bench::Figures;

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

/// Parses `4`, `16K`, `64M`, `64MiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let invalid =
        || "it must be a number of bytes from 1 to 16G, as in `4`, `16K` or `64M`".to_owned();
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((number.strip_suffix(*unit)?, *shift)))
        .unwrap_or((number, 0));
    let count: u64 = digits.trim().parse().map_err(|_| invalid())?;
    let bytes = count.checked_mul(1 << shift).ok_or_else(invalid)?;
    if (1..=16 << 30).contains(&bytes) { Ok(bytes) } else { Err(invalid()) }
}

/// `64 MiB`, or `97.5 MiB` if it is not a whole number of units.
pub(crate) fn bytes(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) if bytes.is_multiple_of(1 << shift) => {
            format!("{} {unit}iB", bytes >> shift)
        }
        Some((unit, shift)) => format!("{:.1} {unit}iB", bytes as f64 / f64::from(1 << shift)),
        None => format!("{bytes} B"),
    }
}

/// `4.62 µs (4.51–6.30)`: the median and the middle 80 %, in one unit.
pub(crate) fn spread(figures: &Figures) -> String {
    let (unit, factor) = unit_of(figures.median);
    let [median, p10, p90] =
        [figures.median, figures.p10, figures.p90].map(|seconds| digits(seconds * factor));
    format!("{median} {unit} ({p10}–{p90})")
}

/// `4.62 µs`.
pub(crate) fn seconds(seconds: f64) -> String {
    let (unit, factor) = unit_of(seconds);
    format!("{} {unit}", digits(seconds * factor))
}

/// Gigabytes in powers of ten, the usual unit for memory and network bandwidth.
pub(crate) fn gigabytes(bytes_per_second: f64) -> String {
    digits(bytes_per_second / 1e9)
}

/// A ratio with three digits, or four decimals if it is small.
pub(crate) fn ratio(value: f64) -> String {
    if value < 0.0995 { format!("{value:.4}") } else { digits(value) }
}

/// Three digits, with at most two decimals.
fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn unit_of(seconds: f64) -> (&'static str, f64) {
    match seconds {
        ..0.9995e-3 => ("µs", 1e6),
        ..0.9995 => ("ms", 1e3),
        _ => ("s", 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_can_be_parsed_and_formatted() {
        for (text, count) in [
            ("4", 4),
            ("4B", 4),
            ("1K", 1 << 10),
            ("16k", 16 << 10),
            ("64M", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(count), "{text}");
            assert_eq!(parse_bytes(&bytes(count)), Ok(count), "{text}");
        }
        for text in ["", "K", "0", "-4", "1.5K", "4X", "99999999999G", "17G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(bytes(102_228_128), "97.5 MiB");
    }

    #[test]
    fn times_have_three_digits_and_one_unit() {
        for (value, text) in [
            (4.62e-6, "4.62 µs"),
            (46.25e-6, "46.2 µs"),
            (999.4e-6, "999 µs"),
            (999.9e-6, "1.00 ms"),
            (0.0331, "33.1 ms"),
            (2.5, "2.50 s"),
        ] {
            assert_eq!(seconds(value), text);
        }
        let figures = Figures { median: 950e-6, p10: 900e-6, p90: 1.2e-3 };
        assert_eq!(spread(&figures), "950 µs (900–1200)");
        assert_eq!((ratio(0.00461), ratio(0.52)), ("0.0046".into(), "0.52".into()));
        assert_eq!(gigabytes(12.34e9), "12.3");
    }
}
