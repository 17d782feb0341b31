//! The options about the terminal: which ranks have one, and whose output is shown.

use clap::Args;
use ronde_launch::ScreenOptions;
use ronde_launch::logs::Times;
use ronde_launch::ranks::RankSet;
use ronde_launch::window::Window;

/// What `horovodrun` takes about the terminal.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ScreenArguments {
    #[arg(value_parser = tty)]
    tty: Option<Tty>,
    #[arg(value_parser = RankSet::parse)]
    ranks: Option<RankSet>,
}

/// Who gets a terminal.
#[derive(Clone, Debug, Default)]
enum Tty {
    /// Rank 0 where somebody looks.
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
    /// Whether one of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.tty.is_some() || self.ranks.is_some()
    }

    /// What they mean on this terminal.
    pub(crate) fn options(self, times: Times) -> ScreenOptions {
        let term = std::env::var("TERM").ok();
        self.on(Window::of_stdout(term.as_deref()), times)
    }

    fn on(self, window: Option<Window>, times: Times) -> ScreenOptions {
        let terminals = match self.tty.unwrap_or_default() {
            // A terminal that is passed through has no times in front of its lines.
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
    fn rank_0_has_a_terminal_where_somebody_looks_unless_told_otherwise() {
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
