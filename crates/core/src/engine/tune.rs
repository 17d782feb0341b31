//! Autotuning on the coordinator: tells the search what has run, does what it says, keeps its log.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use ronde_control::autotune::{Autotune, LOG_HEADER, Next, Parameter, Point, Values, log_line};
use ronde_control::negotiate::{Bulletin, Coordinator, Work};
use ronde_control::settings::Settings;

pub(super) struct Tuner {
    search: Autotune,
    log: Option<File>,
}

impl Tuner {
    /// Starts the search that the settings ask for, if they do and there is something to look for.
    pub(super) fn start(settings: &Settings, tunable: &[Parameter]) -> Option<Tuner> {
        let mut options = settings.autotune.clone()?;
        options.parameters.retain(|parameter| tunable.contains(parameter));
        let Settings { fusion_threshold: threshold, tuning, .. } = *settings;
        let search = Autotune::new(&options, Values { threshold, tuning })?;
        let mut tuner = Tuner { search, log: settings.autotune_log.as_deref().and_then(open) };
        tuner.write(LOG_HEADER);
        Some(tuner)
    }

    /// Takes note of a bucket that has run; gives false when the search is over.
    pub(super) fn goes_on(
        &mut self,
        bucket: &[Work],
        coordinator: &mut Coordinator,
        now: Duration,
    ) -> bool {
        let names = bucket.iter().map(|work| work.request.name.as_str());
        let bytes = bucket.iter().map(|work| work.request.bytes()).sum();
        let Some(Point { values, score, next }) = self.search.on(names, bytes, now) else {
            return true;
        };
        self.write(&log_line(&values, score));
        tracing::debug!(?values, score, "autotuning measured a point");
        let (chosen, goes_on) = match next {
            Next::Try(chosen) => (chosen, true),
            Next::Keep { values: chosen, score } => {
                self.write(&log_line(&chosen, score));
                tracing::info!(values = ?chosen, score, "autotuning has chosen");
                (chosen, false)
            }
        };
        coordinator.threshold = chosen.threshold;
        if chosen.tuning != values.tuning {
            coordinator.tell(Bulletin::Tune(chosen.tuning));
        }
        goes_on
    }

    /// A log that cannot be written is given up; the job matters more.
    fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.log
            && let Err(error) = writeln!(file, "{line}")
        {
            tracing::warn!("the log of autotuning ends here: {error}");
            self.log = None;
        }
    }
}

fn open(path: &str) -> Option<File> {
    match File::create(path) {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!("autotuning goes on without a log, `{path}` cannot be written: {error}");
            None
        }
    }
}
