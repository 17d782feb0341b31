//! The values of an option: their placeholder in the help, their parser and their Python type.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, value_parser};

use crate::agents::address;
use crate::processes::number;

/// The values that an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// None: the option is given or not.
    Switch,
    /// Any text, with its placeholder in the help.
    Text(&'static str),
    /// Names, separated by commas.
    Names,
    /// The value of `-np`.
    Processes,
    /// A positive integer.
    Count,
    /// A non-negative integer.
    Whole,
    /// A non-negative integer, in units of 1024 × 1024 bytes.
    Mebibytes,
    /// A whole number of seconds.
    Seconds,
    /// Two whole numbers of seconds.
    SecondsRange,
    /// A TCP port.
    Port,
    /// An address and a port, or only a port.
    Address,
    /// A non-negative number.
    Decimal,
    /// A number from 0 to 1.
    Fraction,
    /// A log level.
    Level,
    /// Core numbers, separated by commas.
    Cores,
}

impl Form {
    /// The number of values.
    pub(crate) fn values(self) -> usize {
        match self {
            Form::Switch => 0,
            Form::SecondsRange => 2,
            _ => 1,
        }
    }

    /// The name of this form in `horovod.runner`.
    pub(crate) fn python(self) -> &'static str {
        match self {
            Form::Switch => "flag",
            Form::Names => "names",
            Form::Processes | Form::Count | Form::Whole | Form::Mebibytes => "whole",
            Form::Seconds | Form::SecondsRange | Form::Port => "whole",
            Form::Decimal => "decimal",
            Form::Fraction => "fraction",
            Form::Cores => "cores",
            Form::Text(_) | Form::Address | Form::Level => "text",
        }
    }

    /// Adds the values to clap's argument. Without a parser here, the type of its field decides.
    pub(crate) fn shape(self, arg: Arg) -> Arg {
        let one = |arg: Arg, name, parser: ValueParser| arg.value_name(name).value_parser(parser);
        match self {
            Form::Switch => arg,
            Form::Text(name) => arg.value_name(name),
            Form::Names => arg.value_name("NAMES").num_args(1).value_delimiter(','),
            Form::Count => one(arg, "N", ValueParser::new(number)),
            Form::Seconds => one(arg, "SECONDS", ValueParser::new(seconds)),
            Form::SecondsRange => arg.num_args(2).value_names(["MIN", "MAX"]).value_parser(seconds),
            Form::Port => one(arg, "PORT", value_parser!(u16).range(1..).into()),
            Form::Address => one(arg, "ADDRESS:PORT", ValueParser::new(address)),
            Form::Level => arg.value_name("LEVEL"),
            Form::Processes | Form::Whole | Form::Mebibytes => arg.value_name("N"),
            Form::Decimal | Form::Fraction | Form::Cores => arg.value_name("N"),
        }
    }

    /// A variable's default as a value of the option.
    pub(crate) fn shown(self, default: &str) -> String {
        match self {
            Form::Mebibytes => default.parse::<u64>().map_or(0, |bytes| bytes >> 20).to_string(),
            Form::Level => default.to_ascii_uppercase(),
            _ => default.to_owned(),
        }
    }

    /// The value of the variable, or what is wrong with the value of the option.
    pub(crate) fn value(self, given: Option<&OsString>) -> Result<OsString, String> {
        let Some(given) = given else { return Err("needs a value".into()) };
        let text = given.to_string_lossy();
        let invalid = |must: &str| Err(format!("is `{text}`, but must be {must}"));
        let decimal = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        match self {
            Form::Whole => match text.parse::<u32>() {
                Ok(number) => Ok(number.to_string().into()),
                Err(_) => invalid("a non-negative integer"),
            },
            Form::Mebibytes => match text.parse::<u32>() {
                Ok(number) => Ok((u64::from(number) << 20).to_string().into()),
                Err(_) => invalid("a non-negative integer"),
            },
            Form::Decimal => match decimal(&text) {
                // Like Horovod, which writes `20.0` for 20.
                Some(number @ 0.0..) => Ok(format!("{number:?}").into()),
                _ => invalid("a non-negative number"),
            },
            Form::Fraction => match decimal(&text) {
                Some(0.0..=1.0) => Ok(given.clone()),
                _ => invalid("a number from 0 to 1"),
            },
            Form::Level => match text.to_ascii_uppercase().as_str() {
                level @ ("TRACE" | "DEBUG" | "INFO" | "WARNING" | "ERROR" | "FATAL") => {
                    Ok(level.into())
                }
                _ => invalid("TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
            },
            Form::Cores => match text.split(',').all(|core| core.parse::<u32>().is_ok()) {
                true => Ok(given.clone()),
                false => invalid("a core number, or several separated by commas"),
            },
            _ => Ok(given.clone()),
        }
    }
}

/// Parses a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "it must be a non-negative integer".into())
}
