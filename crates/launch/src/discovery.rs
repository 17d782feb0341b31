//! What a discovery script prints: a host on each line, `node-a:4`, or `node-a` where the number of
//! slots is given for all.
//!
//! Empty lines and what stands behind a `#` are left out. A host that is named twice counts once, as
//! it was named last. A host with no slot is not there. If any line is no host, nothing of it counts:
//! half a list would let hosts go that are there.

use crate::hostfile::read_lines;
use crate::hosts::{Host, HostsError, parse_one};

/// Mistakes that are named before the rest is only counted.
const NAMED: usize = 3;

/// The hosts, in the order in which they are named; `slots` is for those without a number.
pub fn parse(text: &str, slots: Option<u32>) -> Result<Vec<Host>, String> {
    let last_counts = |known: &mut Host, host| *known = host;
    read_lines(text, |line| host(line, slots), last_counts).map_err(|mut mistakes| {
        let more = mistakes.len().saturating_sub(NAMED);
        mistakes.truncate(NAMED);
        if more > 0 {
            mistakes.push(format!("and {more} more lines"));
        }
        mistakes.join("; ")
    })
}

/// One host, which may have no slot.
fn host(line: &str, slots: Option<u32>) -> Result<Host, String> {
    let bare = parse_one(&format!("{line}:{}", slots.unwrap_or(1)));
    let bare_name = !line.contains(':') || line.ends_with(']');
    match (parse_one(line), bare) {
        (Ok(host), _) => Ok(host),
        (Err(HostsError::NoSlot(name)), _) => Ok(Host { name, user: None, slots: 0 }),
        (Err(_), Ok(host)) if bare_name && slots.is_some() => Ok(host),
        (Err(_), Ok(_)) if bare_name => Err(format!(
            "`{line}` has no number of slots: print `{line}:4`, or give `--slots-per-host`"
        )),
        _ => {
            let short: String = line.chars().take(60).collect();
            Err(format!("`{short}` is no host"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, slots: Option<u32>) -> Result<Vec<(String, u32)>, String> {
        let hosts = parse(text, slots)?;
        Ok(hosts.into_iter().map(|host| (host.name, host.slots)).collect())
    }

    #[test]
    fn hosts_stand_on_lines_with_or_without_their_slots() {
        let text =
            "\n# ours\nnode-b:2\nnode-a:4  # big\r\n\n me@10.0.0.7:1 \nnode-b:2\n[fd00::1]:3\n";
        let expected = [("node-b", 2), ("node-a", 4), ("10.0.0.7", 1), ("fd00::1", 3)]
            .map(|(name, slots)| (name.to_owned(), slots));
        assert_eq!(told(text, None), Ok(expected.to_vec()));
        let bare = told("node-a\nnode-b:1\n[fd00::1]\n", Some(8)).unwrap();
        assert_eq!(bare.iter().map(|(_, slots)| *slots).collect::<Vec<_>>(), [8, 1, 8]);
        assert_eq!(parse("me@node:2", None).unwrap()[0].user.as_deref(), Some("me"));
    }

    #[test]
    fn the_last_word_on_a_host_counts_and_none_without_slots_is_there() {
        let hosts = told("a:1\nb:2\na:3\n", None).unwrap();
        assert_eq!(hosts, [("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(told("a:0\nb:2\n", None).unwrap(), [("b".to_owned(), 2)]);
        assert_eq!(told("b:2\na:1\na:0\n", None).unwrap(), [("b".to_owned(), 2)]);
    }

    #[test]
    fn what_is_no_list_counts_for_nothing() {
        for (text, slots, expected) in [
            ("", None, "there is no host in it"),
            ("# none\n\n", Some(4), "there is no host in it"),
            ("a:1\nConnection refused\n", None, "line 2: `Connection refused` is no host"),
            ("a:x\n", Some(2), "line 1: `a:x` is no host"),
            ("-oProxy:1\n", None, "line 1: `-oProxy:1` is no host"),
            (
                "a\n",
                None,
                "line 1: `a` has no number of slots: print `a:4`, or give `--slots-per-host`",
            ),
            (
                "<a>\n<b>\n<c>\n<d>\n<e>\n",
                None,
                "line 1: `<a>` is no host; line 2: `<b>` is no host; line 3: `<c>` is no host; and 2 \
                 more lines",
            ),
        ] {
            assert_eq!(told(text, slots), Err(expected.into()), "{text:?}");
        }
        let garbage = "\u{0}\u{fffd}{\"error\": \"x\"}".repeat(1000);
        assert!(told(&garbage, Some(1)).unwrap_err().len() < 200);
    }
}
