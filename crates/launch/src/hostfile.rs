//! Parses hostfiles: one host per line, such as `node-a slots=4`.
//!
//! Empty lines and `#` comments are ignored. A host without a number has one slot, as with
//! `mpirun`; the slots of a host that is listed twice add up. All errors are reported at once.

use crate::hosts::{Host, HostsError, parse_one};

/// Parses a hostfile; the hosts are in file order.
pub fn parse(text: &str) -> Result<Vec<Host>, Vec<String>> {
    read_lines(
        text,
        |line| host(line).map_err(|error| error.to_string()),
        |known, host| known.add(&host),
    )
}

/// Parses a text with one host per line; `again` merges a host that is listed again. Hosts without
/// slots are left out.
pub(crate) fn read_lines(
    text: &str,
    read: impl Fn(&str) -> Result<Host, String>,
    again: impl Fn(&mut Host, Host),
) -> Result<Vec<Host>, Vec<String>> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut errors = Vec::new();
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
            Err(why) => errors.push(format!("line {}: {why}", index + 1)),
        }
    }
    hosts.retain(|host| host.slots > 0);
    if hosts.is_empty() && errors.is_empty() {
        errors.push("it lists no hosts".into());
    }
    if errors.is_empty() { Ok(hosts) } else { Err(errors) }
}

fn host(line: &str) -> Result<Host, HostsError> {
    let invalid = || HostsError::Invalid(line.to_owned());
    let mut words = line.split_whitespace();
    let name = words.next().ok_or_else(invalid)?;
    let mut slots = None;
    // `slots = 4` is three words but one setting.
    let rest: String = words.collect::<Vec<_>>().join(" ").replace(" =", "=").replace("= ", "=");
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("slots", number)) => slots = Some(number.to_owned()),
            // `mpirun` accepts this option; it has no meaning here.
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
    fn comments_and_blank_lines_are_ignored() {
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
        let parsed: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        let expected = [
            ("node-a", 6),
            ("node-b", 2),
            ("10.0.0.7", 1),
            ("node-c", 1),
            ("node-d", 3),
            ("::1", 2),
            ("fe80::1", 1),
        ];
        assert_eq!(parsed, expected);
    }

    #[test]
    fn all_errors_are_reported_with_their_lines() {
        let errors = parse("a slots=x\nb slots=2\nc slots=0\nd 4\n").unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].starts_with("line 1: Invalid host input"), "{errors:?}");
        assert_eq!(errors[1], "line 3: `c` has no slots");
        assert!(errors[2].starts_with("line 4:") && errors[2].contains("d 4"));
        assert_eq!(parse("# none\n").unwrap_err(), ["it lists no hosts"]);
    }
}
