//! The settings that say how the launcher reaches other hosts.

use super::{
    BadSettings, RONDE_AGENT_KEY, RONDE_AGENT_KEY_FILE, RONDE_AGENT_PORT, RONDE_REACH, RONDE_RSH,
    read_all,
};
use crate::wire::JobKey;

/// How other hosts are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReachChoice {
    /// Through a standing agent that holds our key, otherwise through ssh.
    #[default]
    Auto,
    /// Only through ssh.
    Ssh,
    /// Only through standing agents.
    Agent,
}

/// How the launcher reaches other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaching {
    /// Which way to take.
    pub choice: ReachChoice,
    /// The command that replaces ssh, if any.
    pub rsh: Option<String>,
    /// The port of standing agents.
    pub agent_port: u16,
    /// The file with their key, if the user named one.
    pub agent_key_file: Option<String>,
    /// Their key, if it is in the environment.
    pub agent_key: Option<JobKey>,
}

/// Reads how the launcher reaches other hosts.
pub fn reaching(look_up: impl Fn(&str) -> Option<String>) -> Result<Reaching, BadSettings> {
    read_all(look_up, |reader| {
        let key = reader.given(RONDE_AGENT_KEY).map(|text| {
            // The value is not shown: it may be close to the real key.
            JobKey::from_hex(text.trim())
                .map_err(|error| format!("{} is not a valid key: {error}", RONDE_AGENT_KEY.name))
        });
        Reaching {
            choice: reader.choice(
                RONDE_REACH,
                &[
                    ("auto", ReachChoice::Auto),
                    ("ssh", ReachChoice::Ssh),
                    ("agent", ReachChoice::Agent),
                ],
            ),
            rsh: reader.given(RONDE_RSH),
            agent_port: reader.port(RONDE_AGENT_PORT),
            agent_key_file: reader.given(RONDE_AGENT_KEY_FILE),
            agent_key: key.and_then(|key| reader.or_record(key)),
        }
    })
}

/// The hosts and ports of `a:4000,b:4000`; none if some part is not a host with a port, as in the
/// variable of a rank, which holds the name of its host.
pub fn hosts_with_ports(text: &str) -> Option<Vec<(String, u16)>> {
    let one = |part: &str| {
        let (host, port) = part.trim().rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = bare.is_some() || !host.is_empty() && !host.contains(':');
        let port = port.parse().ok().filter(|port: &u16| *port > 0)?;
        is_name.then(|| (bare.unwrap_or(host).to_owned(), port))
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Reaching, Vec<String>> {
        let found = |name: &str| {
            let pair = pairs.iter().find(|(known, _)| *known == name);
            pair.map(|(_, value)| (*value).to_owned())
        };
        reaching(found).map_err(|BadSettings(errors)| errors)
    }

    #[test]
    fn hosts_are_reached_through_standing_agents_or_ssh_unless_the_user_chooses() {
        let usual = read(&[]).unwrap();
        assert_eq!((usual.choice, usual.agent_port), (ReachChoice::Auto, 29508));
        assert_eq!((usual.rsh, usual.agent_key), (None, None));
        let key = "ab".repeat(32);
        let set = read(&[("RONDE_REACH", "agent"), ("RONDE_AGENT_KEY", &key)]).unwrap();
        assert_eq!((set.choice, set.agent_key), (ReachChoice::Agent, JobKey::from_hex(&key).ok()));
    }

    #[test]
    fn wrong_values_are_reported_without_the_key() {
        let wrong =
            [("RONDE_REACH", "x"), ("RONDE_AGENT_PORT", "0"), ("RONDE_AGENT_KEY", "hunter2")];
        let errors = read(&wrong).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(!errors.concat().contains("hunter2"), "{errors:?}");
    }

    #[test]
    fn hosts_with_ports_are_told_from_the_name_of_a_host() {
        let found = hosts_with_ports("new-pc:4000, [fd00::1]:5,pc2:6").unwrap();
        let expected = [("new-pc", 4000), ("fd00::1", 5), ("pc2", 6)];
        assert_eq!(found, expected.map(|(host, port)| (host.to_owned(), port)));
        for text in ["", "node-a", "::1", "a:4,b", "a:0", ":4", "a:x", "a:99999"] {
            assert_eq!(hosts_with_ports(text), None, "{text}");
        }
    }
}
