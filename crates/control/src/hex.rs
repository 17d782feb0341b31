//! Bytes as hexadecimal digits: keys, fingerprints and tokens in text.

/// Two digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a text with two digits for each of them; `None` for any other text.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits: Vec<u32> = text.chars().map_while(|digit| digit.to_digit(16)).collect();
    let is_whole = text.len() == 2 * N && digits.len() == 2 * N;
    is_whole.then(|| std::array::from_fn(|at| (digits[2 * at] << 4 | digits[2 * at + 1]) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_through_text() {
        let bytes: [u8; 32] = std::array::from_fn(|index| (index * 37) as u8);
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!(from_hex("FFfe"), Some([255, 254]));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "a", "abc", "abcdef", "+1+1", "g000", "é00"] {
            assert_eq!(from_hex::<2>(text), None, "{text}");
        }
    }
}
