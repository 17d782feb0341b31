//! What a test can set: devices, versions, delays and faults.
//!
//! The text is `key=value` pairs separated by commas. It comes from the environment variable
//! `RONDE_STANDIN_GPU`, read once, when the library is first used, and from calls of
//! `ronde_standin_configure`, each of which changes the keys that it names.
//!
//! | key | default | meaning |
//! | --- | --- | --- |
//! | `devices=4` | 1 | number of devices, at the next `cuInit` |
//! | `visible=all` | environment | ignore `CUDA_VISIBLE_DEVICES` at the next `cuInit` |
//! | `driver=12040` | 13000 | version of the driver |
//! | `nccl=23007` | 23007 | version of NCCL |
//! | `memory=64M` | 4G | memory of each device, for each process; also `K` and `G` |
//! | `lag=2ms` | 0 | wait before each copy, fill, kernel and collective; also `us` and `s` |
//! | `lag=SYMBOL:50ms` | | the same for the operations of one function, in place of `lag` |
//! | `fail=SYMBOL` | | every call of this function fails, with 999 (driver) or 3 (NCCL) |
//! | `fail=SYMBOL:2` | | only the second call from now fails; `2+` means from the second on |
//! | `fail=SYMBOL:2:701` | | the same with this code |
//! | `hang=SYMBOL`, `hang=SYMBOL:2` | | the operation hangs (see below) |
//! | `peer-death=hang` or `error` | hang | whether a lost peer becomes the asynchronous error 6 |
//! | `in-progress=first`, `always` or `never` | first | which launches return early (see below) |
//! | `sticky=709` | | from now on, every call of the driver returns this code; `sticky=0` ends it |
//! | `reset` | | back to the defaults, ignoring the environment |
//!
//! A hanging operation of NCCL ends when its communicator is aborted, one of the driver when its
//! stream is destroyed. On a non-blocking communicator, a launch that returns early returns
//! `ncclInProgress` and is queued a moment later. A mistake in the text is printed and aborts the
//! process.
#![expect(unsafe_code, reason = "exports a C symbol")]

use std::ffi::c_char;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use crate::handles::lock;
use crate::{pointers, symbols};

/// Changes the configuration of this process.
#[unsafe(no_mangle)]
extern "C" fn ronde_standin_configure(text: *const c_char) {
    let text = pointers::text(text).unwrap_or_else(|| refuse("the text is null or not UTF-8"));
    read().apply_or_abort(text);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerDeath {
    Hang,
    Error,
}

/// Which launches on a non-blocking communicator return before they are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InProgress {
    First,
    Always,
    Never,
}

pub(crate) struct FakeConfig {
    pub(crate) devices: usize,
    pub(crate) heeds_visible_devices: bool,
    pub(crate) driver: i32,
    pub(crate) nccl: i32,
    pub(crate) memory: usize,
    pub(crate) peer_death: PeerDeath,
    pub(crate) in_progress: InProgress,
    pub(crate) sticky: i32,
    lag: Duration,
    lags: Vec<(&'static str, Duration)>,
    faults: Vec<PlannedFault>,
}

/// What the configuration says about one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallPlan {
    /// Whether it fails, and the code if the configuration names one.
    pub(crate) failure: Option<Option<i32>>,
    pub(crate) hangs: bool,
    pub(crate) lag: Duration,
}

struct PlannedFault {
    symbol: &'static str,
    effect: FaultEffect,
    when: FaultTime,
    calls: u64,
}

#[derive(Clone, Copy)]
enum FaultEffect {
    Fail(Option<i32>),
    Hang,
}

enum FaultTime {
    Always,
    Only(u64),
    From(u64),
}

/// The current configuration. The first use reads the environment.
pub(crate) fn read() -> MutexGuard<'static, FakeConfig> {
    static CONFIG: LazyLock<Mutex<FakeConfig>> = LazyLock::new(|| {
        let mut config = FakeConfig::default();
        if let Ok(text) = std::env::var("RONDE_STANDIN_GPU") {
            config.apply_or_abort(&text);
        }
        Mutex::new(config)
    });
    lock(&CONFIG)
}

/// Counts a call of `symbol` and says what will happen to it.
pub(crate) fn call(symbol: &'static str) -> CallPlan {
    read().call(symbol)
}

impl Default for FakeConfig {
    fn default() -> Self {
        Self {
            devices: 1,
            heeds_visible_devices: true,
            driver: 13000,
            nccl: 23007,
            memory: 4 << 30,
            peer_death: PeerDeath::Hang,
            in_progress: InProgress::First,
            sticky: 0,
            lag: Duration::ZERO,
            lags: Vec::new(),
            faults: Vec::new(),
        }
    }
}

impl FakeConfig {
    fn apply_or_abort(&mut self, text: &str) {
        if let Err(mistake) = self.apply(text) {
            refuse(&mistake);
        }
    }

    fn apply(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            if pair == "reset" {
                *self = Self::default();
                continue;
            }
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("`{pair}` has no `=`"))?;
            self.set(key, value).ok_or_else(|| format!("`{pair}` is not understood"))?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "devices" => self.devices = value.parse().ok().filter(|count| *count <= 64)?,
            "visible" => {
                self.heeds_visible_devices = match value {
                    "environment" => true,
                    "all" => false,
                    _ => return None,
                }
            }
            "driver" => self.driver = value.parse().ok()?,
            "nccl" => self.nccl = value.parse().ok()?,
            "memory" => self.memory = size(value)?,
            "lag" => match value.split_once(':') {
                None => self.lag = duration(value)?,
                Some((symbol, lag)) => self.lags.push((known(symbol)?.name, duration(lag)?)),
            },
            "fail" => self.faults.push(failure(value)?),
            "hang" => self.faults.push(hang(value)?),
            "peer-death" => {
                self.peer_death = match value {
                    "hang" => PeerDeath::Hang,
                    "error" => PeerDeath::Error,
                    _ => return None,
                }
            }
            "in-progress" => {
                self.in_progress = match value {
                    "first" => InProgress::First,
                    "always" => InProgress::Always,
                    "never" => InProgress::Never,
                    _ => return None,
                }
            }
            "sticky" => self.sticky = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    fn call(&mut self, symbol: &'static str) -> CallPlan {
        debug_assert!(known(symbol).is_some(), "{symbol} is missing in the list of symbols");
        let own = self.lags.iter().rev().find(|(name, _)| *name == symbol);
        let lag = own.map_or(self.lag, |(_, lag)| *lag);
        let mut call = CallPlan { lag, ..CallPlan::default() };
        for fault in self.faults.iter_mut().filter(|fault| fault.symbol == symbol) {
            fault.calls += 1;
            let applies = match fault.when {
                FaultTime::Always => true,
                FaultTime::Only(number) => fault.calls == number,
                FaultTime::From(number) => fault.calls >= number,
            };
            match fault.effect {
                FaultEffect::Fail(code) if applies => call.failure = Some(code),
                FaultEffect::Hang if applies => call.hangs = true,
                FaultEffect::Fail(_) | FaultEffect::Hang => {}
            }
        }
        call
    }
}

fn failure(text: &str) -> Option<PlannedFault> {
    let mut parts = text.split(':');
    let symbol = known(parts.next()?)?.name;
    let when = when(parts.next())?;
    let code = parts.next().map(str::parse).transpose().ok()?;
    parts.next().is_none().then_some(PlannedFault {
        symbol,
        effect: FaultEffect::Fail(code),
        when,
        calls: 0,
    })
}

fn hang(text: &str) -> Option<PlannedFault> {
    let (symbol, number) = match text.split_once(':') {
        Some((symbol, number)) => (symbol, Some(number)),
        None => (text, None),
    };
    let symbol = known(symbol).filter(|symbol| symbol.can_hang)?.name;
    Some(PlannedFault { symbol, effect: FaultEffect::Hang, when: when(number)?, calls: 0 })
}

fn when(text: Option<&str>) -> Option<FaultTime> {
    let Some(text) = text else { return Some(FaultTime::Always) };
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    match text.strip_suffix('+') {
        Some(first) => number(first).map(FaultTime::From),
        None => number(text).map(FaultTime::Only),
    }
}

fn known(symbol: &str) -> Option<&'static symbols::StandinSymbol> {
    symbols::ALL.iter().find(|known| known.name == symbol)
}

fn size(text: &str) -> Option<usize> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(number) = text.strip_suffix("us") {
        return number.parse().ok().map(Duration::from_micros);
    }
    if let Some(number) = text.strip_suffix("ms") {
        return number.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s').unwrap_or(text).parse().ok().map(Duration::from_secs)
}

/// A test must not run with a configuration other than the one it asked for.
fn refuse(mistake: &str) -> ! {
    eprintln!("ronde-standin-gpu: bad configuration: {mistake}");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_the_calls_of_its_function() {
        let mut config = FakeConfig::default();
        config
            .apply("lag=2ms, lag=cuLaunchKernel:1s, fail=cuInit:2:100, hang=ncclSend:2+")
            .unwrap();
        let failures: Vec<_> = (0..3).map(|_| config.call("cuInit").failure).collect();
        assert_eq!(failures, [None, Some(Some(100)), None]);
        let hangs: Vec<_> = (0..3).map(|_| config.call("ncclSend").hangs).collect();
        assert_eq!(hangs, [false, true, true]);
        assert_eq!(config.call("ncclRecv").lag, Duration::from_millis(2));
        assert_eq!(config.call("cuLaunchKernel").lag, Duration::from_secs(1));
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "colour=red",
            "devices",
            "devices=many",
            "memory=1T",
            "fail=cuFly",
            "fail=cuInit:0",
            "hang=cuInit",
            "peer-death=maybe",
        ] {
            assert!(FakeConfig::default().apply(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([size("5"), size("2K"), size("64M")], [Some(5), Some(2048), Some(64 << 20)]);
    }
}
