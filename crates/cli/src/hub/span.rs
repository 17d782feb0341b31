//! Spans of time as people type them: `45s`, `30m`, `12h`, `7d`.

/// Parses a span, in seconds.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let invalid = || "it must be a number and a unit, as in `45s`, `30m`, `12h` or `7d`".to_owned();
    let (number, seconds) = match text.trim().char_indices().last() {
        Some((at, 's')) => (&text.trim()[..at], 1),
        Some((at, 'm')) => (&text.trim()[..at], 60),
        Some((at, 'h')) => (&text.trim()[..at], 3600),
        Some((at, 'd')) => (&text.trim()[..at], 86_400),
        _ => return Err(invalid()),
    };
    let count: u64 = number.parse().map_err(|_| invalid())?;
    count.checked_mul(seconds).filter(|span| *span > 0).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit() {
        let spans = ["45s", " 30m", "12h", "7d"].map(|text| parse(text).unwrap());
        assert_eq!(spans, [45, 1800, 43_200, 604_800]);
        for text in ["", "5", "h", "-1h", "1.5h", "0s", "1w", "99999999999999999999d", "é"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
