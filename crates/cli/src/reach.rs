//! The options that say how to reach other hosts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_control::settings::{
    self, RONDE_AGENT_KEY_FILE, RONDE_AGENT_PORT, RONDE_REACH, RONDE_RSH, ReachChoice, Reaching,
};
use ronde_launch::reach::rsh::RshCommand;
use ronde_launch::reach::{AgentAccess, ReachOptions, ReachWay};

use crate::key;
use crate::messages::UserError;
use crate::ssh::Ssh;

/// How much sooner a standing agent is given up than the start of the job.
const MARGIN: Duration = Duration::from_secs(1);

/// The options of `horovodrun` and `ronde` for reaching other hosts.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Reach {
    #[command(flatten)]
    pub(crate) ssh: Ssh,
    reach: Option<String>,
    agent_port: Option<u16>,
    agent_key_file: Option<PathBuf>,
    #[arg(conflicts_with = "reach")]
    rsh: Option<String>,
}

impl Reach {
    /// How to reach other hosts, which have `time_limit` to respond.
    pub(crate) fn options(&self, time_limit: Duration) -> Result<ReachOptions, UserError> {
        let ssh = self.ssh.options(time_limit);
        let reaching = self.settings()?;
        if let Some(text) = &reaching.rsh {
            let hint = "for example: `--rsh 'docker exec -i {host} {command}'`";
            let command = RshCommand::parse(text)
                .map_err(|why| UserError::new(format!("`--rsh`: {why}"), hint))?;
            return Ok(ReachOptions { ssh, way: ReachWay::Rsh(command) });
        }
        let way = match (reaching.choice, self.access(&reaching, time_limit)?) {
            (ReachChoice::Ssh, _) | (ReachChoice::Auto, None) => ReachWay::Ssh,
            (ReachChoice::Auto, Some(access)) => ReachWay::AgentOrSsh(access),
            (ReachChoice::Agent, Some(access)) => ReachWay::Agent(access),
            (ReachChoice::Agent, None) => return Err(no_key("`--reach agent` needs")),
        };
        Ok(ReachOptions { ssh, way })
    }

    /// The options of commands that only ask standing agents.
    pub(crate) fn for_agents(agent_port: Option<u16>, agent_key_file: Option<PathBuf>) -> Reach {
        Reach { agent_port, agent_key_file, ..Reach::default() }
    }

    /// Uses this port of standing agents, unless the user says otherwise.
    pub(crate) fn with_usual_port(mut self, port: u16) -> Reach {
        let is_set = self.agent_port.is_some() || std::env::var_os(RONDE_AGENT_PORT.name).is_some();
        if !is_set {
            self.agent_port = Some(port);
        }
        self
    }

    /// What it takes to use standing agents; fails if there is no key.
    pub(crate) fn agents(&self, time_limit: Duration) -> Result<AgentAccess, UserError> {
        let access = self.access(&self.settings()?, time_limit)?;
        access.ok_or_else(|| no_key("standing agents need"))
    }

    fn access(
        &self,
        reaching: &Reaching,
        time_limit: Duration,
    ) -> Result<Option<AgentAccess>, UserError> {
        let file = reaching.agent_key_file.as_deref().map(Path::new);
        let key = key::of_agents(file, reaching.agent_key.clone())?;
        // A little shorter than that of the whole start, because what went wrong is known here.
        let time_limit = time_limit.saturating_sub(MARGIN).max(MARGIN);
        Ok(key.map(|key| AgentAccess { port: reaching.agent_port, key, time_limit }))
    }

    /// The settings, in which options replace the variables of the environment.
    fn settings(&self) -> Result<Reaching, UserError> {
        let file = self.agent_key_file.as_ref().map(|path| path.to_string_lossy().into_owned());
        let given = [
            (RONDE_REACH, self.reach.clone()),
            (RONDE_RSH, self.rsh.clone()),
            (RONDE_AGENT_PORT, self.agent_port.map(|port| port.to_string())),
            (RONDE_AGENT_KEY_FILE, file),
        ];
        let look_up = |name: &str| {
            let option = given.iter().find(|(setting, _)| setting.name == name);
            let option = option.and_then(|(_, value)| value.clone());
            // A way that was chosen on the command line makes a command in the environment void.
            let is_void = name == RONDE_RSH.name && self.reach.is_some();
            option.or_else(|| std::env::var(name).ok().filter(|_| !is_void))
        };
        settings::reaching(look_up).map_err(UserError::from)
    }
}

fn no_key(what: &str) -> UserError {
    let file = key::agent_key_file();
    let file = file.map_or("a file".into(), |path| format!("`{}`", path.display()));
    UserError::new(
        format!("{what} the key of the standing agents, and there is none"),
        format!(
            "copy it to {file}, readable only by you, or name another file with \
             `--agent-key-file`; `ronde up` does that for you"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_user_replaces_ssh() {
        let reach = |rsh: &str| Reach { rsh: Some(rsh.into()), ..Reach::default() };
        let options = reach("docker exec -i {host}").options(Duration::ZERO).unwrap();
        assert!(matches!(options.way, ReachWay::Rsh(_)));
        let error = reach("docker exec").options(Duration::ZERO).unwrap_err();
        assert!(error.errors[0].contains("does not say where `{host}` goes"), "{error}");
    }

    #[test]
    fn an_unknown_way_is_refused() {
        let reach = Reach { reach: Some("carrier-pigeon".into()), ..Reach::default() };
        let error = reach.options(Duration::ZERO).unwrap_err();
        assert!(error.errors[0].contains("but must be auto, ssh or agent"), "{error}");
    }
}
