//! Parses the output of a discovery script: one host per line, `node-a:4`, or `node-a` if
//! `--slots-per-host` gives the number of slots.
//!
//! Empty lines and `#` comments are ignored. If a host is listed twice, the last entry wins. A host
//! with zero slots is left out. If any line is invalid, the whole list is rejected: half a list
//! would drop hosts that still exist.

use crate::hostfile::read_lines;
use crate::hosts::{Host, HostsError, parse_one};

/// Number of invalid lines to quote; the rest are only counted.
const NAMED: usize = 3;

/// The hosts in order of first appearance; `slots` applies to those without a number.
pub fn parse(text: &str, slots: Option<u32>) -> Result<Vec<Host>, String> {
    let last_wins = |known: &mut Host, host| *known = host;
    read_lines(text, |line| host(line, slots), last_wins).map_err(|mut errors| {
        let more = errors.len().saturating_sub(NAMED);
        errors.truncate(NAMED);
        if more > 0 {
            errors.push(format!("and {more} more lines"));
        }
        errors.join("; ")
    })
}

/// Parses one host, which may have zero slots.
fn host(line: &str, slots: Option<u32>) -> Result<Host, String> {
    let bare = parse_one(&format!("{line}:{}", slots.unwrap_or(1)));
    let bare_name = !line.contains(':') || line.ends_with(']');
    match (parse_one(line), bare) {
        (Ok(host), _) => Ok(host),
        (Err(HostsError::NoSlot(name)), _) => Ok(Host { name, user: None, slots: 0 }),
        (Err(_), Ok(host)) if bare_name && slots.is_some() => Ok(host),
        (Err(_), Ok(_)) if bare_name => Err(format!(
            "`{line}` has no number of slots: print `{line}:4`, or use `--slots-per-host`"
        )),
        _ => {
            let short: String = line.chars().take(60).collect();
            Err(format!("`{short}` is not a host"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, slots: Option<u32>) -> Result<Vec<(String, u32)>, String> {
        let hosts = parse(text, slots)?;
        Ok(hosts.into_iter().map(|host| (host.name, host.slots)).collect())
    }

    #[test]
    fn hosts_are_listed_with_or_without_slots() {
        let text =
            "\n# ours\nnode-b:2\nnode-a:4  # big\r\n\n me@10.0.0.7:1 \nnode-b:2\n[fd00::1]:3\n";
        let expected = [("node-b", 2), ("node-a", 4), ("10.0.0.7", 1), ("fd00::1", 3)]
            .map(|(name, slots)| (name.to_owned(), slots));
        assert_eq!(parsed(text, None), Ok(expected.to_vec()));
        let bare = parsed("node-a\nnode-b:1\n[fd00::1]\n", Some(8)).unwrap();
        assert_eq!(bare.iter().map(|(_, slots)| *slots).collect::<Vec<_>>(), [8, 1, 8]);
        assert_eq!(parse("me@node:2", None).unwrap()[0].user.as_deref(), Some("me"));
    }

    #[test]
    fn the_last_entry_of_a_host_wins_and_hosts_without_slots_are_dropped() {
        let hosts = parsed("a:1\nb:2\na:3\n", None).unwrap();
        assert_eq!(hosts, [("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(parsed("a:0\nb:2\n", None).unwrap(), [("b".to_owned(), 2)]);
        assert_eq!(parsed("b:2\na:1\na:0\n", None).unwrap(), [("b".to_owned(), 2)]);
    }

    #[test]
    fn an_invalid_list_is_rejected_as_a_whole() {
        for (text, slots, expected) in [
            ("", None, "it lists no hosts"),
            ("# none\n\n", Some(4), "it lists no hosts"),
            ("a:1\nConnection refused\n", None, "line 2: `Connection refused` is not a host"),
            ("a:x\n", Some(2), "line 1: `a:x` is not a host"),
            ("-oProxy:1\n", None, "line 1: `-oProxy:1` is not a host"),
            (
                "a\n",
                None,
                "line 1: `a` has no number of slots: print `a:4`, or use `--slots-per-host`",
            ),
            (
                "<a>\n<b>\n<c>\n<d>\n<e>\n",
                None,
                "line 1: `<a>` is not a host; line 2: `<b>` is not a host; line 3: `<c>` is not a \
                 host; and 2 more lines",
            ),
        ] {
            assert_eq!(parsed(text, slots), Err(expected.into()), "{text:?}");
        }
        let garbage = "\u{0}\u{fffd}{\"error\": \"x\"}".repeat(1000);
        assert!(parsed(&garbage, Some(1)).unwrap_err().len() < 200);
    }
}
