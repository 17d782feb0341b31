//! Hosts in all states, and what `ronde up` makes of them.

use super::*;

const DIGEST: &str = "3f2a";

fn wanted() -> Wanted {
    Wanted {
        port: 29508,
        key_digest: Some("aa".into()),
        runtime: Runtime::Environment { digest: DIGEST.into() },
        space_kib: 200 << 10,
        uv_machine: Some("x86_64".into()),
        unix_seconds: 1000,
    }
}

fn in_container() -> Wanted {
    let mounts = vec!["/data:/data".into()];
    Wanted { runtime: Runtime::Container { image: "ronde:1".into(), mounts }, ..wanted() }
}

/// A host with everything that `ronde up` needs and nothing that it makes.
fn bare() -> HostFacts {
    HostFacts {
        home: "/home/me".into(),
        user: "me".into(),
        is_writable: true,
        machine: "x86_64".into(),
        unix_seconds: Some(1001),
        python: Some("/usr/bin/python3".into()),
        python_version: Some((3, 11)),
        free_kib: Some(1 << 20),
        ..HostFacts::default()
    }
}

fn ready() -> HostFacts {
    HostFacts {
        key: KeyState::Digest("aa".into()),
        environments: [DIGEST.to_owned()].into(),
        agent: Some(AgentKind::Process),
        agent_spec: Some(wanted().agent_spec()),
        port: PortState::Ours,
        ..bare()
    }
}

fn reasons(wanted: &Wanted, facts: &HostFacts) -> Vec<String> {
    let plan = decide(wanted, facts);
    assert!(
        plan.problems.is_empty() || plan.steps.is_empty(),
        "nothing is done in spite of problems"
    );
    plan.problems.into_iter().map(|problem| problem.reason).collect()
}

#[test]
fn only_what_differs_is_done() {
    use Step::*;
    let uv = Some("/bin/uv".to_owned());
    for (facts, expected) in [
        (bare(), vec![SendKey, SendUv, Install, StartAgent]),
        (HostFacts { uv, ..bare() }, vec![SendKey, Install, StartAgent]),
        (ready(), vec![]),
        (HostFacts { agent: None, port: PortState::Free, ..ready() }, vec![StartAgent]),
        (HostFacts { agent_spec: Some("port 1".into()), ..ready() }, vec![StopAgent, StartAgent]),
        // An update: the old agent runs until the new environment is complete.
        (
            HostFacts { environments: ["old".to_owned()].into(), ..ready() },
            vec![SendUv, Install, StopAgent, StartAgent],
        ),
    ] {
        assert_eq!(decide(&wanted(), &facts).steps, expected, "{facts:?}");
    }
}

#[test]
fn a_container_needs_no_python_and_follows_its_image() {
    let works = DockerState::Works { gives_gpus: true };
    let facts = HostFacts { docker: works, python: None, free_kib: Some(1), gpus: 2, ..ready() };
    let (running, spec) = (Some(AgentKind::Container), Some(in_container().agent_spec()));
    let facts = HostFacts { agent: running, agent_spec: spec, ..facts };
    assert_eq!(decide(&in_container(), &facts), StepPlan::default());
    let changed = HostFacts { image_changed: true, ..facts.clone() };
    assert_eq!(decide(&in_container(), &changed).steps, [Step::StopAgent, Step::StartAgent]);
    // From an environment to a container.
    let before = HostFacts { agent: Some(AgentKind::Process), ..facts };
    let before = HostFacts { agent_spec: Some(wanted().agent_spec()), ..before };
    assert_eq!(decide(&in_container(), &before).steps, [Step::StopAgent, Step::StartAgent]);
}

#[test]
fn all_problems_of_a_host_are_reported_at_once() {
    let facts = HostFacts {
        is_writable: false,
        key: KeyState::Digest("bb".into()),
        python: None,
        free_kib: Some(5 << 10),
        machine: "aarch64".into(),
        port: PortState::Taken(Some("nginx (pid 7)".into())),
        ..bare()
    };
    assert_eq!(
        reasons(&wanted(), &facts),
        [
            "`me` may not write to the home directory `/home/me`",
            "it has a different agents' key in `~/.config/ronde/agent.key`",
            "there is no `python3` in the PATH of its ssh sessions",
            "only 5 MiB are free in `/home/me`, and the installation needs 200 MiB",
            "it has no `uv`, and that of this machine does not run on aarch64",
            "port 29508 is in use by nginx (pid 7)",
        ]
    );
}

#[test]
fn each_problem_has_its_reason() {
    let old = HostFacts { python_version: Some((3, 8)), ..bare() };
    let exposed = HostFacts { key: KeyState::Unusable, ..bare() };
    let foreign = HostFacts { key: KeyState::Digest("bb".into()), ..bare() };
    let docker = |docker| HostFacts { docker, gpus: 1, ..bare() };
    let no_uv = Wanted { uv_machine: None, ..wanted() };
    let no_key = Wanted { key_digest: None, ..wanted() };
    for (wanted, facts, expected) in [
        (wanted(), old, "its Python is 3.8 (`/usr/bin/python3`)"),
        (
            wanted(),
            exposed,
            "other users can read `~/.config/ronde/agent.key` there, or you cannot",
        ),
        (no_uv, bare(), "there is no `uv`, which installs the packages, neither there nor here"),
        (no_key, foreign, "it has a different agents' key in `~/.config/ronde/agent.key`"),
        (
            in_container(),
            docker(DockerState::Missing),
            "there is no `docker` in the PATH of its ssh sessions",
        ),
        (in_container(), docker(DockerState::Denied), "`me` may not use Docker there"),
        (
            in_container(),
            docker(DockerState::Down("no daemon".into())),
            "Docker does not work there: no daemon",
        ),
        (
            in_container(),
            docker(DockerState::Works { gives_gpus: false }),
            "it has GPUs, but Docker cannot give them to containers",
        ),
    ] {
        assert_eq!(reasons(&wanted, &facts), [expected]);
    }
}

#[test]
fn a_wrong_clock_is_only_a_warning() {
    let facts = HostFacts { unix_seconds: Some(900), ..ready() };
    let plan = decide(&wanted(), &facts);
    assert!(plan.problems.is_empty() && plan.steps.is_empty());
    assert_eq!(plan.warnings[0].reason, "its clock is 100 s behind");
    assert_eq!(decide(&wanted(), &ready()).warnings, []);
}

#[test]
fn facts_are_read_after_whatever_a_login_prints() {
    let output = "Welcome!\nkey=unusable\nronde-host 1\nhome=/home/me\nwritable=yes\nkey=aa\n\
                  python_version=3.12\nenvironment=3f2a\nenvironment=77\nagent=service\nport=taken\n\
                  port_owner=nginx\ndocker=works\ndocker_gpus=yes\nagent_spec=port 1 = x\nnew=1\nodd\n";
    let facts = HostFacts::parse(output).unwrap();
    assert_eq!(facts.key, KeyState::Digest("aa".into()));
    assert_eq!(facts.python_version, Some((3, 12)));
    assert_eq!(facts.environments.len(), 2);
    assert_eq!(facts.agent, Some(AgentKind::Service));
    assert_eq!(facts.port, PortState::Taken(Some("nginx".into())));
    assert_eq!(facts.docker, DockerState::Works { gives_gpus: true });
    assert_eq!(facts.agent_spec.as_deref(), Some("port 1 = x"));
    let error = HostFacts::parse("This account is currently not available.\n").unwrap_err();
    assert!(error.to_string().ends_with("it said: This account is currently not available."));
}
