//! The commands `horovodrun` and `ronde`: their options, messages and exit codes. `ronde-launch`
//! does the work.
#![forbid(unsafe_code)]

mod agent;
mod agents;
mod arguments;
mod bench;
mod build_report;
mod completion;
mod config;
mod cp;
mod doctor;
mod elastic;
mod environment;
mod explain;
mod files;
mod flags;
mod form;
mod gpus;
mod horovodrun;
mod hosts;
mod hub;
mod key;
mod messages;
mod mpi;
mod other_launchers;
mod processes;
mod python;
mod reach;
mod ronde;
mod screen;
mod script;
mod selftest;
mod settings;
mod ssh;
mod status;
mod tables;
mod tunables;
mod up;

pub use horovodrun::horovodrun_main;
pub use ronde::ronde_main;
