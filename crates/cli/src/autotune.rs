//! The flags of autotuning, and the variables that tell the ranks of them.

use std::ffi::OsString;

/// How the ranks look for the best settings while they run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Autotune {
    /// Look for better settings, such as the fusion threshold, while the job runs
    #[arg(long, overrides_with = "no_autotune")]
    autotune: bool,

    #[arg(long, hide = true)]
    no_autotune: bool,

    /// Write what autotuning measures to this file
    #[arg(long, value_name = "FILE")]
    autotune_log_file: Option<OsString>,

    /// Samples to throw away at the start [default: 3]
    #[arg(long, value_name = "N")]
    autotune_warmup_samples: Option<u32>,

    /// Training steps of a sample [default: 10]
    #[arg(long, value_name = "N")]
    autotune_steps_per_sample: Option<u32>,

    /// The most points to measure for a setting, of five samples each [default: 20]
    #[arg(long, value_name = "N")]
    autotune_bayes_opt_max_samples: Option<u32>,

    #[arg(long, hide = true, value_parser = noise)]
    autotune_gaussian_process_noise: Option<f64>,
}

impl Autotune {
    /// The variables for the ranks; without autotuning the rest means nothing.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        if !self.autotune {
            let off = self.no_autotune.then(|| ("HOROVOD_AUTOTUNE".into(), "0".into()));
            return off.into_iter().collect();
        }
        let number = |value: Option<u32>| value.map(|value| OsString::from(value.to_string()));
        let noise = self.autotune_gaussian_process_noise.map(|value| value.to_string().into());
        let all = [
            ("HOROVOD_AUTOTUNE", Some("1".into())),
            ("HOROVOD_AUTOTUNE_LOG", self.autotune_log_file.clone()),
            ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", number(self.autotune_warmup_samples)),
            ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", number(self.autotune_steps_per_sample)),
            ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", number(self.autotune_bayes_opt_max_samples)),
            ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", noise),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect()
    }
}

fn noise(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number @ 0.0..=1.0) => Ok(number),
        _ => Err("it must be a number from 0 to 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        autotune: Autotune,
    }

    fn variables(line: &str) -> String {
        let words = std::iter::once("x").chain(line.split_whitespace());
        let variables = Line::try_parse_from(words).unwrap().autotune.variables();
        let spelled = |(name, value): &(OsString, OsString)| {
            let name = name.to_string_lossy().replace("HOROVOD_AUTOTUNE", "");
            format!("{name}={}", value.to_string_lossy())
        };
        variables.iter().map(spelled).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_ranks_are_told_only_what_matters() {
        for (line, expected) in [
            ("", ""),
            ("--autotune", "=1"),
            ("--no-autotune", "=0"),
            ("--autotune --no-autotune", "=0"),
            ("--no-autotune --autotune", "=1"),
            ("--autotune-log-file x.csv", ""),
            ("--autotune --autotune-log-file x.csv", "=1 _LOG=x.csv"),
            (
                "--autotune --autotune-warmup-samples 1 --autotune-steps-per-sample 2 \
                 --autotune-bayes-opt-max-samples 3 --autotune-gaussian-process-noise 0.5",
                "=1 _WARMUP_SAMPLES=1 _STEPS_PER_SAMPLE=2 _BAYES_OPT_MAX_SAMPLES=3 \
                 _GAUSSIAN_PROCESS_NOISE=0.5",
            ),
        ] {
            assert_eq!(variables(line), expected, "{line}");
        }
        assert!(Line::try_parse_from(["x", "--autotune-gaussian-process-noise", "2"]).is_err());
    }
}
