//! Hostfiles: a host on each line, as in `node-a slots=4`.
//!
//! Empty lines and what stands behind a `#` are left out. A host without a number has one slot, as
//! for `mpirun`; one that is named twice has the slots of both. All mistakes are reported at once.

use crate::hosts::{Host, HostsError, parse_one};

/// The hosts of a file, in its order.
pub fn parse(text: &str) -> Result<Vec<Host>, Vec<String>> {
    read_lines(
        text,
        |line| host(line).map_err(|error| error.to_string()),
        |known, host| known.add(&host),
    )
}

/// Reads a text with a host on each line; `again` is for one that is named again. A host without a slot
/// is not there.
pub(crate) fn read_lines(
    text: &str,
    read: impl Fn(&str) -> Result<Host, String>,
    again: impl Fn(&mut Host, Host),
) -> Result<Vec<Host>, Vec<String>> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut mistakes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match read(line) {
            Ok(host) => match hosts.iter_mut().find(|known| known.name == host.name) {
                Some(known) => again(known, host),
                None => hosts.push(host),
            },
            Err(why) => mistakes.push(format!("line {}: {why}", index + 1)),
        }
    }
    hosts.retain(|host| host.slots > 0);
    if hosts.is_empty() && mistakes.is_empty() {
        mistakes.push("there is no host in it".into());
    }
    if mistakes.is_empty() { Ok(hosts) } else { Err(mistakes) }
}

fn host(line: &str) -> Result<Host, HostsError> {
    let invalid = || HostsError::Invalid(line.to_owned());
    let mut words = line.split_whitespace();
    let name = words.next().ok_or_else(invalid)?;
    let mut slots = None;
    // `slots = 4` is three words and means one.
    let rest: String = words.collect::<Vec<_>>().join(" ").replace(" =", "=").replace("= ", "=");
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("slots", number)) => slots = Some(number.to_owned()),
            // What `mpirun` reads beside it says nothing here.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(invalid()),
        }
    }
    match slots {
        Some(slots) if name.contains(':') && !name.starts_with('[') => {
            parse_one(&format!("[{name}]:{slots}"))
        }
        Some(slots) => parse_one(&format!("{name}:{slots}")),
        None => parse_one(name).or_else(|_| parse_one(&format!("{name}:1"))),
    }
    .map_err(|error| match error {
        HostsError::Invalid(_) => invalid(),
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_stand_on_lines_with_comments_and_blanks_between() {
        let text = "\
# our machines
node-a slots=4

node-b   slots = 2  # the small one
10.0.0.7 slots=1 max_slots=2\r
node-a slots=2
node-c
node-d:3
::1 slots=2
[fe80::1] slots=1
";
        let hosts = parse(text).unwrap();
        let told: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        let expected = [
            ("node-a", 6),
            ("node-b", 2),
            ("10.0.0.7", 1),
            ("node-c", 1),
            ("node-d", 3),
            ("::1", 2),
            ("fe80::1", 1),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn mistakes_are_named_by_line_all_at_once() {
        let mistakes = parse("a slots=x\nb slots=2\nc slots=0\nd 4\n").unwrap_err();
        assert_eq!(mistakes.len(), 3, "{mistakes:?}");
        assert!(mistakes[0].starts_with("line 1: Invalid host input"), "{mistakes:?}");
        assert_eq!(mistakes[1], "line 3: `c` offers no slot");
        assert!(mistakes[2].starts_with("line 4:") && mistakes[2].contains("d 4"));
        assert_eq!(parse("# none\n").unwrap_err(), ["there is no host in it"]);
    }
}
