//! The installation command that all hints print.
//!
//! Hints never name a package that someone else could publish: until a release is on the Python
//! package index, Ronde is installed from a wheel file. A tidy rule checks the documentation too.

/// Whether releases are on the Python package index. Once they are, change only this line.
pub const ON_INDEX: bool = false;

/// The command that installs the given version of Ronde, for hints.
pub fn command(version: &str) -> String {
    pip("install", version)
}

/// The command that repairs an installation of this version, for hints.
pub fn again() -> String {
    pip("install --force-reinstall", crate::PACKAGE_VERSION)
}

fn pip(verb: &str, version: &str) -> String {
    match ON_INDEX {
        true => format!("`pip {verb} ronde=={version}`"),
        // `make dist` builds wheels for several architectures, and pip accepts only the right one.
        false => {
            format!("`pip {verb} ./ronde-{version}-*_$(uname -m).whl` (`make dist` builds it)")
        }
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
