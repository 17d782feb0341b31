//! Numbers of things, for people.

/// A number of things, for people: `1 slot`, `2 slots`.
pub fn counted(number: impl TryInto<u64>, thing: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_s() {
        assert_eq!(counted(0u32, "slot"), "0 slots");
        assert_eq!(counted(1usize, "slot"), "1 slot");
        assert_eq!(counted(2u64, "slot"), "2 slots");
    }
}
