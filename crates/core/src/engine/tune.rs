//! Autotuning on the coordinator: feeds the search with what has run, applies what it chooses, and
//! writes its log.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use ronde_control::autotune::{
    Autotune, LOG_HEADER, NextStep, Parameter, Point, TunedValues, log_line,
};
use ronde_control::negotiate::{Announcement, Coordinator, ReleasedTensor};
use ronde_control::settings::Settings;

pub(super) struct Tuner {
    search: Autotune,
    log: Option<File>,
}

impl Tuner {
    /// Starts the search if the settings ask for one and there is a parameter to tune.
    pub(super) fn start(settings: &Settings, tunable: &[Parameter]) -> Option<Tuner> {
        let mut options = settings.autotune.clone()?;
        options.parameters.retain(|parameter| tunable.contains(parameter));
        let Settings { fusion_threshold: threshold, tuning, .. } = *settings;
        let search = Autotune::new(&options, TunedValues { threshold, tuning })?;
        let mut tuner = Tuner { search, log: settings.autotune_log.as_deref().and_then(open) };
        tuner.write(LOG_HEADER);
        Some(tuner)
    }

    /// Records a bucket that has run; returns false when the search is over.
    pub(super) fn on_bucket(
        &mut self,
        bucket: &[ReleasedTensor],
        coordinator: &mut Coordinator,
        now: Duration,
    ) -> bool {
        let names = bucket.iter().map(|work| work.request.name.as_str());
        let bytes = bucket.iter().map(|work| work.request.bytes()).sum();
        let Some(Point { values, score, next }) = self.search.on(names, bytes, now) else {
            return true;
        };
        self.write(&log_line(&values, score));
        tracing::debug!("autotuning measured a score of {score:.3} with {values}");
        let (chosen, continues) = match next {
            NextStep::Try(chosen) => (chosen, true),
            NextStep::Keep { values: chosen, score } => {
                self.write(&log_line(&chosen, score));
                tracing::info!("autotuning has finished: a score of {score:.3} with {chosen}");
                (chosen, false)
            }
        };
        coordinator.threshold = chosen.threshold;
        if chosen.tuning != values.tuning {
            coordinator.tell(Announcement::Tune(chosen.tuning));
        }
        continues
    }

    /// A log that cannot be written is abandoned; the job matters more.
    fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.log
            && let Err(error) = writeln!(file, "{line}")
        {
            tracing::warn!("the autotune log cannot be written any more: {error}");
            self.log = None;
        }
    }
}

fn open(path: &str) -> Option<File> {
    match File::create(path) {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!(
                "autotuning continues without a log: `{path}` cannot be written: {error}"
            );
            None
        }
    }
}
