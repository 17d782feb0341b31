//! How to install Ronde, as every hint says it.
//!
//! Hints never name a package that somebody else could publish: until a release is on the Python
//! package index, Ronde is installed from a wheel file. A tidy rule holds the documents to the same.

/// Whether releases are on the Python package index. The one line to change once they are.
pub const ON_INDEX: bool = false;

/// The command that installs a version of Ronde, for hints.
pub fn command(version: &str) -> String {
    pip("install", version)
}

/// The command that repairs this version of Ronde, for hints.
pub fn again() -> String {
    pip("install --force-reinstall", crate::PACKAGE_VERSION)
}

fn pip(verb: &str, version: &str) -> String {
    match ON_INDEX {
        true => format!("`pip {verb} ronde=={version}`"),
        false => format!("`pip {verb} ./ronde-{version}-*.whl` (`make dist` builds the wheel)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_the_package_only_once_it_is_ours() {
        for hint in [command("1.2.3"), again()] {
            assert_eq!(hint.contains(" ronde=="), ON_INDEX, "{hint}");
            assert_eq!(hint.contains(" ./ronde-"), !ON_INDEX, "{hint}");
        }
        assert!(command("1.2.3").contains("1.2.3"));
    }
}
