//! Ways to get an agent onto a host, one file each.

pub mod local;
