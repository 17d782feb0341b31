//! The terminal options: which ranks get one, and whose output is shown.

use clap::Args;
use ronde_launch::ScreenOptions;
use ronde_launch::logs::Times;
use ronde_launch::ranks::RankSet;
use ronde_launch::window::Window;

/// The terminal options of `horovodrun`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ScreenArguments {
    #[arg(value_parser = tty)]
    tty: Option<Tty>,
    #[arg(value_parser = RankSet::parse)]
    ranks: Option<RankSet>,
}

/// Which ranks get a terminal.
#[derive(Clone, Debug, Default)]
enum Tty {
    /// Rank 0, if standard output is a terminal.
    #[default]
    Auto,
    These(RankSet),
}

fn tty(text: &str) -> Result<Tty, String> {
    match text {
        "auto" => Ok(Tty::Auto),
        text => {
            RankSet::parse(text).map(Tty::These).map_err(|why| format!("{why}, `none` or `auto`"))
        }
    }
}

impl ScreenArguments {
    /// Whether any of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.tty.is_some() || self.ranks.is_some()
    }

    /// Resolves the options for this terminal.
    pub(crate) fn options(self, times: Times) -> ScreenOptions {
        let term = std::env::var("TERM").ok();
        self.on(Window::of_stdout(term.as_deref()), times)
    }

    fn on(self, window: Option<Window>, times: Times) -> ScreenOptions {
        let terminals = match self.tty.unwrap_or_default() {
            // Lines from a terminal cannot be prefixed with timestamps.
            Tty::Auto if window.is_some() && times == Times::Left => RankSet::Listed([0].into()),
            Tty::Auto => RankSet::None,
            Tty::These(ranks) => ranks,
        };
        ScreenOptions { shown: self.ranks.unwrap_or(RankSet::All), terminals, window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_rank_0_gets_a_terminal_if_there_is_one() {
        let window = Some(Window { size: ronde_launch::window::USUAL, stderr: true });
        let first = || RankSet::parse("0").unwrap();
        for (text, window, times, expected) in [
            ("auto", window, Times::Left, first()),
            ("auto", window, Times::Shown, RankSet::None),
            ("auto", None, Times::Left, RankSet::None),
            ("none", window, Times::Left, RankSet::None),
            ("0", None, Times::Left, first()),
            ("all", window, Times::Shown, RankSet::All),
        ] {
            let arguments = ScreenArguments { tty: Some(tty(text).unwrap()), ranks: None };
            assert_eq!(arguments.on(window, times).terminals, expected, "{text}");
        }
        assert!(tty("some").unwrap_err().contains("`none` or `auto`"));
    }
}
