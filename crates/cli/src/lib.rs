//! The commands: their flags, their words and their exit codes. What they do is in `ronde-launch`.
#![forbid(unsafe_code)]

mod agent;
mod agents;
mod arguments;
mod bench;
mod build_report;
mod config;
mod doctor;
mod elastic;
mod files;
mod flags;
mod horovodrun;
mod key;
mod mpi;
mod python;
mod ronde;
mod settings;
mod ssh;
mod status;
mod tunables;
mod words;

pub use horovodrun::horovodrun_main;
pub use ronde::ronde_main;
